"""The state itself: how large, how saturated, of which rank, and how it decays, over time.

Shape legend: d documents, h heads, r rows and c columns of a matrix, e entries of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from elman.evaluation.validation import autocast
from elman.models.cells.common.mixer import Mixer
from elman.models.state import STORED, State
from elman.probe.chunks import Reader, Text, powers, walk
from elman.probe.result import LayerState, StatePart, States

SATURATED = 0.95
"""An entry of a larger magnitude is saturated: tanh has no room beyond it."""
GROWS, DIES = 2.0, 0.5
"""A head grows, or dies, if its norm changes by these factors after the trained length."""
_FIRST = 16
# The rank of a matrix takes a decomposition, so that of a few documents is enough.
_RANKED = 4


def measure(reader: Reader, text: Text) -> States:
    """Return what each layer's state is at logarithmic positions.

    Raises:
        NotFiniteError: a state or a prediction is not finite.
    """
    usual = min(reader.trained, text.length)
    positions = sorted({*powers(_FIRST, text.length), usual, text.length})
    model_layers = list(reader.model.layers)
    layers = [LayerState(bytes=0, parts={}, decay=None) for _ in model_layers]
    with _inputs_of(model_layers) as inputs:
        for chunk in walk(reader, text.read, text.documents, text.length, stops=positions):
            if chunk.end in positions:
                for number, layer in enumerate(layers):
                    _add(layer, chunk.states[number])
                    if number in inputs:
                        decay = _decay_of(reader, model_layers[number], inputs[number])
                        layer.decay = None if decay is None else [*(layer.decay or []), decay]
            inputs.clear()
    place = positions.index(usual)
    for layer in layers:
        for part in layer.parts.values():
            pairs = zip(part.norm[place], part.norm[-1], strict=True)
            part.growth = [end / max(begin, 1e-30) for begin, end in pairs]
    growths = [g for one in layers for part in one.parts.values() for g in part.growth]
    return States(
        positions=positions,
        layers=layers,
        bytes=sum(layer.bytes or 0 for layer in layers),
        heads=len(growths),
        growing=sum(growth > GROWS for growth in growths),
        dying=sum(growth < DIES for growth in growths),
    )


def effective_rank(matrices_rc: Tensor) -> Tensor:
    """Return exp(entropy) of the singular values as shares of their sum; 0 for a zero matrix.

    The effective rank of Roy and Vetterli (2007).

    Args:
        matrices_rc: Matrices [..., r, c] in any dtype.
    """
    values = torch.linalg.svdvals(matrices_rc.double().cpu())
    total = values.sum(dim=-1, keepdim=True)
    shares = values / total.clamp_min(1e-300)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum(dim=-1)
    return torch.where(total.squeeze(-1) > 0, entropy.exp(), 0.0)


def _add(layer: LayerState, state: State) -> None:
    """Add what a layer's state is now; its bytes are those of one document."""
    layer.bytes = sum(part[0].numel() * part.element_size() for part in state.values())
    vectors = {part.shape[1] for part in state.values() if part.ndim == 4}
    for name, part in state.items():
        if name == "conv":
            continue
        heads = _by_head(part, vectors, name)
        flat_dhe = heads.double().flatten(2)
        record = layer.parts.setdefault(name, StatePart(heads=heads.shape[1]))
        record.norm.append(flat_dhe.norm(dim=-1).mean(dim=0).tolist())
        record.saturated.append((flat_dhe.abs() > SATURATED).double().mean(dim=(0, 2)).tolist())
        if heads.ndim == 4 and name not in STORED:
            ranks = effective_rank(heads[:_RANKED]).mean(dim=0).tolist()
            record.rank = [*(record.rank or []), ranks]


def _by_head(part: Tensor, heads: set[int], name: str) -> Tensor:
    """Return a part as [d, h, e] or [d, h, r, c]: a matrix without heads is one head.

    Vectors of a layer that has matrices by head are by head, too.
    """
    by_head = part.ndim == 4 or (part.ndim == 3 and part.shape[1] in heads)
    return part if by_head else part.unsqueeze(1)


@contextmanager
def _inputs_of(layers: list[nn.Module]) -> Iterator[dict[int, tuple[Any, ...]]]:
    """Yield the arguments of the last call of each layer that tells its decay, by its number."""
    inputs: dict[int, tuple[Any, ...]] = {}

    def note(number: int) -> Any:
        def hook(layer: nn.Module, given: tuple[Any, ...]) -> None:
            inputs[number] = given

        return hook

    hooks = [
        layer.register_forward_pre_hook(note(number))
        for number, layer in enumerate(layers)
        if getattr(type(layer), "applied_decay", Mixer.applied_decay) is not Mixer.applied_decay
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def _decay_of(reader: Reader, layer: nn.Module, inputs: tuple[Any, ...]) -> list[float] | None:
    """Return the mean decay of each head over the positions of a chunk; None without one."""
    tell: Callable[..., Tensor | None] = layer.applied_decay  # type: ignore[assignment]
    with torch.no_grad(), autocast(reader.device, reader.precision):
        decay_bth = tell(*inputs)
    if decay_bth is None:
        return None
    by_head = decay_bth.double().mean(dim=(0, 1))
    mean: list[float] = by_head.reshape(len(by_head), -1).mean(dim=1).tolist()
    return mean
