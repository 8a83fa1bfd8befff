"""The implementations of the matrix-state engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.backend import Backend
from elman.ops.common.precision import cast, no_autocast, wide_dtype
from elman.ops.common.transforms import keeps
from elman.ops.matrix_state import reference
from elman.ops.matrix_state.custom_op import MATRIX_STATE, Call
from elman.ops.matrix_state.plan import Plan

Run = Callable[
    [Plan, Sequence[Tensor], Mapping[str, Tensor], Tensor | None, Tensor | None],
    tuple[Tensor, Tensor],
]
"""``run(plan, sources_btc, parameters, first_bhvn, resets_bt) -> (out_bthv, last_bhvn)``; None is
zeros, and no resets."""


def _reference(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    if first_bhvn is None:
        first_bhvn = reference.first_state(plan, sources_btc[0])
    return _interpreted(plan, sources_btc, parameters, first_bhvn, resets_bt)


@uncompiled
def _interpreted(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    first_bhvn: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    with no_autocast(first_bhvn):
        return reference.run(plan, sources_btc, parameters, first_bhvn, resets_bt)


def _compiled(
    backend: str,
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    # Here and not in op.py: the reference widens role by role, and sums gradients as narrow as they
    # come.
    sequences, wide = sources_btc[0].dtype, wide_dtype(sources_btc[0].dtype)
    io = BACKENDS[backend].io_dtype(sequences)
    sources_btc = [_adjacent(cast(source_btc, io)) for source_btc in sources_btc]
    ordered = [cast(parameters[name], wide) for name in plan.parameter_names]
    tensors = [*sources_btc, *ordered, *([] if first_bhvn is None else [first_bhvn])]
    given = (sources_btc, ordered, first_bhvn, resets_bt)
    out_bthv, last_bhvn = MATRIX_STATE.run(Call(plan.text, backend, keeps(tensors), *given))
    return out_bthv, last_bhvn


def _adjacent(source_btc: Tensor) -> Tensor:
    """Return a source with its channels adjacent, which kernels need.

    A convolution's output has them apart. It is copied here, once: the backward pass reads the
    copy.
    """
    return source_btc if source_btc.stride(-1) == 1 else source_btc.contiguous()


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_reference),
    "cpu": Backend(partial(_compiled, "cpu")),
    "triton": Backend(partial(_compiled, "triton"), narrow=True),
    "cuda": Backend(partial(_compiled, "cuda"), narrow=True),
}
"""By the name that ``kernels.backend`` has."""
