"""The law by which a score falls with size: ``L = E + A x^-a``, with resampled intervals.

``x`` is a number of parameters, or of floating-point operations, in units of :attr:`Law.unit`. The
exponent is searched on a grid, and ``E`` and ``A`` follow from it by least squares. So there is no
start to choose and no local minimum, and thousands of resamples are fitted at once.

Source of the form: Hoffmann et al., "Training compute-optimal large language models" (2022), on one
line through their plane, because bytes are in proportion to size here. Of the intervals: Efron and
Tibshirani, "An introduction to the bootstrap" (1993).

Shapes: s sizes, r resamples, k exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 2000
"""Resamples behind an interval."""
SHARE = 0.95
"""Share of the resamples inside an interval."""
_NORMAL = 1.959964
"""The quantile of a normal distribution that belongs to :data:`SHARE`."""
_SLOWEST, _FASTEST = 0.01, 4.0
_GRID, _FINER, _ROUNDS = 160, 21, 3
_FREE = 3
"""Sizes that determine the three numbers of a law."""


@dataclass(frozen=True)
class Point:
    """What was measured at one size: its ``x``, and the score of each seed."""

    x: float
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean score over its seeds."""
        return sum(self.scores) / len(self.scores)


@dataclass(frozen=True)
class Law:
    """A law, or one for each resample: ``limit + factor (x / unit)^-exponent``.

    Args:
        limit: The score that no size goes below.
        factor: What a model of one unit is above it.
        exponent: How fast that falls.
        unit: The unit of ``x``.
    """

    limit: Any
    factor: Any
    exponent: Any
    unit: float

    def at(self, x: float) -> Any:
        """Return the score at a size."""
        return self.limit + self.factor * (x / self.unit) ** -self.exponent


@dataclass(frozen=True)
class Fit:
    """A law through some points.

    Args:
        law: The law; of two sizes the one in the middle of those that fit.
        draws: The laws of the resamples.
        points: What it is fitted to.
        residuals: How far a new seed may be from the mean of its size; empty if that is unknown.
        is_open: Whether two sizes leave ``limit`` open: every value from 0 to the lowest score was
            taken alike.
    """

    law: Law
    draws: Law
    points: tuple[Point, ...]
    residuals: Floats
    is_open: bool

    @property
    def falls(self) -> bool:
        """Whether the score falls with size at all."""
        return bool(self.law.factor > 0)

    @property
    def has_noise(self) -> bool:
        """Whether there is anything to resample: seeds, sizes, or an open limit."""
        return bool(np.ptp(self.draws.at(self.points[-1].x)) > 0)

    def interval(self, name: str) -> tuple[float, float]:
        """Return the interval of ``limit``, ``factor`` or ``exponent``."""
        return _middle(getattr(self.draws, name))

    def band(self, x: float) -> tuple[float, float]:
        """Return the interval of the law at a size."""
        return _middle(self.draws.at(x))

    def prediction(self, x: float, seeds: int) -> tuple[float, float]:
        """Return the interval of the mean of so many new seeds at a size."""
        rng = np.random.default_rng(1)
        drawn: Floats = self.draws.at(x)
        if self.residuals.size:
            drawn = drawn + rng.choice(self.residuals, (drawn.size, max(1, seeds))).mean(axis=1)
        return _middle(drawn)


def fit(points: Sequence[Point], unit: float, draws: int = DRAWS) -> Fit | None:
    """Return the law through some points; None for fewer than two sizes.

    A resample draws sizes with replacement, at least three different ones, and for each size the
    seeds' noise: the distances of all seeds from the means of their sizes, which are widened as
    Student's t is for so few.

    Args:
        points: At least two sizes; of each at least one score.
        unit: The unit of ``x``.
        draws: How many resamples.
    """
    points = tuple(sorted((one for one in points if one.scores), key=lambda one: one.x))
    if len({one.x for one in points}) < len(points) or len(points) < 2:
        return None
    rng = np.random.default_rng(0)
    x_s = np.array([one.x / unit for one in points])
    y_s = np.array([one.mean for one in points])
    seeds_s = np.array([len(one.scores) for one in points], dtype=np.float64)
    residuals = _residuals(points)
    y_rs = y_s + _noise(residuals, points, draws, rng)
    if len(points) < _FREE:
        shares_r = (np.arange(draws) + 0.5) / draws
        found = Law(*_through_two(x_s, y_rs, rng.permutation(shares_r)), unit)
        middle = _through_two(x_s, y_s[None, :], np.array([0.5]))
        return Fit(_single(middle, unit), found, points, residuals, is_open=True)
    weights_rs = seeds_s * _sizes(len(points), draws, rng)
    found = Law(*_least_squares(x_s, y_rs, weights_rs), unit)
    law = _single(_least_squares(x_s, y_s[None, :], seeds_s[None, :]), unit)
    return Fit(law, found, points, residuals, is_open=False)


def _single(law: tuple[Floats, Floats, Floats], unit: float) -> Law:
    limit, factor, exponent = (float(one[0]) for one in law)
    return Law(limit, factor, exponent, unit)


def _residuals(points: Sequence[Point]) -> Floats:
    """Return how far seeds are from the mean of their size, as far as new ones would be."""
    from scipy.stats import t

    several = [one for one in points if len(one.scores) > 1]
    free = sum(len(one.scores) - 1 for one in several)
    if not free:
        return np.empty(0)
    wider = float(t.ppf((1 + SHARE) / 2, free)) / _NORMAL
    return np.array(
        [
            wider * (score - one.mean) * (len(one.scores) / (len(one.scores) - 1)) ** 0.5
            for one in several
            for score in one.scores
        ]
    )


def _noise(
    residuals: Floats, points: Sequence[Point], draws: int, rng: np.random.Generator
) -> Floats:
    """Return what the mean of each size is off by in each resample."""
    if not residuals.size:
        return np.zeros((draws, len(points)))
    columns = [rng.choice(residuals, (draws, len(one.scores))).mean(axis=1) for one in points]
    return np.stack(columns, axis=1)


def _sizes(sizes: int, draws: int, rng: np.random.Generator) -> Floats:
    """Return how often each size is in each resample: at least three different ones are."""
    counts_rs = rng.multinomial(sizes, np.full(sizes, 1 / sizes), draws).astype(np.float64)
    few_r = (counts_rs > 0).sum(axis=1) < _FREE
    while few_r.any():
        counts_rs[few_r] = rng.multinomial(sizes, np.full(sizes, 1 / sizes), int(few_r.sum()))
        few_r = (counts_rs > 0).sum(axis=1) < _FREE
    return counts_rs


def _through_two(x_s: Floats, y_rs: Floats, shares_r: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the laws through two sizes whose limit is a share of the lower score."""
    first_r, second_r = y_rs[:, 0], y_rs[:, 1]
    limit_r = shares_r * np.minimum(first_r, second_r)
    ratio_r = np.maximum((first_r - limit_r) / (second_r - limit_r), 1.0)
    exponent_r = np.log(ratio_r) / np.log(x_s[1] / x_s[0])
    rises_r = second_r >= first_r
    mean_r = y_rs.mean(axis=1)
    factor_r = np.where(rises_r, 0.0, (first_r - limit_r) * x_s[0] ** exponent_r)
    return np.where(rises_r, mean_r, limit_r), factor_r, exponent_r


def _least_squares(x_s: Floats, y_rs: Floats, weights_rs: Floats) -> tuple[Floats, Floats, Floats]:
    """Return limit, factor and exponent of each resample, none of them below 0."""
    middle = float(np.exp(np.log(x_s).mean()))
    grid_k = np.geomspace(_SLOWEST, _FASTEST, _GRID)
    step = float(grid_k[1] / grid_k[0])
    exponents_rk = np.broadcast_to(grid_k, (len(y_rs), _GRID))
    limit_r, factor_r, best_r = _best(x_s / middle, y_rs, weights_rs, exponents_rk)
    for _ in range(_ROUNDS):
        finer_k = np.geomspace(1 / step, step, _FINER)
        step = float(finer_k[1] / finer_k[0])
        exponents_rk = np.clip(best_r[:, None] * finer_k, _SLOWEST, _FASTEST)
        limit_r, factor_r, best_r = _best(x_s / middle, y_rs, weights_rs, exponents_rk)
    return limit_r, factor_r * middle**best_r, best_r


def _best(
    x_s: Floats, y_rs: Floats, weights_rs: Floats, exponents_rk: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the law of the best of some exponents, for each resample."""
    basis_rks = x_s ** -exponents_rk[:, :, None]
    total = weights_rs.sum(axis=1)[:, None]
    mean_r1 = (weights_rs * y_rs).sum(axis=1)[:, None] / total
    basis_rk = np.einsum("rs,rks->rk", weights_rs, basis_rks) / total
    apart_rks = basis_rks - basis_rk[:, :, None]
    y_apart_rs = y_rs - mean_r1
    both_rk = np.einsum("rs,rks,rs->rk", weights_rs, apart_rks, y_apart_rs)
    own_rk = np.einsum("rs,rks,rks->rk", weights_rs, apart_rks, apart_rks)
    factor_rk = np.maximum(both_rk / own_rk, 0.0)
    limit_rk = mean_r1 - factor_rk * basis_rk
    # Below 0 the limit is 0, and the factor is fitted without it.
    of_zero_rk = np.einsum("rs,rks,rs->rk", weights_rs, basis_rks, y_rs) / np.einsum(
        "rs,rks,rks->rk", weights_rs, basis_rks, basis_rks
    )
    factor_rk = np.where(limit_rk < 0, of_zero_rk, factor_rk)
    limit_rk = np.maximum(limit_rk, 0.0)
    off_rks = y_rs[:, None, :] - limit_rk[:, :, None] - factor_rk[:, :, None] * basis_rks
    errors_rk = np.einsum("rs,rks,rks->rk", weights_rs, off_rks, off_rks)
    at_r = errors_rk.argmin(axis=1)
    rows_r = np.arange(len(at_r))
    return limit_rk[rows_r, at_r], factor_rk[rows_r, at_r], exponents_rk[rows_r, at_r]


def _middle(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Crossing:
    """Whether the laws of two families cross between the smallest and the largest size.

    Args:
        low: The smallest size.
        high: The largest size.
        share: The share of the resamples that cross between them.
        at: Where the laws cross; None if they do not between these sizes.
        interval: The interval of the sizes at which resamples cross; None if too few do.
        first: Whether the first family has the lower score at the largest size.
    """

    low: float
    high: float
    share: float
    at: float | None
    interval: tuple[float, float] | None
    first: bool

    @property
    def is_certain(self) -> bool:
        """Whether nearly all resamples cross, or nearly none does."""
        return not 1 - SHARE < self.share < SHARE


def crossing(one: Fit, other: Fit) -> Crossing | None:
    """Return whether two laws cross at a size that both have; None if they share no range."""
    low = max(one.points[0].x, other.points[0].x)
    high = min(one.points[-1].x, other.points[-1].x)
    if low >= high:
        return None
    sizes = np.geomspace(low, high, 200)
    apart = np.array([one.law.at(x) - other.law.at(x) for x in sizes])
    draws_xr = np.stack([one.draws.at(x) - other.draws.at(x) for x in sizes])
    own = _last_change(sizes, apart[:, None])
    of_draws = _last_change(sizes, draws_xr)
    found = of_draws[~np.isnan(of_draws)]
    share = found.size / of_draws.size
    return Crossing(
        float(low),
        float(high),
        share,
        None if np.isnan(own[0]) else float(own[0]),
        _middle(found) if share > 1 - SHARE else None,
        bool(apart[-1] < 0),
    )


def _last_change(sizes: Floats, apart_xr: Floats) -> Floats:
    """Return the largest size at which a difference changes its sign, for each resample."""
    signs = np.sign(apart_xr)
    changes = (signs[1:] * signs[:-1]) < 0
    at = len(changes) - 1 - changes[::-1].argmax(axis=0)
    middle = np.sqrt(sizes[1:] * sizes[:-1])
    found: Floats = np.where(changes.any(axis=0), middle[at], np.nan)
    return found
