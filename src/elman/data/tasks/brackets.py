"""Rows of brackets.

Shapes: b rows, t positions. A generator returns inputs and targets, int64 [b, t].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elman.data.tasks.draws import Draws, Ints
from elman.sections.tasks import IGNORED, Dyck1, Dyck2

Rows = tuple[Ints, Ints]


def dyck1(config: Dyck1, draws: Draws, length: int) -> Rows:
    """Return brackets (0 opens, 1 closes) and how many are open after each."""
    closes_bt, open_bt = _walk(draws, length, config.depth)
    return closes_bt.astype(np.int64), open_bt


def dyck2(config: Dyck2, draws: Draws, length: int) -> Rows:
    """Return brackets and, where the next one closes, that one.

    Kinds 0 and 1 open as 0 and 1, and close as 2 and 3.
    """
    closes_bt, open_bt = _walk(draws, length + 1, config.depth)
    kinds_bt = draws.below(1, length + 1, 2)
    brackets_bt = np.empty_like(kinds_bt)
    stack_bd = np.zeros((draws.rows, config.depth + 1), dtype=np.int64)
    rows = np.arange(draws.rows)
    for t in range(length + 1):
        closes_b, open_b = closes_bt[:, t], open_bt[:, t]
        # An opening bracket takes the next free place; a closing one frees the place above it.
        place_b = np.where(closes_b, open_b + 1, open_b)
        kind_b = np.where(closes_b, stack_bd[rows, place_b], kinds_bt[:, t])
        stack_bd[rows, place_b] = kind_b
        brackets_bt[:, t] = kind_b + 2 * closes_b
    targets_bt = np.where(closes_bt[:, 1:], brackets_bt[:, 1:], IGNORED)
    return brackets_bt[:, :-1], targets_bt


def _walk(draws: Draws, length: int, depth: int) -> tuple[NDArray[np.bool_], Ints]:
    """Return which brackets close, and how many are open after each.

    Both are as probable, except that none closes at 0 and none opens at ``depth``.
    """
    coins_bt = draws.below(0, length, 2) == 1
    closes_bt = np.empty_like(coins_bt)
    open_bt = np.empty(coins_bt.shape, dtype=np.int64)
    open_b = np.zeros(draws.rows, dtype=np.int64)
    for t in range(length):
        closes_b = (coins_bt[:, t] & (open_b > 0)) | (open_b == depth)
        open_b = open_b + np.where(closes_b, -1, 1)
        closes_bt[:, t], open_bt[:, t] = closes_b, open_b
    return closes_bt, open_bt
