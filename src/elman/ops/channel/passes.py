"""What the passes of the channel engine read and leave, on every machine.

Shape legend: b batch, t time, c channels of the state, s all channels of a source,
k checkpoints: the states before every segment of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elman.ops.channel.plan import Plan
from elman.ops.common.operator import INCOMING

Results = tuple[Tensor, Tensor, Tensor]
"""The output [B, T, C] in the sources' dtype, the last state and the checkpoints."""
Gradients = tuple[list[Tensor], list[Tensor], Tensor]
"""Those of the sources, of the parameters and of the first state."""


class Call(NamedTuple):
    """What the operator reads.

    Args:
        plan: ``Plan.text``.
        backend: A key of :data:`elman.ops.channel.custom_op.KERNELS`.
        sources_bts: Sequences of one dtype. On a CPU everything else has this dtype, too.
        parameters_c: The step's parameters in the order of :mod:`elman.ops.channel.recurrences`.
        state_bc: State before the first step.
        resets_bt: Whether the state before a step is zero, bool; None: it never is.
    """

    plan: str
    backend: str
    sources_bts: Sequence[Tensor]
    parameters_c: Sequence[Tensor]
    state_bc: Tensor
    resets_bt: Tensor | None


class Saved(NamedTuple):
    """What the backward pass reads: gradients of output and last state, and the call."""

    plan: str
    backend: str
    dy_btc: Tensor | None
    dlast_bc: Tensor | None
    sources_bts: Sequence[Tensor]
    parameters_c: Sequence[Tensor]
    checkpoints_bkc: Tensor
    resets_bt: Tensor | None


def save(call: Call, results: Results) -> Saved:
    """Return what a backward pass reads, with nothing yet for the gradients that come in."""
    given = (call.sources_bts, call.parameters_c, results[2], call.resets_bt)
    return Saved(call.plan, call.backend, INCOMING, INCOMING, *given)


def adjacent(tensor_bts: Tensor) -> Tensor:
    """Return the tensor with its channels adjacent: as it is, or a copy."""
    return tensor_bts if tensor_bts.stride(-1) == 1 else tensor_bts.contiguous()


def gradient_room(plan: Plan, sources_bts: Sequence[Tensor], channels: int) -> list[Tensor]:
    """Return tensors for the sources' gradients, 0 in columns that the plan does not read."""
    found = []
    for number, source_bts in enumerate(sources_bts):
        read = sum(place.source == number for place in plan.slices()) * channels
        # `empty_like` takes half of the time of `new_empty` with a shape.
        make = torch.empty_like if read == source_bts.shape[2] else torch.zeros_like
        found.append(make(source_bts, memory_format=torch.contiguous_format))
    return found
