"""The matrix-state engine as an operator, which autograd, autocast and torch.compile see.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns, v state rows,
k checkpoints: the states before every segment of time but the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from elman.ops.common.checks import (
    check_kernel_tensors,
    check_parameters,
    check_resets,
    check_sequences,
    check_state,
)
from elman.ops.common.operator import INCOMING, Operator
from elman.ops.common.precision import wide_dtype
from elman.ops.matrix_state import abi, cpu
from elman.ops.matrix_state.abi import kept_dtype
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.plan import Plan, parse
from elman.ops.matrix_state.triton import launch as triton
from elman.ops.matrix_state.triton.tiles import reads_are_kept


class Launch(Protocol):
    """Runs a call: fills the tensors that its arguments point to."""

    def __call__(self, call: abi.Call, *, backward: bool) -> None:
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


class Call(NamedTuple):
    """What the operator reads.

    Args:
        plan: ``Plan.text``.
        backend: A key of :data:`KERNELS`.
        keep: Whether to keep what a backward pass needs, such as the checkpoints.
        sources_btc: Sequences of one dtype.
        parameters: In the order of ``Plan.parameter_names``, of the state's dtype.
        first_bhvn: State before the first step, or None for zeros.
        resets_bt: True where the state of a row before a step is zero; None is nowhere.
    """

    plan: str
    backend: str
    keep: bool
    sources_btc: Sequence[Tensor]
    parameters: Sequence[Tensor]
    first_bhvn: Tensor | None
    resets_bt: Tensor | None


class Saved(NamedTuple):
    """What the backward pass reads: gradients of output and last state, and the call."""

    plan: str
    backend: str
    dout_bthv: Tensor | None
    dlast_bhvn: Tensor | None
    sources_btc: Sequence[Tensor]
    parameters: Sequence[Tensor]
    first_bhvn: Tensor | None
    checkpoints_kbhvn: Tensor
    reads_bthv: Tensor
    resets_bt: Tensor | None


Results = tuple[Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[list[Tensor], list[Tensor], Tensor | None]


def forward(call: Call) -> Results:
    """Run a plan over time."""
    results = _room(call)
    args = _arguments(call)
    args.point(out=results[0], last=results[1], checkpoints=results[2] if call.keep else None)
    args.keep_reads(results[3])
    KERNELS[call.backend].launch(args, backward=False)
    return results


def _room(call: Call) -> Results:
    plan, source_btc, chosen = parse(call.plan), call.sources_btc[0], KERNELS[call.backend]
    (batch, steps, _), dtype, device = source_btc.shape, source_btc.dtype, source_btc.device
    # Where torch.compile traces the batch as a symbol, int() fixes it; T stays a symbol.
    count = (steps - 1) // chosen.segment(plan, int(batch), dtype) if call.keep else 0
    state, wide = (batch, plan.heads, plan.rows, plan.columns), wide_dtype(dtype)
    rows = (batch, steps, plan.heads, plan.rows)
    reads = rows if call.keep and chosen.keeps_reads(plan) else (0,)
    return (
        torch.empty(rows, dtype=dtype, device=device),
        torch.empty(state, dtype=wide, device=device),
        torch.empty(count, *state, dtype=chosen.checkpoint_dtype(plan, dtype), device=device),
        torch.empty(reads, dtype=wide, device=device),
    )


def _arguments(call: Call | Saved) -> abi.Call:
    """Return the arguments of a kernel, with what both passes read."""
    plan, sources_btc = parse(call.plan), call.sources_btc
    args = abi.Call(
        plan,
        [source if source.stride(-1) == 1 else source.contiguous() for source in sources_btc],
        [parameter.contiguous() for parameter in call.parameters],
        KERNELS[call.backend].segment(plan, sources_btc[0].shape[0], sources_btc[0].dtype),
    )
    if call.first_bhvn is not None:
        args.point(first=call.first_bhvn.contiguous())
    if call.resets_bt is not None:
        args.point_resets(call.resets_bt.contiguous())
    return args


def backward(saved: Saved) -> Gradients:
    """Return the gradients of sources, parameters and first state; None without a state."""
    sources_btc, parameters = saved.sources_btc, saved.parameters
    dsources_btc = [_gradient(saved.plan, n, source) for n, source in enumerate(sources_btc)]
    dparameters = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
    dfirst_bhvn = _first_gradient(saved)
    args = _arguments(saved)
    args.point_gradients(dsources_btc, dparameters)
    args.point(checkpoints=saved.checkpoints_kbhvn, dfirst=dfirst_bhvn)
    args.keep_reads(saved.reads_bthv)
    if saved.dlast_bhvn is not None:
        args.point(dlast=saved.dlast_bhvn.contiguous())
    if saved.dout_bthv is not None:
        args.point_output_gradient(saved.dout_bthv)
    KERNELS[saved.backend].launch(args, backward=True)
    return dsources_btc, dparameters, dfirst_bhvn


def _gradient(plan: str, number: int, source_btc: Tensor) -> Tensor:
    """Return a tensor for a source's gradient, 0 in columns that no role covers."""
    covered, channels = _covered(plan, number), source_btc.shape[2]
    # `empty_like` takes half of the time of `new_empty` with a shape.
    make = torch.zeros_like if covered is None else torch.empty_like
    dsource_btc = make(source_btc, memory_format=torch.contiguous_format)
    if covered is not None and covered < channels:
        dsource_btc[..., covered:].zero_()
    return dsource_btc


@cache
def _covered(plan: str, number: int) -> int | None:
    """Return how many of a source's first columns the roles read; None if they leave gaps."""
    read = parse(plan)
    if number >= len(read.channels):  # no role reads this source
        return None
    return read.channels[number] if read.covers(number, read.channels[number]) else None


def _first_gradient(saved: Saved) -> Tensor | None:
    if saved.first_bhvn is None:
        return None
    source_btc = saved.sources_btc[0]
    dtype = wide_dtype(source_btc.dtype)
    return torch.empty(saved.first_bhvn.shape, dtype=dtype, device=source_btc.device)


def _save(call: Call, results: Results) -> Saved:
    assert call.keep, "a gradient needs checkpoints, and none were kept"
    given = (call.sources_btc, call.parameters, call.first_bhvn)
    kept = (*results[2:], call.resets_bt)
    return Saved(call.plan, call.backend, INCOMING, INCOMING, *given, *kept)


def _fake_backward(saved: Saved) -> Gradients:
    dsources_btc = [source.new_empty(source.shape) for source in saved.sources_btc]
    dparameters = [parameter.new_empty(parameter.shape) for parameter in saved.parameters]
    return dsources_btc, dparameters, _first_gradient(saved)


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
    of = plan.call_name
    check_sequences(of, sources_btc, plan.channels)
    source_btc = sources_btc[0]
    check_resets(of, resets_bt, source_btc)
    check_parameters(of, parameters, plan.parameter_shapes, source_btc.device)
    if first_bhvn is not None:
        shape = (source_btc.shape[0], plan.heads, plan.rows, plan.columns)
        check_state("state", of, first_bhvn, shape, source_btc)


def check_operator(call: Call) -> None:
    """Compare every tensor of an operator's call with what the kernel reads.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
    """
    plan = parse(call.plan)
    named = dict(zip(plan.parameter_names, call.parameters, strict=False))
    check_call(plan, call.sources_btc, named, call.first_bhvn, call.resets_bt)
    check_kernel_tensors(f"matrix_state {plan.label}", call.sources_btc, call.parameters)


MATRIX_STATE = Operator(
    "matrix_state",
    Call,
    Saved,
    check=check_operator,
    forward=forward,
    fake=_room,
    save=_save,
    backward=backward,
    fake_backward=_fake_backward,
    incoming=("dout_bthv", "dlast_bhvn"),
    gradients=("sources_btc", "parameters", "first_bhvn"),
    # The engine sets the state's precision: it widens projections that autocast made narrow. CUDA
    # has no such rule: its kernels read narrow sources, and parameters come in the state's dtype.
    widens=("cpu",),
)
"""A plan on a compiled kernel.

Its results are the output [B, T, heads, rows] in the sources' dtype, the state after the last step,
the checkpoints [segments - 1, B, heads, rows, columns] in an order of the kernel's own, and what
each step read of the old state [B, T, heads, rows], or no number where the kernel does not keep
it."""
