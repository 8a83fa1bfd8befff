"""The axes of pictures: where they begin and end, and their ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_TICKS = 6
# Values over at least this range may be on a logarithmic axis.
_LOG_RANGE = 7.9


@dataclass(frozen=True)
class Axis:
    """One axis.

    Args:
        label: What it measures, with its unit.
        low: Where it begins.
        high: Where it ends.
        log: Whether it is logarithmic; ``low`` is above 0 then.
        own_ticks: Ticks with their texts, instead of round numbers: swept values, or names.
    """

    label: str
    low: float
    high: float
    log: bool = False
    own_ticks: tuple[tuple[float, str], ...] = ()

    @property
    def ticks(self) -> list[float]:
        """Round numbers along it."""
        raw = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at the beginning and 1 at the end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def shown_ticks(self) -> list[tuple[float, str]]:
        """The ticks with their texts, all in one unit."""
        if self.own_ticks:
            return list(self.own_ticks)
        ticks = self.ticks
        top = max(map(abs, ticks), default=0.0)
        scale, unit = next(
            ((s, u) for s, u in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if top >= 10 * s),
            (1.0, ""),
        )
        gap = (ticks[1] - ticks[0]) / scale if len(ticks) > 1 else 1.0
        digits = max(0, -math.floor(math.log10(gap) + 1e-9)) if gap > 0 else 0
        return [(tick, f"{tick / scale:,.{digits}f}{unit}") for tick in ticks]


def axis(label: str, values: Sequence[float], *, from_zero: bool = False) -> Axis:
    """Return an axis that holds all of some finite values, with a margin."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(0.0, low) if from_zero else low
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    margin = 0.04 * (high - low)
    return Axis(label, low if from_zero else low - margin, high + margin)


def axis_of_values(label: str, texts: Sequence[str]) -> Axis:
    """Return an axis with a tick at each number that was typed for a key.

    It is logarithmic if the values are spread more evenly by their ratios than by their
    differences, as 1e-4, 3e-4, 1e-3 are.

    Args:
        label: The key.
        texts: Different numbers, as typed, at least one.
    """
    ticks = sorted((float(text), text) for text in texts)
    values = [value for value, _ in ticks]
    if is_log(values):
        reach = (values[-1] / values[0]) ** 0.05
        return Axis(label, values[0] / reach, values[-1] * reach, True, tuple(ticks))
    plain = axis(label, values)
    return Axis(label, plain.low, plain.high, False, tuple(ticks))


def log_axis(label: str, low: float, high: float, *, zero: bool = False) -> Axis:
    """Return a logarithmic axis with round ticks, and a margin at its ends.

    Args:
        label: What it measures.
        low: The smallest value, above 0.
        high: The largest one.
        zero: Whether it has a place for 0, at its beginning; see :func:`on_log_axis`.
    """
    reach = max(high / low, 1.5) ** 0.05
    start, end = low / reach, high * reach
    ticks = [(tick, f"{tick:g}") for tick in _log_ticks(start, end)]
    if zero:
        gap = (end / start) ** 0.12
        start /= gap * reach
        ticks = [(start * reach, "0"), *ticks]
    return Axis(label, start, end, True, tuple(ticks))


def on_log_axis(axis: Axis, value: float) -> float:
    """Return the place of a value on a logarithmic axis: that of 0 is its first tick."""
    return value if value > 0 else axis.own_ticks[0][0]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers: powers of ten, with 2 and 5 or 3 between them if they are few."""
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 4.2 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{step}e{power}") for power in powers for step in steps]
    return [tick for tick in every if low <= tick <= high]


def is_log(values: Sequence[float]) -> bool:
    """Whether some ascending, different values belong on a logarithmic axis."""
    if len(values) < 2 or values[0] <= 0 or values[-1] / values[0] < _LOG_RANGE:
        return False
    logs = [math.log(value) for value in values]
    return _smallest_gap(logs) >= _smallest_gap(values)


def _smallest_gap(values: Sequence[float]) -> float:
    """Return the smallest gap between neighbors as a share of the whole."""
    gaps = [b - a for a, b in pairwise(values)]
    return min(gaps) / (values[-1] - values[0])


def axis_of_names(label: str, names: Sequence[str]) -> Axis:
    """Return an axis on which name number n has the place n."""
    return Axis(label, -0.5, len(names) - 0.5, False, tuple((n, s) for n, s in enumerate(names)))
