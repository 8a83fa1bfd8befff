"""The pictures of a probe, each with its definition and its numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elman.probe.result import DEFINITIONS, Estimates
from elman.report.comparison.blocks import Table, table
from elman.report.comparison.draw import Plot
from elman.report.comparison.ink import COLORS
from elman.report.comparison.pictures import Axis, Curve, Lines, axis
from elman.report.probe.views import View, number, size

# Before this position a bin has few bytes, and they are the hardest of a document.
_NOISY = 16


def loss_plots(views: Sequence[View]) -> list[Plot]:
    """Return loss by position, and by context on the same bytes."""
    found = [(view, view.result.loss) for view in views if view.result.loss is not None]
    if not found:
        return []
    by_position, by_context, lines, contexts = [], [], [], []
    for view, loss in found:
        by_position.append(curve(view, view.name, loss.positions, loss.carried))
        dashed = f"{view.name}, reset every {size(view.result.trained_length)}"
        by_position.append(curve(view, dashed, loss.positions, loss.reset, dashed=True))
        by_context.append(curve(view, view.name, loss.contexts, loss.by_context))
        pairs = zip(loss.positions, loss.carried.mean, loss.reset.mean, strict=True)
        lines += [(view.name, size(at), number(a), number(b)) for at, a, b in pairs]
        each = zip(loss.contexts, *_of(loss.by_context), strict=True)
        contexts += [(view.name, size(at), *map(number, row)) for at, *row in each]
    return [
        plot(
            "probe-loss-by-position",
            "Bits per byte by position",
            by_position,
            "position in the document, bytes",
            f"Carried: {DEFINITIONS['loss.carried']}. Dashed: {DEFINITIONS['loss.reset']}.",
            table(("run", "position", "carried", "reset"), lines),
        ),
        plot(
            "probe-loss-by-context",
            "Bits per byte of the same bytes by context",
            by_context,
            "context, bytes",
            f"{_sentence(DEFINITIONS['loss.by_context'])} The band is the interval.",
            table(("run", "context", "bits per byte", "low", "high"), contexts),
        ),
    ]


def plot(
    name: str,
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    caption: str,
    numbers: Table,
    y_label: str = "bits per byte",
) -> Plot:
    """Return a plot over positions or distances, which are on a logarithmic axis."""
    settled = [c for curve in curves for c in curve.y[curve.x >= min(_NOISY, curve.x[-1])]]
    low, high = min(c.x[0] for c in curves), max(c.x[-1] for c in curves)
    picture = Lines(name, title, curves, bytes_axis(x_label, low, high), axis(y_label, settled))
    return Plot(picture, caption, numbers)


def curve(
    view: View, name: str, x: Sequence[float], y: Estimates, *, dashed: bool = False
) -> Curve:
    """Return a curve of a run with its interval; a dashed one has no band."""
    mean, low, high = (np.array(one) for one in _of(y))
    style = view.row % COLORS + COLORS * dashed
    band = None if dashed else (low, high)
    return Curve(view.row, name, True, np.array(x, dtype=float), mean, band=band, style=style)


def bytes_axis(label: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis of bytes with powers of two as its ticks."""
    end = max(high, 2 * low)
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(end)))
    step = max(1, (last - first + 6) // 7)
    ticks = tuple((float(2**n), size(2**n)) for n in range(first, last + 1, step))
    return Axis(label, low / 1.05, end * 1.05, True, ticks)


def _of(one: Estimates) -> tuple[list[float], list[float], list[float]]:
    return one.mean, one.low, one.high


def _sentence(definition: str) -> str:
    return f"{definition[0].upper()}{definition[1:]}."
