"""The matrix-state engine as custom operators, which autograd, autocast and torch.compile see.

Where nobody looks at operators, :class:`MatrixState` calls the same kernels without an operator.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns, v state rows,
k checkpoints: the states before every segment of time but the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from elman.ops.common.door import (
    check_kernel_tensors,
    check_parameters,
    check_resets,
    check_sequences,
    check_state,
)
from elman.ops.common.operators import apply, backward_is_plain, operators_are_seen
from elman.ops.common.precision import wide_dtype
from elman.ops.common.transforms import OperatorFunction, operator, register_gradient
from elman.ops.matrix_state import cpu
from elman.ops.matrix_state.abi import Call, kept_dtype
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.plan import Plan, parse
from elman.ops.matrix_state.triton import launch as triton
from elman.ops.matrix_state.triton.spec import reads_are_kept


class Launch(Protocol):
    """Runs a call: fills the tensors that its arguments point to."""

    def __call__(self, call: Call, *, backward: bool) -> None:
        """Run it forward or backward."""


def kernel_problem(plan: Plan) -> str:
    """Return why no compiled backend has a plan; empty if they do."""
    return plan.kernel_problem


def keeps_nothing(plan: Plan) -> bool:
    """Say that a forward pass keeps checkpoints alone."""
    return False


@dataclass(frozen=True)
class Kernels:
    """What the operators ask of a compiled backend. Shapes and dtypes alone decide the sizes.

    Args:
        launch: Runs a call.
        segment: Steps between two checkpoints, from plan, batch and the sources' dtype.
        checkpoint_dtype: Dtype of the checkpoints, from plan and the sources' dtype.
        problem: Why it does not have a plan; empty if it does.
        keeps_reads: Whether the forward pass of a plan also keeps what every step read.
    """

    launch: Launch
    segment: Callable[[Plan, int, torch.dtype], int]
    checkpoint_dtype: Callable[[Plan, torch.dtype], torch.dtype]
    problem: Callable[[Plan], str] = kernel_problem
    keeps_reads: Callable[[Plan], bool] = keeps_nothing


KERNELS: dict[str, Kernels] = {
    "cpu": Kernels(cpu.launch, cpu.segment, cpu.checkpoint_dtype),
    "cuda": Kernels(kernels.launch, kernels.segment, kept_dtype),
    "triton": Kernels(
        triton.launch, triton.segment, kept_dtype, triton.plan_problem, reads_are_kept
    ),
}
"""By the name of the backend."""


@operator("matrix_state")
def matrix_state(
    plan: str,
    backend: str,
    keep: bool,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a plan of the matrix-state engine on a compiled kernel.

    Args:
        plan: ``Plan.text``.
        backend: A key of :data:`KERNELS`.
        keep: Whether to keep what a backward pass needs, such as the checkpoints.
        sources_btc: Sequences of one dtype.
        parameters: In the order of ``Plan.parameter_names``, of the state's dtype.
        first_bhvn: State before the first step, or None for zeros.
        resets_bt: True where the state of a row before a step is zero; None is nowhere.

    Returns:
        The output [B, T, heads, rows] in the sources' dtype, the state after the last step, the
        checkpoints [segments - 1, B, heads, rows, columns] in an order of the kernel's own, and
        what each step read of the old state [B, T, heads, rows], or no number where the kernel does
        not keep it.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
    """
    parsed = parse(plan)
    named = dict(zip(parsed.parameter_names, parameters, strict=False))
    check_call(parsed, sources_btc, named, first_bhvn, resets_bt)
    check_kernel_tensors(f"matrix_state {parsed.label}", sources_btc, parameters)
    return _forward(plan, backend, keep, sources_btc, parameters, first_bhvn, resets_bt)


def check_call(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> None:
    """Compare the tensors of a call with the plan.

    Raises:
        ValueError: one has another shape, dtype or device than the plan asks for.
    """
    of = plan.door
    check_sequences(of, sources_btc, plan.channels)
    source_btc = sources_btc[0]
    check_resets(of, resets_bt, source_btc)
    check_parameters(of, parameters, plan.parameter_shapes, source_btc.device)
    if first_bhvn is not None:
        shape = (source_btc.shape[0], plan.heads, plan.rows, plan.columns)
        check_state("state", of, first_bhvn, shape, source_btc)


def _forward(
    plan: str,
    backend: str,
    keep: bool,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outputs = _outputs(parse(plan), backend, keep, sources_btc[0])
    call = _call(plan, backend, sources_btc, parameters, first_bhvn, resets_bt)
    call.point(out=outputs[0], last=outputs[1], checkpoints=outputs[2] if keep else None)
    call.keep_reads(outputs[3])
    KERNELS[backend].launch(call, backward=False)
    return outputs


@matrix_state.register_fake
def _(
    plan: str,
    backend: str,
    keep: bool,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(parse(plan), backend, keep, sources_btc[0])


def _outputs(
    plan: Plan, backend: str, keep: bool, source_btc: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (batch, steps, _), dtype, device = source_btc.shape, source_btc.dtype, source_btc.device
    chosen = KERNELS[backend]
    # Where torch.compile traces the batch as a symbol, int() fixes it; T stays a symbol.
    count = (steps - 1) // chosen.segment(plan, int(batch), dtype) if keep else 0
    state, wide = (batch, plan.heads, plan.rows, plan.columns), wide_dtype(dtype)
    rows = (batch, steps, plan.heads, plan.rows)
    reads = rows if keep and chosen.keeps_reads(plan) else (0,)
    return (
        torch.empty(rows, dtype=dtype, device=device),
        torch.empty(state, dtype=wide, device=device),
        torch.empty(count, *state, dtype=chosen.checkpoint_dtype(plan, dtype), device=device),
        torch.empty(reads, dtype=wide, device=device),
    )


def _call(
    plan: str,
    backend: str,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> Call:
    parsed = parse(plan)
    call = Call(
        parsed,
        [source if source.stride(-1) == 1 else source.contiguous() for source in sources_btc],
        [parameter.contiguous() for parameter in parameters],
        KERNELS[backend].segment(parsed, sources_btc[0].shape[0], sources_btc[0].dtype),
    )
    if first_bhvn is not None:
        call.point(first=first_bhvn.contiguous())
    if resets_bt is not None:
        call.point_resets(resets_bt.contiguous())
    return call


@operator("matrix_state_backward")
def matrix_state_backward(
    plan: str,
    backend: str,
    dout_bthv: Tensor | None,
    dlast_bhvn: Tensor | None,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    checkpoints_kbhvn: Tensor,
    reads_bthv: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients of sources, parameters and first state (empty without a state)."""
    dsources_btc, dparameters, dfirst_bhvn = _backward(
        plan,
        backend,
        dout_bthv,
        dlast_bhvn,
        sources_btc,
        parameters,
        first_bhvn,
        checkpoints_kbhvn,
        reads_bthv,
        resets_bt,
    )
    if dfirst_bhvn is None:
        dfirst_bhvn = _first_gradient(None, sources_btc[0])
    return dsources_btc, dparameters, dfirst_bhvn


def _backward(
    plan: str,
    backend: str,
    dout_bthv: Tensor | None,
    dlast_bhvn: Tensor | None,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    checkpoints_kbhvn: Tensor,
    reads_bthv: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    dsources_btc = [_gradient(plan, n, source) for n, source in enumerate(sources_btc)]
    dparameters = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
    dfirst_bhvn = None if first_bhvn is None else _first_gradient(first_bhvn, sources_btc[0])
    call = _call(plan, backend, sources_btc, parameters, first_bhvn, resets_bt)
    call.point_gradients(dsources_btc, dparameters)
    call.point(checkpoints=checkpoints_kbhvn, dfirst=dfirst_bhvn)
    call.keep_reads(reads_bthv)
    if dlast_bhvn is not None:
        call.point(dlast=dlast_bhvn.contiguous())
    if dout_bthv is not None:
        call.point_output_gradient(dout_bthv)
    KERNELS[backend].launch(call, backward=True)
    return dsources_btc, dparameters, dfirst_bhvn


@matrix_state_backward.register_fake
def _(
    plan: str,
    backend: str,
    dout_bthv: Tensor | None,
    dlast_bhvn: Tensor | None,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    checkpoints_kbhvn: Tensor,
    reads_bthv: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    return (
        [source.new_empty(source.shape) for source in sources_btc],
        [parameter.new_empty(parameter.shape) for parameter in parameters],
        _first_gradient(first_bhvn, sources_btc[0]),
    )


def _gradient(plan: str, number: int, source_btc: Tensor) -> Tensor:
    """Return a tensor for a source's gradient, 0 in columns that no role covers."""
    # `empty_like` takes half of the time of `new_empty` with a shape.
    make = torch.empty_like if _covers(plan, number, source_btc.shape[2]) else torch.zeros_like
    return make(source_btc, memory_format=torch.contiguous_format)


@cache
def _covers(plan: str, number: int, channels: int) -> bool:
    return parse(plan).covers(number, channels)


def _first_gradient(first_bhvn: Tensor | None, source_btc: Tensor) -> Tensor:
    shape = (0,) if first_bhvn is None else first_bhvn.shape
    return torch.empty(shape, dtype=wide_dtype(source_btc.dtype), device=source_btc.device)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.plan, ctx.backend, keep, sources_btc, parameters, first_bhvn, resets_bt = inputs
    assert keep, "a gradient needs checkpoints, and none were kept"
    ctx.n_sources = len(sources_btc)
    ctx.save_for_backward(*sources_btc, *parameters, first_bhvn, resets_bt, *output[2:])
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, dout_bthv: Tensor | None, dlast_bhvn: Tensor | None, *, plain: bool
) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    """Return the gradients of sources, parameters and first state, None where there is none.

    Args:
        ctx: As :func:`_setup` left it.
        dout_bthv: Gradient of the output.
        dlast_bhvn: Gradient of the last state.
        plain: Whether a plain call may compute them, where no operator is seen.
    """
    *tensors, first_bhvn, resets_bt, checkpoints_kbhvn, reads_bthv = ctx.saved_tensors
    plain = plain and backward_is_plain((*tensors, dout_bthv, dlast_bhvn))
    dsources_btc, dparameters, dfirst_bhvn = (_backward if plain else matrix_state_backward)(
        ctx.plan,
        ctx.backend,
        dout_bthv,
        dlast_bhvn,
        tensors[: ctx.n_sources],
        tensors[ctx.n_sources :],
        first_bhvn,
        checkpoints_kbhvn,
        reads_bthv,
        resets_bt,
    )
    return dsources_btc, dparameters, None if first_bhvn is None else dfirst_bhvn


def _differentiate_operator(
    ctx: Any, dout_bthv: Tensor | None, dlast_bhvn: Tensor | None, *_: Tensor | None
) -> tuple[None, None, None, list[Tensor], list[Tensor], Tensor | None, None]:
    return None, None, None, *_differentiate(ctx, dout_bthv, dlast_bhvn, plain=False), None


register_gradient("matrix_state", _differentiate_operator, _setup)
# The engine sets the state's precision: it widens projections that autocast made narrow. CUDA has
# no such rule: its kernels read narrow sources, and parameters come in the state's dtype.
matrix_state.register_autocast("cpu", torch.float32)


class MatrixState(OperatorFunction):
    """The operator :func:`matrix_state` where nobody looks. The checkpoints stay inside."""

    @staticmethod
    def forward(
        ctx: Any, plan: str, backend: str, n_sources: int, *tensors: Any
    ) -> tuple[Tensor, Tensor]:
        """Run the kernel on sources, parameters, first state or None, resets or None."""
        sources_btc, parameters = tensors[:n_sources], tensors[n_sources:-2]
        inputs = (plan, backend, True, sources_btc, parameters, *tensors[-2:])
        outputs = _forward(*inputs)
        _setup(ctx, inputs, outputs)
        return outputs[:2]

    @staticmethod
    def backward(
        ctx: Any, dout_bthv: Tensor | None, dlast_bhvn: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Run the kernels of the backward pass."""
        dsources_btc, dparameters, dfirst_bhvn = _differentiate(
            ctx, dout_bthv, dlast_bhvn, plain=True
        )
        return None, None, None, *dsources_btc, *dparameters, dfirst_bhvn, None


def run(
    plan: str,
    backend: str,
    keep: bool,
    sources_btc: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_bhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the first two outputs of :func:`matrix_state`, by an operator only if it is seen."""
    tensors = (*sources_btc, *parameters, first_bhvn, resets_bt)
    if not operators_are_seen(tensors):
        if keep:
            outputs: tuple[Tensor, Tensor] = apply(
                MatrixState, plan, backend, len(sources_btc), *tensors
            )
            return outputs
        return _forward(plan, backend, False, sources_btc, parameters, first_bhvn, resets_bt)[:2]
    out_bthv, last_bhvn, *_ = matrix_state(
        plan, backend, keep, sources_btc, parameters, first_bhvn, resets_bt
    )
    return out_bthv, last_bhvn
