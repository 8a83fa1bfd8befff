"""The implementations of the dense engine."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from elman.ops.common.backend import Backend
from elman.ops.dense import reference
from elman.ops.dense.steps import State, Tensors

Run = Callable[[str, Tensors, Tensors, Tensors, Tensors], tuple[Tensor, State]]
"""``run(step, inputs, recurrent, state, parameters) -> (h_bti, state)``."""

BACKENDS: dict[str, Backend[Run]] = {"reference": Backend(reference.dense_recurrence)}
"""By the name that ``kernels.backend`` has."""
