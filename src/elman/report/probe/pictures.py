"""The pictures that compare probed runs, each with its definition and its numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elman.probe.result import DEFINITIONS, Estimates
from elman.report.comparison.axes import Axis, axis, log_axis
from elman.report.comparison.blocks import Table, table
from elman.report.comparison.draw import Plot
from elman.report.comparison.ink import COLORS
from elman.report.comparison.pictures import Curve, Lines
from elman.report.probe.views import View, number, size

DECADES = 1e-6
"""What is smaller than this share of the largest value is drawn at the bottom of its axis."""
# Before this position a bin has few bytes, and they are the hardest of a document.
_NOISY = 16
_BITS = "bits per byte"
CHANGED = {"replaced": "16 bytes are replaced", "removed": "16 bytes are removed"}
"""What a change does to the text, as a heading."""
_WAYS = ("reset", "frozen", "swapped")


def loss_plots(views: Sequence[View]) -> list[Plot]:
    """Return loss by position, and what a carried state and a longer context save."""
    found = [(view, view.result.loss) for view in views if view.result.loss is not None]
    if not found:
        return []
    by_position, saved, excess = [], [], []
    lines: list[tuple[str, ...]] = []
    contexts: list[tuple[str, ...]] = []
    for view, loss in found:
        dashed = f"{view.name}, reset every {size(view.result.trained_length)}"
        by_position.append(curve(view, view.name, loss.positions, loss.carried, band=False))
        by_position.append(curve(view, dashed, loss.positions, loss.reset, dashed=True))
        saved.append(curve(view, view.name, loss.positions, loss.saved))
        excess.append(curve(view, view.name, loss.contexts, loss.excess))
        resets = map(number, loss.reset.mean)
        carried = _lines(view, loss.positions, loss.carried)
        lines += [(*line[:3], other) for line, other in zip(carried, resets, strict=True)]
        contexts += _lines(view, loss.contexts, loss.by_context)
    differences = [
        line for view, loss in found for line in _lines(view, loss.positions, loss.saved)
    ]
    return [
        _over_bytes(
            ("loss-by-position", "Bits per byte by position", "position, bytes", _BITS),
            by_position,
            f"Lines: {DEFINITIONS['loss.carried']}. Dashed: {DEFINITIONS['loss.reset']}.",
            table(("run", "position", "carried", "reset"), lines),
            _NOISY,
        ),
        _over_bytes(
            ("saved", "Saved by carrying the state", "position, bytes", "bits saved per byte"),
            saved,
            sentence(DEFINITIONS["loss.saved"]),
            table(("run", "position", "bits saved", "low", "high"), differences),
        ),
        _over_bytes(
            ("excess", "Cost of a shorter context", "context, bytes", "bits more per byte"),
            excess,
            sentence(DEFINITIONS["loss.excess"]),
            table(("run", "context", _BITS, "low", "high"), contexts),
        ),
    ]


def memory_plots(views: Sequence[View]) -> list[Plot]:
    """Return what a change of some bytes does to the predictions behind it."""
    found = [(view, view.result.memory) for view in views if view.result.memory is not None]
    plots = []
    for change in dict.fromkeys(name for _, one in found for name in one.changes):
        own = [
            (view, one.distances, one.changes[change].kl)
            for view, one in found
            if change in one.changes
        ]
        plots.append(
            log_plot(
                (f"kl-{change}", CHANGED[change], "distance, bytes", "bits"),
                [curve(view, view.name, distances, kl) for view, distances, kl in own],
                f"{sentence(DEFINITIONS['memory.changes.kl'])} {meaning_of(change)}",
                table(
                    ("run", "distance", "bits", "low", "high"),
                    [line for each in own for line in _lines(*each, ".3g")],
                ),
            )
        )
    return plots


def meaning_of(change: str) -> str:
    """Return what a change of the text is, as a sentence."""
    _, *meanings = DEFINITIONS["memory.changes"].split(f"{change}: ")
    return f"{change.capitalize()}: {meanings[0].split('. ')[0]}." if meanings else ""


def recall_plots(views: Sequence[View]) -> list[Plot]:
    """Return the bits that are saved, a picture for each kind of what was written."""
    found = [(view, view.result.recall) for view in views if view.result.recall is not None]
    kinds = dict.fromkeys((kind.pairs, kind.copies) for _, one in found for kind in one.kinds)
    plots = []
    for pairs, copies in kinds:
        own = [
            (view, one.distances, kind.saved)
            for view, one in found
            for kind in one.kinds
            if (kind.pairs, kind.copies) == (pairs, copies)
        ]
        name = f"recall-{pairs}-{copies}"
        title = f"{pairs} pairs, one of them asked for" if pairs > 1 else "One pair"
        title += f", written {copies} times" if copies > 1 else ""
        lines = [line for each in own for line in _lines(*each)]
        plots.append(
            _over_bytes(
                (name, title, "distance, bytes", "bits saved per byte"),
                [curve(view, view.name, distances, saved) for view, distances, saved in own],
                sentence(DEFINITIONS["recall.kinds.saved"]),
                table(("run", "distance", "bits saved", "low", "high"), lines),
            )
        )
    return plots


def ablation_plots(views: Sequence[View]) -> list[Plot]:
    """Return the bits that are lost without one layer's state, a picture for each way."""
    found = [(view, view.result.ablation) for view in views if view.result.ablation is not None]
    plots = []
    for way in _WAYS if found else ():
        curves, lines = [], []
        for view, one in found:
            lost: Estimates = getattr(one, way)
            layers = [float(n) for n in range(len(lost.mean))]
            curves.append(curve(view, view.name, layers, lost))
            lines += _lines(view, layers, lost)
        depth = max(one.x.size for one in curves)
        x = Axis("layer", -0.5, depth - 0.5, False, ticks_of_layers(depth))
        sides = [side for one in curves for side in (one.y, *(one.band or ()))]
        y = axis("bits lost per byte", np.concatenate(sides).tolist(), from_zero=True)
        title = f"Without a layer's state: {way}"
        picture = Lines(f"probe-ablation-{way}", title, curves, x, y, dotted=True)
        caption = sentence(DEFINITIONS[f"ablation.{way}"])
        heads = ("run", "layer", "bits lost", "low", "high")
        plots.append(Plot(picture, caption, table(heads, lines)))
    return plots


def ticks_of_layers(depth: int) -> tuple[tuple[float, str], ...]:
    """Return a tick for some of the layers."""
    return tuple((float(n), str(n)) for n in range(0, depth, 1 + depth // 12))


Names = tuple[str, str, str, str]
"""Of a plot: its name in files, its heading, and what is across and upwards."""


def _over_bytes(
    names: Names, curves: Sequence[Curve], caption: str, numbers: Table, first: float = 0.0
) -> Plot:
    """Return a plot over positions or distances, which are on a logarithmic axis.

    What lies before ``first`` does not stretch the axis that goes upwards.
    """
    settled = [
        value
        for one in curves
        for side in (one.y, *(one.band or ()))
        for value in side[one.x >= min(first, one.x[-1])]
    ]
    return _plot(names, curves, axis(names[3], settled), caption, numbers)


def log_plot(names: Names, curves: Sequence[Curve], caption: str, numbers: Table) -> Plot:
    """Return the same with what is upwards on a logarithmic axis, too."""
    high = max(max(float(one.y.max()) for one in curves), 1e-30)
    floor = high * DECADES
    low = min((float(y) for one in curves for y in one.y if y > floor), default=floor)
    drawn = [_above(one, max(low, floor)) for one in curves]
    return _plot(names, drawn, log_axis(names[3], max(low, floor), high), caption, numbers)


def _above(one: Curve, floor: float) -> Curve:
    band = None if one.band is None else (one.band[0].clip(floor), one.band[1].clip(floor))
    return Curve(one.row, one.name, one.ok, one.x, one.y.clip(floor), band=band, style=one.style)


def _plot(names: Names, curves: Sequence[Curve], y: Axis, caption: str, numbers: Table) -> Plot:
    low, high = min(one.x[0] for one in curves), max(one.x[-1] for one in curves)
    name, title, across, _ = names
    picture = Lines(f"probe-{name}", title, curves, bytes_axis(across, low, high), y)
    return Plot(picture, caption, numbers)


def curve(
    view: View,
    name: str,
    x: Sequence[float],
    y: Estimates,
    *,
    dashed: bool = False,
    band: bool = True,
) -> Curve:
    """Return a curve of a run, with the interval as its band; a dashed one has no band."""
    mean, *ends = (np.array(one) for one in (y.mean, y.low, y.high))
    style = view.row % COLORS + COLORS * dashed
    around = (ends[0], ends[1]) if band and not dashed else None
    return Curve(view.row, name, True, np.array(x, dtype=float), mean, band=around, style=style)


def bytes_axis(label: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis of bytes with powers of two as its ticks."""
    end = max(high, 2 * low)
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(end)))
    ticks = tuple((2.0**n, size(2**n)) for n in range(first, last + 1, max(1, (last - first) // 6)))
    return Axis(label, low / 1.05, end * 1.05, True, ticks)


def sentence(definition: str) -> str:
    """Return a definition as a sentence."""
    return f"{definition[0].upper()}{definition[1:]}."


def _lines(
    view: View, x: Sequence[float], y: Estimates, form: str = ".4f"
) -> list[tuple[str, ...]]:
    each = zip(x, y.mean, y.low, y.high, strict=True)
    return [(view.name, size(at), *(number(one, form) for one in row)) for at, *row in each]
