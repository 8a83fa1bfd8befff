"""What a layer carries from one call to the next."""

from __future__ import annotations

from torch import Tensor

from elman.ops.precision import wide_dtype

State = dict[str, Tensor]
"""Named tensors, each with the batch as its first axis; an absent state means zeros."""


def first_state(part: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """Return a part of the state before the first step.

    Args:
        part: The part as it was carried; None starts a sequence.
        like: Any tensor with the batch as its first axis.
        shape: Lengths of the part's other axes.

    Returns:
        The given part, or zeros in fp32 or wider.
    """
    if part is not None:
        return part
    return like.new_zeros(like.shape[0], *shape, dtype=wide_dtype(like.dtype))
