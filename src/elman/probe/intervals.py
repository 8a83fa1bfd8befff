"""Intervals over documents, by the bootstrap.

Shape legend: d documents, r resamples, k numbers of each document.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elman.probe.result import Estimates

Floats = NDArray[np.float64]

_RESAMPLES, _SEED = 1000, 42
_ENDS = (2.5, 97.5)


def resampled(values_dk: Floats) -> Floats:
    """Return the means over resamples of the documents: [r, k]."""
    generator = np.random.default_rng(_SEED)
    documents = len(values_dk)
    picks_rd = generator.integers(documents, size=(_RESAMPLES, documents))
    means: Floats = values_dk[picks_rd].mean(axis=1)
    return means


def estimates(values_dk: Floats) -> Estimates:
    """Return the mean of each number with the ends of its interval."""
    low_k, high_k = np.percentile(resampled(values_dk), _ENDS, axis=0)
    mean_k = values_dk.mean(axis=0)
    return Estimates(mean=mean_k.tolist(), low=low_k.tolist(), high=high_k.tolist())


def interval_of(statistic: Callable[[Floats], float], values_dk: Floats) -> tuple[float, float]:
    """Return the ends of a statistic of the means [k], which is a value that occurs."""
    found = [statistic(means_k) for means_k in resampled(values_dk)]
    low, high = np.percentile(found, _ENDS, method="nearest")
    return float(low), float(high)
