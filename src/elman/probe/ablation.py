"""Ablation: the bits that are lost without one layer's state.

Shape legend: b rows, t positions, d documents or model width, l layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from elman.models.state import State
from elman.probe.chunks import Reader, States, Text, walk
from elman.probe.intervals import Floats, estimates
from elman.probe.result import Ablation

SCORED = 512
"""Bytes behind the intervention that are scored, at most."""
_CONTEXT = 1024
"""Bytes before it, at least, or half of the document."""
_STATE_BYTES = 2**28
"""Bytes of the states that a layer has at a time, one for each position."""


def measure(reader: Reader, text: Text) -> Ablation:
    """Return the bits per byte that are lost if one layer's state is reset, frozen or swapped.

    Raises:
        NotFiniteError: a state or a prediction is not finite.
    """
    begin, end = _places(reader.trained, text.length)
    *_, before = walk(reader, text.read, text.documents, begin)
    states, layers = before.states, range(len(before.states))
    plain_d = _bits(reader, text, states, begin, end)
    lost: dict[str, list[Floats]] = {"reset": [], "frozen": [], "swapped": []}
    for layer in layers:
        for way, frozen in (("reset", False), ("frozen", True)):
            with _replaced(reader, layer, EachStep(reader.model.layers[layer], frozen)):
                lost[way].append(_bits(reader, text, states, begin, end) - plain_d)
        swapped = [_rolled(one) if n == layer else one for n, one in enumerate(states)]
        lost["swapped"].append(_bits(reader, text, swapped, begin, end) - plain_d)
    found = {way: estimates(np.stack(each, axis=1)) for way, each in lost.items()}
    return Ablation(context=begin, scored=end - begin, whole=float(plain_d.mean()), **found)


def work(trained: int, length: int, documents: int, layers: int) -> int:
    """Return how many positions the model reads."""
    begin, end = _places(trained, length)
    return documents * (begin + (1 + 3 * layers) * (end - begin))


class EachStep(nn.Module):
    """A layer that takes every step from one and the same state: each a row of its own.

    Args:
        layer: The layer.
        frozen: Whether that is the state that it is given; otherwise it is zero.
    """

    def __init__(self, layer: nn.Module, frozen: bool) -> None:
        super().__init__()
        self._layer, self._frozen = layer, frozen

    def forward(self, x_btd: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the outputs, and the state that was given."""
        batch, steps, _ = x_btd.shape
        rows_r1d = x_btd.reshape(batch * steps, 1, -1)
        owner_r = torch.arange(batch, device=x_btd.device).repeat_interleave(steps)
        size = sum(part[0].numel() * part.element_size() for part in state.values())
        at_once = max(1, _STATE_BYTES // max(size, x_btd[0, 0].nbytes))
        if getattr(self._layer, "exchanges", False):
            at_once = len(rows_r1d)
        outputs = []
        for rows, owners in zip(rows_r1d.split(at_once), owner_r.split(at_once), strict=True):
            own = {key: part[owners] for key, part in state.items()} if self._frozen else None
            outputs.append(self._layer(rows, own)[0])
        return torch.cat(outputs).reshape(x_btd.shape), state


def _places(trained: int, length: int) -> tuple[int, int]:
    """Return where the intervention is, and where the scored bytes end."""
    begin = min(length // 2, max(trained, _CONTEXT))
    return begin, min(length, begin + SCORED)


def _bits(reader: Reader, text: Text, states: States, begin: int, end: int) -> Floats:
    """Return bits per byte of each document from a position on."""
    nats_d = torch.zeros(text.documents, dtype=torch.float64, device=reader.device)
    for chunk in walk(reader, text.read, text.documents, end, states=states, begin=begin):
        nats_d += chunk.nats_bt.double().sum(dim=1)
    bits: Floats = nats_d.cpu().numpy() / (end - begin) / math.log(2)
    return bits


def _rolled(state: State) -> State:
    """Return a state in which every document has that of another."""
    return {name: part.roll(1, dims=0) for name, part in state.items()}


@contextmanager
def _replaced(reader: Reader, layer: int, other: nn.Module) -> Iterator[None]:
    """Run the model with another module in place of a layer."""
    layers = reader.model.layers
    own = layers[layer]
    layers[layer] = other
    try:
        yield
    finally:
        layers[layer] = own
