"""Cutting time into chunks of equal length and a rest.

Shape legend: t time (second axis of every sequence here); the other axes belong to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Chunks = Callable[[Sequence[Tensor], Tensor, int], tuple[Tensor, Tensor]]
"""``run(inputs, state, length) -> (outputs, state)`` over a sequence cut into chunks."""


def run_in_chunks(
    run: Chunks, inputs: Sequence[Tensor], state: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Run over time in chunks of ``length`` steps. The rest is one shorter chunk.

    To pad the rest to a whole chunk would compute up to twice as much.

    Args:
        run: The computation over equal chunks.
        inputs: Sequences of equal length T >= 1, time second.
        state: State before the first step.
        length: Steps of a chunk, at least 1.

    Returns:
        Outputs of all steps, time second, and the state after the last one.
    """
    steps = inputs[0].shape[1]
    chunked = steps // length * length
    if chunked in (0, steps):
        return run(inputs, state, min(length, steps))
    parts = [one.split([chunked, steps - chunked], dim=1) for one in inputs]
    outputs, state = run([whole for whole, _ in parts], state, length)
    rest, state = run([left for _, left in parts], state, steps - chunked)
    return torch.cat([outputs, rest], dim=1), state
