"""The layers of a model side by side: parts of the time follow each other through them.

A recurrence walks from step to step. With few rows it keeps few of a GPU's multiprocessors busy,
and the recurrences of all layers follow each other. But the second layer can walk through the first
part of the time while the first layer walks through the second part. So every layer has a stream of
its own, and the parts pass through the layers like a wave. The result is the same, up to the order
of sums over time in the gradients of the weights. Autograd runs the backward pass in reverse on the
same streams.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from elman.models.state import State

LEAST_STEPS = 1024
"""Steps of a part, at least: the launches and the products of shorter ones cost too much."""
MOST_PARTS, MOST_CALLS = 16, 160
"""Parts at most, and calls of layers in all parts (docs/performance.md, 2026-11-28)."""
WORTH = 1.5
"""How many calls a GPU has to run at once, at least."""


class Flow(NamedTuple):
    """What goes from layer to layer: the residual stream, and what is yet to be added to it."""

    stream_btd: Tensor
    branch_btd: Tensor | None


Layer = Callable[[Flow, State | None, Tensor | None], tuple[Flow, State]]
"""Takes the flow, the state before it and its resets; returns the flow and the state behind it."""


def parts_of(steps: int, layers: int, calls_at_once: float) -> int:
    """Return into how many parts the time of a pass is cut; 1 leaves it whole.

    Args:
        steps: T.
        layers: Layers of the model.
        calls_at_once: How many layers' recurrences the GPU runs as fast as one.
    """
    if min(layers, calls_at_once) < WORTH:
        return 1
    return max(1, min(MOST_PARTS, MOST_CALLS // layers, steps // LEAST_STEPS))


def run(
    layers: Sequence[Layer],
    x_btd: Tensor,
    states: Sequence[State | None],
    resets_bt: Tensor | None,
    parts: int,
) -> tuple[list[Flow], list[State]]:
    """Run layers over time in parts, on a GPU each layer on its own stream.

    Args:
        layers: The layers.
        x_btd: The residual stream.
        states: The state of every layer before the first step.
        resets_bt: As of :meth:`~elman.models.language_model.LanguageModel.forward`.
        parts: How many parts, T at most.

    Returns:
        The flow behind the last layer, part by part, and the states after the last step.
    """
    size = -(-x_btd.shape[1] // parts)
    flows = [Flow(part_btd, None) for part_btd in x_btd.split(size, dim=1)]
    resets = [None] * len(flows) if resets_bt is None else resets_bt.split(size, dim=1)
    carried = list(states)
    lanes = _Lanes(x_btd.device, len(layers))
    for layer, part in _wave(len(layers), len(flows)):
        with lanes.enter(layer, [*flows[part], resets[part]]):
            flows[part], carried[layer] = layers[layer](flows[part], carried[layer], resets[part])
    lanes.join([tensor for flow in flows for tensor in flow])
    return flows, [state for state in carried if state is not None]


def _wave(layers: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield layer and part of every call, such that each finds what it needs.

    Of what may run at once the last layer comes first: the newest work of the layer before it is
    then just what it waits for.
    """
    for wave in range(layers + parts - 1):
        for layer in reversed(range(layers)):
            if 0 <= wave - layer < parts:
                yield layer, wave - layer


class _Lanes:
    """The streams of the layers; on a CPU there are none, and calls follow each other."""

    def __init__(self, device: torch.device, layers: int) -> None:
        self._streams: tuple[torch.cuda.Stream, ...] = ()
        if device.type == "cuda":
            self._outside = torch.cuda.current_stream(device)
            self._streams = _streams(self._outside.device_index, layers)
            for stream in self._streams:
                stream.wait_stream(self._outside)

    def enter(
        self, layer: int, read: Sequence[Tensor | None]
    ) -> torch.cuda.StreamContext | nullcontext[None]:
        """Return a context in which a layer runs behind the one before it.

        Args:
            layer: Its number.
            read: What it reads of others.
        """
        if not self._streams:
            return nullcontext()
        stream = self._streams[layer]
        if layer:
            stream.wait_stream(self._streams[layer - 1])
        _keep_for(stream, read)
        return torch.cuda.stream(stream)

    def join(self, read: Sequence[Tensor | None]) -> None:
        """Let what follows wait for all layers; it reads these tensors."""
        for stream in self._streams:
            self._outside.wait_stream(stream)
        if self._streams:
            _keep_for(self._outside, read)


def _keep_for(stream: torch.cuda.Stream, tensors: Sequence[Tensor | None]) -> None:
    """Keep the memory of tensors, even if they are dropped, until a stream has read them."""
    for tensor in tensors:
        if tensor is not None:
            tensor.record_stream(stream)


@cache
def _streams(device: int, layers: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(layers))
