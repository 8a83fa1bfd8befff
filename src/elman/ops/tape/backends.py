"""The implementations of the tape engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.backend import Backend
from elman.ops.common.precision import no_autocast
from elman.ops.common.transforms import keeps
from elman.ops.tape import reference
from elman.ops.tape.custom_op import TAPE, check_kernel_call
from elman.ops.tape.passes import Call

Run = Callable[
    [Tensor, Tensor, Tensor | None, Tensor, Tensor, str, Tensor | None],
    tuple[Tensor, Tensor, Tensor],
]
"""``run(input_bti, recurrent_ii, write_ii, tape_bni, state_bi, write, resets_bt)``, which returns
``(h_bti, tape, state)``."""


@uncompiled
def _reference(
    input_bti: Tensor,
    recurrent_ii: Tensor,
    write_ii: Tensor | None,
    tape_bni: Tensor,
    state_bi: Tensor,
    write: str,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    given = (input_bti, recurrent_ii, write_ii, tape_bni, state_bi, write, resets_bt)
    with no_autocast(state_bi):
        return reference.dual_memory(*given)


def _compiled(
    backend: str,
    input_bti: Tensor,
    recurrent_ii: Tensor,
    write_ii: Tensor | None,
    tape_bni: Tensor,
    state_bi: Tensor,
    write: str,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    matrix_pi = recurrent_ii if write_ii is None else torch.cat([recurrent_ii, write_ii])
    tensors = (input_bti, matrix_pi, tape_bni, state_bi)
    call = Call(write, backend, keeps(tensors), *tensors, resets_bt)
    check_kernel_call(call)
    h_bti, last_bni, last_bi = TAPE.run(call)
    return h_bti, last_bni, last_bi


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_reference),
    "cpu": Backend(partial(_compiled, "cpu")),
    "cuda": Backend(partial(_compiled, "cuda"), narrow=True),
}
"""By the name that ``kernels.backend`` has."""
