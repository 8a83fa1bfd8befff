"""A plan of the channel engine in plain PyTorch: a loop over time, gradient by autograd.

Every kernel is checked against it. The steps stand in steps.py, and log_space.py has those that
need no loop.

Shape legend: t time, b batch, c channels of the state, s all channels of a source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from elman.ops.channel import log_space
from elman.ops.channel.plan import Plan
from elman.ops.channel.steps import STEPS, Prepared
from elman.ops.common.gates import self_gate, unit
from elman.ops.common.scan import scan
from elman.ops.common.slices import Slice


def run(
    plan: Plan,
    sources_bts: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`elman.ops.channel.op.run`, any floating dtype, any device."""
    places = _read(plan, sources_bts, state_bc.shape[-1])
    inputs = _inputs(plan, places)
    y_btc, last_bc = channel(plan.step, inputs, parameters, state_bc, resets_bt)
    if plan.query is not None:
        y_btc = y_btc * places[plan.query]
    return (self_gate(y_btc) if plan.self_gate else y_btc), last_bc


def step_inputs(plan: Plan, sources_bts: Sequence[Tensor], channels: int) -> dict[str, Tensor]:
    """Return the sequences [b, t, c] that the plan's step reads."""
    return _inputs(plan, _read(plan, sources_bts, channels))


def _inputs(plan: Plan, places: Mapping[Slice, Tensor]) -> dict[str, Tensor]:
    inputs = {name: places[place] for name, place in plan.inputs}
    if plan.unit is not None:
        inputs[plan.unit] = unit(inputs[plan.unit])
    return inputs


def _read(plan: Plan, sources_bts: Sequence[Tensor], channels: int) -> dict[Slice, Tensor]:
    """Return the slices of the sources."""
    found = {}
    # With split, and not with an index, the gradient of all blocks is one concatenation.
    blocks = [source_bts.split(channels, -1) for source_bts in sources_bts]
    for place in plan.slices():
        whole = place.start % channels == 0
        found[place] = (
            blocks[place.source][place.start // channels]
            if whole
            else sources_bts[place.source].narrow(-1, place.start, channels)
        )
    return found


def channel(
    step: str,
    inputs: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return all states of a step's recurrence and the last one."""
    names = tuple(inputs)
    if step in log_space.STEPS:
        segment = partial(log_space.segment, log_step=log_space.STEPS[step], names=names)
    else:
        segment = partial(_segment, step=STEPS[step], names=names, parameters=parameters)
    over_time = [*inputs.values(), *(() if resets_bt is None else (resets_bt,))]
    h_tbc, state_bc = scan(segment, state_bc, [one_bt.transpose(0, 1) for one_bt in over_time])
    return h_tbc.transpose(0, 1), state_bc


def _segment(
    h_bc: Tensor,
    *over_time: Tensor,
    step: Callable[..., Prepared],
    names: tuple[str, ...],
    parameters: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Run some steps; resets [t, b], if there are any, stand behind the inputs."""
    n = len(names)
    sequences, advance = step(**dict(zip(names, over_time[:n], strict=True)), **parameters)
    resets = [one_tb.unsqueeze(-1).unbind(0) for one_tb in over_time[n:]]
    states = []
    for t, slices in enumerate(zip(*(sequence.unbind(0) for sequence in sequences), strict=True)):
        for resets_b1 in resets:
            h_bc = h_bc.masked_fill(resets_b1[t], 0)
        h_bc = advance(h_bc, *slices)
        states.append(h_bc)
    return torch.stack(states), h_bc
