"""The implementations of the dense engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from elman.ops.common.backend import Backend
from elman.ops.common.precision import no_autocast
from elman.ops.common.uncompiled import uncompiled
from elman.ops.dense import custom_op, reference
from elman.ops.dense.steps import State, Tensors

Run = Callable[[str, Tensors, Tensors, Tensors, Tensors, Tensor | None], tuple[Tensor, State]]
"""``run(step, inputs, recurrent, state, parameters, resets_bt) -> (h_bti, state)``."""


@uncompiled
def _reference(
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    state: Tensors,
    parameters: Tensors,
    resets_bt: Tensor | None,
) -> tuple[Tensor, State]:
    with no_autocast(state[0]):
        given = (inputs, recurrent, state, parameters, resets_bt)
        return reference.dense_recurrence(step, *given)


def _compiled(
    backend: str,
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    state: Tensors,
    parameters: Tensors,
    resets_bt: Tensor | None,
) -> tuple[Tensor, State]:
    custom_op.check_kernel_call(step, backend, inputs, recurrent, parameters, state)
    first_sbi = torch.stack(tuple(state))
    given = (inputs, recurrent, parameters, first_sbi, resets_bt)
    h_bti, last_sbi = custom_op.run(step, backend, *given)
    return h_bti, last_sbi.unbind(0)


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_reference),
    "cpu": Backend(partial(_compiled, "cpu")),
    "cuda": Backend(partial(_compiled, "cuda"), narrow=True),
}
"""By the name that ``kernels.backend`` has."""
