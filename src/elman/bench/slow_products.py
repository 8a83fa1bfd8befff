"""Names the matrix products that run on slow kernels because of their sizes.

The rule knows shapes, distances of rows and dtypes, no times and no names of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from elman.ops.common.padding import HALF, MULTIPLE


@dataclass(frozen=True)
class SlowProduct:
    """A product whose rows do not begin at whole vectors.

    Args:
        factors: Both factors in words, with their dtype.
        size: The number at fault: a length of rows, or how many numbers they lie apart.
    """

    factors: str
    size: int


def slow_product(args: Sequence[Any]) -> SlowProduct | None:
    """Return a product if its sizes forbid fast kernels of a GPU, else None.

    Tensor cores read and write 16 bytes at a time. So the rows of both factors and of the output,
    as they lie in memory, need lengths and distances that are multiples of 8 numbers of half
    precision.

    Args:
        args: Arguments of ``mm``, ``addmm``, ``bmm`` or ``baddbmm``; the last two tensors are the
            factors.
    """
    left, right = [one for one in args if isinstance(one, Tensor)][-2:]
    if left.dtype not in HALF or right.dtype not in HALF or min(left.ndim, right.ndim) < 2:
        return None
    for size in (right.shape[-1], *_of_rows(left), *_of_rows(right)):
        if size % MULTIPLE:
            dtype = str(left.dtype).removeprefix("torch.")
            factors = f"{list(left.shape)} times {list(right.shape)} in {dtype}"
            return SlowProduct(factors, size)
    return None


def _of_rows(factor: Tensor) -> Iterator[int]:
    """Yield the length of a factor's rows in memory, and how far they lie apart."""
    along, across = (-1, -2) if factor.stride(-1) == 1 else (-2, -1)
    yield factor.shape[along]
    if factor.shape[across] > 1:
        yield factor.stride(across)
