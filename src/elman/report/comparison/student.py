"""Student's t distribution, central and noncentral: probabilities, quantiles and power."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from elman.report.metrics_file import Floats

_TINY = 1e-300
_TERMS = 300
# The logarithms at which the density of a chi variable is added up.
_FINE, _NODES = 0.02, 2000
_NEWTON = 4


def two_sided(t: float, df: float) -> float:
    """Return the probability of a value at least as far from 0 as ``t``.

    Args:
        t: The value.
        df: Degrees of freedom, above 0; any real number, as Welch's test needs it.
    """
    # DLMF 8.17: the tails are a regularized incomplete beta function.
    return _incomplete_beta(df / (df + t * t), df / 2, 0.5) if t else 1.0


@cache
def quantile(level: float, df: float) -> float:
    """Return the value that is exceeded in size with probability ``1 - level``.

    Args:
        level: Share of the distribution between minus this value and this value, as 0.95.
        df: Degrees of freedom, above 0.
    """
    low, high = 0.0, 1.0
    while two_sided(high, df) > 1 - level:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > 1 - level else (low, middle)
    for _ in range(_NEWTON):  # each step doubles the digits that are right
        high += (two_sided(high, df) - 1 + level) / (2 * _density(high, df))
    return high


def power(effect: float, df: float, alpha: float) -> float:
    """Return the probability that a two-sided test at level ``alpha`` finds an effect.

    The test's statistic is (Z + effect) / S, where Z is normal and S * S is chi-squared over its
    degrees of freedom (noncentral t). The probability for a given S is averaged over S.

    Args:
        effect: The true difference over its true standard error.
        df: Degrees of freedom.
        alpha: Probability of finding an effect where there is none.
    """
    limit = quantile(1 - alpha, df)
    # As a function of log S the density is smooth and falls off fast at both ends, so that the
    # plain sum converges faster than any power of the distance between its terms.
    log_s = (np.arange(_NODES) - 0.75 * _NODES) * _FINE
    weights = np.exp(df * (log_s - np.exp(2 * log_s) / 2 + 0.5))
    weights /= weights.sum()
    s = np.exp(log_s)
    return float(np.dot(weights, _above(limit * s - effect) + _above(limit * s + effect)))


def _above(z: Floats) -> Floats:
    """Return the probabilities that a standard normal variable exceeds ``z``, to nine digits."""
    grid, tails = _normal_tails()
    found: Floats = np.interp(z, grid, tails)
    return found


@cache
def _normal_tails() -> tuple[Floats, Floats]:
    # numpy has no error function.
    grid = np.linspace(-10, 10, 40_001)
    tails = [math.erfc(z / math.sqrt(2)) / 2 for z in grid.tolist()]
    return grid, np.array(tails)


def _density(t: float, df: float) -> float:
    """Return the density of Student's t."""
    scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(scale - (df + 1) / 2 * math.log1p(t * t / df))


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function (DLMF 8.17.22, a continued fraction)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _incomplete_beta(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction 1 + d1/(1 + d2/(1 + ...)) by Lentz's method."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for n in range(1, _TERMS):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + d * denominator or _TINY)
        numerator = 1 + d / numerator or _TINY
        step = numerator * denominator
        value *= step
        if abs(step - 1) < 1e-15:
            break
    return value
