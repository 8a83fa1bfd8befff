"""The pictures of one probed run whose curves are its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import numpy as np

from elman.probe.result import DEFINITIONS, Change, LayerState, StatePart
from elman.report.comparison.axes import Axis, axis
from elman.report.comparison.blocks import Entry, Legend, table
from elman.report.comparison.draw import Plot
from elman.report.comparison.pictures import Curve, Lines
from elman.report.probe.pictures import CHANGED, bytes_axis, log_plot, meaning_of, sentence
from elman.report.probe.views import NONE, View, number, size

# Rows of layers on the page lie behind those of runs.
_FIRST_ROW = 1000
_OF_STATE = (
    ("norm", "Norm of the state", "norm"),
    ("saturated", "Saturated entries", "share over 0.95"),
    ("rank", "Effective rank", "effective rank"),
)
Values = Sequence[Sequence[float]]
"""Numbers of a layer: for each position, for each head."""


def legend_of(views: Sequence[View]) -> Legend:
    """Return the legend of the layers of all runs."""
    states = [view.result.state for view in views if view.result.state is not None]
    memories = [view.result.memory for view in views if view.result.memory is not None]
    changes = [change for one in memories for change in one.changes.values()]
    depths = [len(one.layers) for one in states] + [len(one.layers) for one in changes]
    entries = [Entry([_FIRST_ROW + n], n, f"layer {n}") for n in range(max(depths, default=0))]
    return Legend(entries)


def half_life_plots(view: View) -> list[Plot]:
    """Return what a change of some bytes does to each layer's state."""
    memory = view.result.memory
    if memory is None:
        return []
    return [_half_life_plot(view, memory.distances, *one) for one in memory.changes.items()]


def _half_life_plot(view: View, distances: Sequence[int], name: str, change: Change) -> Plot:
    curves, lines = [], []
    for layer, one in enumerate(change.layers):
        mean, low, high = (np.array(side)[1:] for side in (one.mean, one.low, one.high))
        curves.append(_curve(layer, distances, mean.tolist(), low.tolist(), high.tolist()))
        pairs = zip((0, *distances), one.mean, strict=True)
        lines += [(f"layer {layer}", size(at), number(value, ".3g")) for at, value in pairs]
        half_life = number(change.half_lives[layer], ",.1f")
        lines.append((f"layer {layer}", "half-life", half_life))
    title = f"{CHANGED[name]}: {view.name}"
    names = (f"memory-{name}-{view.row}", title, "distance, bytes", "change of the state")
    caption = f"{sentence(DEFINITIONS['memory.changes.layers'])} {meaning_of(name)}"
    return log_plot(names, curves, caption, table(("layer", "distance", "change"), lines))


def state_plots(view: View) -> Iterator[Plot]:
    """Yield norm, saturation, rank and decay of a run's states over time."""
    states = view.result.state
    if states is None:
        return
    mains = [(n, main) for n, layer in enumerate(states.layers) if (main := main_part(layer))]
    for key, title, upwards in _OF_STATE:
        own = [(n, values) for n, part in mains if (values := getattr(part, key))]
        definition = DEFINITIONS[f"state.layers.parts.{key}"]
        yield from _state_plot(view, own, (key, title, upwards), definition)
    decays = [(n, layer.decay) for n, layer in enumerate(states.layers) if layer.decay]
    names = ("decay", "Decay", "factor")
    yield from _state_plot(view, decays, names, DEFINITIONS["state.layers.decay"])


def main_part(layer: LayerState) -> StatePart | None:
    """Return the part of a layer's state that is drawn: S, or h, or the first one."""
    named = [layer.parts[name] for name in ("S", "h") if name in layer.parts]
    return next(iter([*named, *layer.parts.values()]), None)


def _state_plot(
    view: View, layers: Sequence[tuple[int, Values]], names: tuple[str, str, str], definition: str
) -> Iterator[Plot]:
    """Yield a plot over positions; none if no layer has such numbers."""
    states = view.result.state
    if not layers or states is None:
        return
    key, title, upwards = names
    sides: tuple[Callable[[Sequence[float]], float], ...] = (fmean, min, max)
    curves, lines = [], []
    for layer, values in layers:
        mean, low, high = ([side(heads) for heads in values] for side in sides)
        curves.append(_curve(layer, states.positions, mean, low, high))
        each = zip(states.positions, mean, low, high, strict=True)
        lines += [
            (f"layer {layer}", size(at), *(number(v, ".4g") for v in row)) for at, *row in each
        ]
    x = bytes_axis("position, bytes", states.positions[0], states.positions[-1])
    drawn = [side for one in curves for side in (one.y, *(one.band or ()))]
    y: Axis = axis(upwards, np.concatenate(drawn).tolist())
    picture = Lines(f"probe-{key}-{view.row}", f"{title}: {view.name}", curves, x, y)
    caption = f"{sentence(definition)} Lines: the mean of the heads; bands: all heads."
    heads = ("layer", "position", "mean of heads", "lowest", "highest")
    yield Plot(picture, caption, table(heads, lines))


def _curve(
    layer: int,
    x: Sequence[float],
    mean: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
) -> Curve:
    band = np.array(low), np.array(high)
    places, name = np.array(x, dtype=float), f"layer {layer}"
    return Curve(_FIRST_ROW + layer, name, True, places, np.array(mean), band=band, style=layer)


def no_decay(view: View) -> str:
    """Return the words for a cell that has no decay; empty if it has one or was not looked at."""
    states = view.result.state
    if states is None or any(layer.decay for layer in states.layers):
        return ""
    return f"{view.name}: no decay (cell {view.result.cell})"


def longest_half_life(view: View) -> str:
    """Return the longest half-life of the layers, as text: of replaced bytes, if there are any."""
    memory = view.result.memory
    if memory is None or not memory.changes:
        return NONE
    half_lives = next(memory.changes[name] for name in CHANGED if name in memory.changes).half_lives
    if any(one is None for one in half_lives):
        return f"> {size(memory.distances[-1])}"
    return number(max(one for one in half_lives if one is not None), ",.1f")
