"""The implementations of the channel engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.channel import reference
from elman.ops.channel.custom_op import CHANNEL
from elman.ops.channel.passes import Call
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import compiled_cell
from elman.ops.common.backend import Backend
from elman.ops.common.precision import no_autocast

Run = Callable[
    [Plan, Sequence[Tensor], Mapping[str, Tensor], Tensor, Tensor | None], tuple[Tensor, Tensor]
]
"""``run(plan, sources_bts, parameters, state_bc, resets_bt) -> (y_btc, last_bc)``."""


@uncompiled
def _reference(
    plan: Plan,
    sources_bts: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    with no_autocast(state_bc):
        return reference.run(plan, sources_bts, parameters, state_bc, resets_bt)


def _compiled(
    backend: str,
    plan: Plan,
    sources_bts: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    # A kernel reads a number for every channel; autograd sums the gradients of one of them all.
    channels = state_bc.shape[1]
    ordered = [parameters[name].expand(channels) for name in compiled_cell(plan.step).parameters]
    call = Call(plan.text, backend, sources_bts, ordered, state_bc, resets_bt)
    y_btc, last_bc = CHANNEL.run(call)
    return y_btc, last_bc


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_reference),
    "cpu": Backend(partial(_compiled, "cpu")),
    "cuda": Backend(partial(_compiled, "cuda"), narrow=True),
}
"""By the name that ``kernels.backend`` has."""
