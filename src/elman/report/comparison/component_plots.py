"""The picture of what each component of a suite gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elman.report.comparison.axes import Axis, axis
from elman.report.comparison.components import Components, Effect, Gain
from elman.report.comparison.components_text import ordered, table_of
from elman.report.comparison.draw import Plot
from elman.report.comparison.pictures import GainLine, GainMark, Gains
from elman.report.comparison.tuned_text import unit_of

CAPTION = (
    "Filled: the gain at each arm's own best setting; hollow: at the published one. Right of zero "
    "the component helps. A bar is the gain's interval, and a gain whose bar leaves zero out is "
    "beyond noise."
)
# Intervals reach at most so many times as far as the farthest gain; longer ones are cut off.
_MOST_REACH = 3.0


def component_plots(components: Sequence[Components]) -> Iterator[Plot]:
    """Yield the picture of each sweep's components, if any has a gain."""
    for number, one in enumerate(components, 1):
        name = "components" if len(components) == 1 else f"components-{number}"
        effects = [effect for gain in one.gains for effect in (gain.best, gain.common)]
        if any(effect.value is not None for effect in effects):
            yield _plot(one, name, [effect for effect in effects if effect.value is not None])


def _plot(one: Components, name: str, effects: Sequence[Effect]) -> Plot:
    gains, unit = ordered(one), unit_of(one.sweep)
    families = [
        (family, [_line(gain) for gain in gains if gain.family == family])
        for family in dict.fromkeys(gain.family for gain in gains)
    ]
    x, cut = _axis(f"gain in {unit}", effects)
    picture = Gains(name, "Gain of each component", families, x)
    return Plot(picture, CAPTION + cut, table_of(one))


def _axis(label: str, effects: Sequence[Effect]) -> tuple[Axis, str]:
    """Return an axis for gains and intervals, and what to say of intervals that it cuts off."""
    values = [effect.value or 0.0 for effect in effects]
    ends = [end for effect in effects for end in effect.interval or ()]
    most = _MOST_REACH * max(map(abs, values)) or 1.0
    inside = [min(max(end, -most), most) for end in ends]
    cut = " Longer bars are cut off at the edge." if inside != ends else ""
    return axis(label, [0.0, *values, *inside]), cut


def _line(gain: Gain) -> GainLine:
    return GainLine(
        gain.component,
        _mark(gain, gain.best, "each arm's best setting"),
        _mark(gain, gain.common, "the published setting"),
    )


def _mark(gain: Gain, effect: Effect, where: str) -> GainMark | None:
    if effect.value is None or effect.interval is None:
        return None
    low, high = effect.interval
    tip = f"{gain.name} at {where}: {effect.value:+.4f} ({low:+.4f} to {high:+.4f})"
    return GainMark(effect.value, effect.interval, f"{tip}; {effect.outcome}")
