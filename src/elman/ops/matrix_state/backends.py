"""The backends that run compiled kernels of the matrix-state engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from elman.ops.matrix_state import cpu
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.plan import Plan


class Launch(Protocol):
    """Runs a call: fills the tensors that its arguments point to."""

    def __call__(self, call: Call, *, backward: bool) -> None:
        """Run it forward or backward."""


@dataclass(frozen=True)
class Backend:
    """What the custom operators ask of a backend; sizes follow from shapes and dtypes alone.

    Args:
        launch: Runs a call.
        segment: Steps between two kept states, from plan, batch and the sources' dtype.
        kept_dtype: Dtype of kept states, from plan and the sources' dtype.
    """

    launch: Launch
    segment: Callable[[Plan, int, torch.dtype], int]
    kept_dtype: Callable[[Plan, torch.dtype], torch.dtype]


BACKENDS: dict[str, Backend] = {
    "cpu": Backend(cpu.launch, cpu.segment, cpu.kept_dtype),
    "cuda": Backend(kernels.launch, kernels.segment, kernels.kept_dtype),
}
"""By the name that ``kernels.backend`` has."""
