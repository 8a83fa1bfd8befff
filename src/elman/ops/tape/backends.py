"""The implementations of the tape engine."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from elman.ops.common.backend import Backend
from elman.ops.tape import reference

Run = Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor, str], tuple[Tensor, Tensor, Tensor]]
"""``run(input_bti, recurrent_ii, write_ii, tape_bni, state_bi, write) -> (h_bti, tape, state)``."""

BACKENDS: dict[str, Backend[Run]] = {"reference": Backend(reference.dual_memory)}
"""By the name that ``kernels.backend`` has."""
