"""The reference time loop: segments of time, recomputed in the backward pass when they are large.

Shape legend: t time (first axis of every sequence here); the other axes belong to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from elman.ops.common.transforms import transformed

SAVED_STATES_LIMIT = 256 * 2**20
"""Bytes of states that one call may keep for its backward pass without recomputation.

Below it a call runs as one segment at full speed. Above it a call keeps only the states between
segments of about sqrt(T) steps, and runs the forward pass a second time. The limit is per call, so
per layer and micro-batch."""

Segment = Callable[..., tuple[Tensor, Tensor]]
"""``segment(state, *inputs_t) -> (outputs_t, state)``: the plain loop over some steps of time."""


def segment_length(steps: int, step_bytes: int) -> int:
    """Return how many steps a segment has when each step keeps ``step_bytes`` bytes of state."""
    if steps * step_bytes <= SAVED_STATES_LIMIT:
        return steps
    return math.ceil(math.sqrt(steps))


def scan(segment: Segment, state: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Run ``segment`` over all of time; its gradient comes from autograd.

    Args:
        segment: The loop over consecutive steps. It must be a pure function of its arguments.
        state: State before the first step; one step's saved state has its size.
        inputs: Sequences of equal length T >= 1, time first.

    Returns:
        Outputs of all steps, time first, and the state after the last one. With gradients enabled
        and more than SAVED_STATES_LIMIT bytes of states, each segment is computed again in the
        backward pass and peak memory grows with sqrt(T) states instead of T.
    """
    steps = inputs[0].shape[0]
    length = segment_length(steps, state.numel() * state.element_size())
    # torch.func's transforms know no recomputation.
    if length == steps or not torch.is_grad_enabled() or transformed():
        return segment(state, *inputs)
    outputs = []
    # With split, and not with an index, the gradient of all slices is one concatenation.
    for slices in zip(*(torch.split(sequence, length) for sequence in inputs), strict=True):
        output, state = checkpoint(
            segment, state, *slices, use_reentrant=False, preserve_rng_state=False
        )
        outputs.append(output)
    return torch.cat(outputs), state


def states_before(after_bt: Tensor, first_b: Tensor, resets_bt: Tensor | None) -> Tensor:
    """Return the state before each step, in the dtype of the first one.

    Args:
        after_bt: The state after each step: batch, time, and the axes of a state.
        first_b: State before the first step.
        resets_bt: Where the state before a step is zero; None is nowhere.
    """
    before_bt = torch.cat([first_b.unsqueeze(1), after_bt[:, :-1].to(first_b.dtype)], dim=1)
    if resets_bt is None:
        return before_bt
    return before_bt.masked_fill(resets_bt.view(*resets_bt.shape, *[1] * (first_b.ndim - 1)), 0)
