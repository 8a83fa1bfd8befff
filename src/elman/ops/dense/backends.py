"""The implementations of the dense engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.backend import Backend
from elman.ops.common.precision import no_autocast
from elman.ops.common.transforms import keeps
from elman.ops.dense import reference
from elman.ops.dense.custom_op import DENSE, check_kernel_call
from elman.ops.dense.passes import Call
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
    first_sbi = torch.stack(tuple(state))
    tensors = (*inputs, *recurrent, *parameters, first_sbi)
    given = (inputs, recurrent, parameters, first_sbi, resets_bt)
    call = Call(step, backend, keeps(tensors), *given)
    check_kernel_call(call)
    h_bti, last_sbi = DENSE.run(call)
    return h_bti, last_sbi.unbind(0)


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_reference),
    "cpu": Backend(partial(_compiled, "cpu")),
    "cuda": Backend(partial(_compiled, "cuda"), narrow=True),
}
"""By the name that ``kernels.backend`` has."""
