"""Chance: the share of answers that are right without reading more than the present symbol.

The best blind guess is one of three: always the same answer, the most frequent one at each
position, or the most frequent one after each present symbol.

NumPy only; no torch.

Shapes: b rows, t positions, n answers, k cases, v symbols.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from elman.data.files import Bytes
from elman.data.tasks.draws import Draws, Ints
from elman.data.tasks.table import make_rows
from elman.sections.tasks import IGNORED, TaskConfig

_BLIND = 4
"""The split of rows on which blind guesses are measured; training, validation and test are 1 to 3.
"""
# What is read for one length, so that most shares are right to about 0.003: so many answers and
# rows, or so many positions if they are reached before.
_ANSWERS, _ROWS, _POSITIONS = 2**15, 2**11, 2**21
_BLOCK_POSITIONS = 2**19
# Positions from here on are told apart by their remainder: whether a product of swaps is even
# follows from it, and a task has no beginning there any more.
_FAR, _REMAINDERS = 2**13, 60
_known: dict[tuple[str, int], float] = {}


def chance(config: TaskConfig, length: int) -> float:
    """Return the accuracy of the best blind guess on rows of a length.

    It is measured on rows that no run trains on, so it is the same in every run.

    Args:
        config: The task.
        length: Positions of a row.
    """
    key = json.dumps([config.task, config.difficulty()], sort_keys=True), length
    if key not in _known:
        _known[key] = _measured(config, length)
    return _known[key]


def _measured(config: TaskConfig, length: int) -> float:
    kinds: list[Ints] = []
    rows = answers = 0
    while rows * length < _POSITIONS and (answers < _ANSWERS or rows < _ROWS):
        block_b2t = _block(config, length, rows)
        found = [_counted(*case, config) for case in _cases(block_b2t)]
        kinds = [old + new for old, new in zip(kinds, found, strict=True)] if kinds else found
        rows, answers = rows + len(block_b2t), int(kinds[0].sum())
    return max(map(_right, kinds))


def _block(config: TaskConfig, length: int, first: int) -> Bytes:
    """Return an even number of rows: uint8 [b, 2, t]."""
    count = max(2, 2 * (_BLOCK_POSITIONS // length // 2))
    rows_b = np.arange(first, first + count, dtype=np.int64)
    return make_rows(config, Draws((0, _BLIND, length), rows_b), length)


def _cases(rows_b2t: Bytes) -> Iterator[tuple[Ints, Ints, Ints, int]]:
    """Yield for each kind of guess, of all answers: half, case, answer, and the number of cases."""
    row_n, at_n = np.nonzero(rows_b2t[:, 1] != IGNORED)
    answer_n = rows_b2t[row_n, 1, at_n].astype(np.int64)
    symbol_n = rows_b2t[row_n, 0, at_n].astype(np.int64)
    last = rows_b2t.shape[2] - 1
    position_n = np.where(at_n < _FAR, at_n, _FAR + at_n % _REMAINDERS)
    half_n = row_n % 2
    yield half_n, np.zeros_like(symbol_n), answer_n, 1
    yield half_n, position_n, answer_n, min(last, _FAR + _REMAINDERS) + 1
    yield half_n, symbol_n, answer_n, IGNORED + 1


def _counted(half_n: Ints, case_n: Ints, answer_n: Ints, cases: int, config: TaskConfig) -> Ints:
    """Return how often each answer is right in each case, of even and of odd rows: [2, k, v]."""
    answers = config.vocabulary
    flat_n = (half_n * cases + case_n) * answers + answer_n
    counts: Ints = np.bincount(flat_n, minlength=2 * cases * answers)
    return counts.reshape(2, cases, answers)


def _right(counts_2kv: Ints) -> float:
    """Return the share of right answers of each half by what is most frequent in the other.

    Guesses are not judged by the rows that they were chosen by: those of many positions would
    seem better than they are.
    """
    right = 0
    for judged_kv, chosen_kv in (counts_2kv, counts_2kv[::-1]):
        guess_k1 = chosen_kv.argmax(axis=1)[:, None]
        right += int(np.take_along_axis(judged_kv, guess_k1, axis=1).sum())
    return right / max(1, int(counts_2kv.sum()))
