"""The space that is searched for one arm: its points, and how its ranges grow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from elman.sections.tune import SHAPE, Leaf, TuneConfig, Value
from elman.tuning.trials import Arm

Bounds = Mapping[str, tuple[float, float]]
"""The smallest and largest value of each key with an order."""
Values = dict[str, Value]

_DIGITS = 4
"""Significant digits of a value that is tried: a rate reads as 0.001334."""
_SOBOL_POINTS = 10
"""The quasi-random sequence has two to this power points."""


@dataclass(frozen=True)
class Space:
    """What may be tried for one arm.

    Args:
        leaves: The settings by key.
        shapes: The shapes of the arm's model, if those are searched.
        whole: The keys that take whole numbers, as the arm's own values are.
    """

    leaves: Mapping[str, Leaf]
    shapes: tuple[str, ...] = ()
    whole: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: TuneConfig, arm: Arm) -> Space:
        """Return the space of an arm."""
        whole = {key for key, value in arm.published.items() if type(value) is int}
        return cls(config.leaves, arm.shapes, frozenset(whole))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a point, in order."""
        return (*self.leaves, *((SHAPE,) if self.shapes else ()))

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The bounds of each key that has an order, before any growth."""
        return {key: ends for key, leaf in self.leaves.items() if (ends := leaf.bounds)}

    def typed(self, values: Mapping[str, Value]) -> Values:
        """Return a point with whole numbers where its keys have them: Optuna's are all floats."""
        return {
            key: round(float(value)) if key in self.whole else value
            for key, value in values.items()
        }

    @property
    def is_continuous(self) -> bool:
        """Whether every key is a range without steps."""
        return not self.shapes and all(
            leaf.is_range and leaf.step is None for leaf in self.leaves.values()
        )

    def choices(self, key: str) -> list[Value] | None:
        """Return the values of a key that has a list of them; None for a range."""
        if key == SHAPE:
            return list(self.shapes)
        leaf = self.leaves[key]
        return None if leaf.values is None else list(leaf.values)

    def at(self, place: Sequence[float], bounds: Bounds) -> Values:
        """Return the point at a place of the unit cube.

        Args:
            place: A number from 0 to below 1 for each key.
            bounds: The bounds of the ranges.
        """
        return {
            key: self._value(key, share, bounds)
            for key, share in zip(self.keys, place, strict=True)
        }

    def snapped(self, key: str, number: float, bounds: Bounds) -> Value:
        """Return the value of a range that is nearest to a number, with few digits."""
        leaf, (low, high) = self.leaves[key], bounds[key]
        if leaf.step is not None:
            first = float(leaf.low or 0)
            number = first + leaf.step * round((number - first) / leaf.step)
        number = min(max(number, low), high)
        if key in self.whole:
            return round(number)
        return min(max(float(f"{number:.{_DIGITS}g}"), low), high)

    def axis(self, key: str, points: int, bounds: Bounds) -> list[Value]:
        """Return the values of a key in a grid.

        Args:
            key: The key.
            points: How many values a range without steps has.
            bounds: The bounds of the ranges.
        """
        if (values := self.choices(key)) is not None:
            return values
        leaf, (low, high) = self.leaves[key], bounds[key]
        if leaf.step is not None:
            points = int((high - low) / leaf.step + 1e-9) + 1
            return [self.snapped(key, low + n * leaf.step, bounds) for n in range(points)]
        shares = [n / (points - 1) for n in range(points)]
        return [self.snapped(key, _between(leaf, low, high, share), bounds) for share in shares]

    def _value(self, key: str, share: float, bounds: Bounds) -> Value:
        if (values := self.choices(key)) is not None:
            return values[min(int(share * len(values)), len(values) - 1)]
        return self.snapped(key, _between(self.leaves[key], *bounds[key], share), bounds)


def quasi_random(space: Space, bounds: Bounds, seed: int, index: int) -> Values:
    """Return a point of a scrambled Sobol sequence; the same for every arm.

    Source: I. Sobol, 1967; A. Owen, Randomly permuted (t,m,s)-nets, 1995, as in scipy.

    Args:
        space: The space.
        bounds: The bounds of its ranges.
        seed: Seed of the scrambling.
        index: Which point, from 0.
    """
    points = _sobol(len(space.keys), seed)
    return space.at(points[index % len(points)], bounds)


@cache
def _sobol(dimensions: int, seed: int) -> list[list[float]]:
    from scipy.stats import qmc

    sequence = qmc.Sobol(dimensions, scramble=True, rng=seed)
    found: list[list[float]] = sequence.random_base2(_SOBOL_POINTS).tolist()
    return found


def grid(space: Space, bounds: Bounds, trials: int) -> list[Values]:
    """Return the points of a grid: all lists and steps, and of ranges as many as trials allow.

    Args:
        space: The space.
        bounds: The bounds of its ranges.
        trials: How many points there may be; at least two values of each range are taken.
    """
    free = [key for key in space.keys if _is_free(space, key)]
    fixed = math.prod(len(space.axis(key, 2, bounds)) for key in space.keys if key not in free)
    points = 2
    while free and fixed * (points + 1) ** len(free) <= trials:
        points += 1
    axes = [space.axis(key, points, bounds) for key in space.keys]
    return [dict(zip(space.keys, values, strict=True)) for values in itertools.product(*axes)]


def _is_free(space: Space, key: str) -> bool:
    return space.choices(key) is None and space.leaves[key].step is None


def _between(leaf: Leaf, low: float, high: float, share: float) -> float:
    """Return the number at a share of the way, evenly in the logarithm if that is asked for."""
    if leaf.log:
        return float(low * (high / low) ** share)
    return low + share * (high - low)


def widened(leaf: Leaf, low: float, high: float, side: str) -> tuple[float, float]:
    """Return a range that has grown by half its width on one side, in the logarithm if it has one.

    A range that begins at 0 or above never reaches below 0.
    """
    if not leaf.is_range:
        return low, high
    if leaf.log:
        factor = math.sqrt(high / low)
        return (_short(low / factor), high) if side == "low" else (low, _short(high * factor))
    half = (high - low) / 2
    if leaf.step is not None:
        half = max(leaf.step, leaf.step * round(half / leaf.step))
    if side == "high":
        return low, high + half
    return (max(0.0, low - half) if low >= 0 else low - half), high


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def strip(
    space: Space, key: str, start: float, end: float, count: int, bounds: Bounds
) -> Iterator[Value]:
    """Yield values evenly spaced between the outermost value that was tried and a new bound."""
    leaf = space.leaves[key]
    for number in range(count):
        yield space.snapped(key, _between(leaf, start, end, (number + 0.5) / count), bounds)


def overrides_of(shape: str) -> list[str]:
    """Return the overrides that give a model a shape."""
    return [f"model.{text}" for text in shape.split()]
