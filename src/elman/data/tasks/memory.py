"""Rows of the tasks that store symbols and ask for them.

Shapes: b rows, t positions, w writes, i items. A generator returns inputs and targets, int64
[b, t].
"""

from __future__ import annotations

import numpy as np

from elman.data.tasks.draws import Draws, Ints
from elman.sections.tasks import (
    IGNORED,
    Copy,
    KeyedFsm,
    OverwriteRecall,
    Recall,
    ResetRecall,
    SelectiveCopy,
)

Rows = tuple[Ints, Ints]
SET_PERCENT = 35
"""Of the orders of ``keyed_fsm``: how many set their register."""


def copy(config: Copy, draws: Draws, length: int) -> Rows:
    """Return T // 2 symbols, go and blanks; an odd row has one more blank at its end.

    Symbols are 0 to ``symbols`` - 1, blank and go the two after them.
    """
    items = length // 2
    symbols_bi = draws.below(0, items, config.symbols)
    inputs_bt, targets_bt = _blank(draws.rows, length, config.symbols)
    inputs_bt[:, :items] = symbols_bi
    inputs_bt[:, items] = config.symbols + 1
    targets_bt[:, items : 2 * items] = symbols_bi
    return inputs_bt, targets_bt


def selective_copy(config: SelectiveCopy, draws: Draws, length: int) -> Rows:
    """Return the items at random positions before go, and blanks elsewhere."""
    items, before = config.items, length - config.items
    symbols_bi = draws.below(0, items, config.symbols)
    places_bi = np.sort(draws.order(1, before)[:, :items], axis=1)
    inputs_bt, targets_bt = _blank(draws.rows, length, config.symbols)
    np.put_along_axis(inputs_bt, places_bi, symbols_bi, axis=1)
    inputs_bt[:, before] = config.symbols + 1
    targets_bt[:, before:] = symbols_bi
    return inputs_bt, targets_bt


def recall(config: Recall, draws: Draws, length: int) -> Rows:
    """Return pairs of keys and values, and then keys of the row at random.

    Keys are 0 to ``keys`` - 1, values the symbols after them.
    """
    pairs = config.pairs
    keys_bi = draws.order(0, config.keys)[:, :pairs]
    values_bi = config.keys + draws.below(1, pairs, config.values)
    chosen = draws.below(2, length - 2 * pairs, pairs)
    inputs_bt, targets_bt = _blank(draws.rows, length, 0)
    inputs_bt[:, 0 : 2 * pairs : 2] = keys_bi
    inputs_bt[:, 1 : 2 * pairs : 2] = values_bi
    inputs_bt[:, 2 * pairs :] = np.take_along_axis(keys_bi, chosen, axis=1)
    targets_bt[:, 2 * pairs :] = np.take_along_axis(values_bi, chosen, axis=1)
    return inputs_bt, targets_bt


def overwrite_recall(config: OverwriteRecall, draws: Draws, length: int) -> Rows:
    """Return writes and a key that was written at least twice; a blank begins an even row.

    Blank is 0, then come the keys, then the values.
    """
    writes = (length - 1) // 2
    keys_bw = draws.below(0, writes, config.keys)
    values_bw = draws.below(1, writes, config.values)
    asked_b1 = draws.below(2, 1, config.keys)
    np.put_along_axis(keys_bw, draws.order(3, writes)[:, :2], asked_b1, axis=1)
    inputs_bt, targets_bt = _blank(draws.rows, length, 0)
    first = length - 1 - 2 * writes
    inputs_bt[:, first:-1:2] = 1 + keys_bw
    inputs_bt[:, first + 1 :: 2] = 1 + config.keys + values_bw
    inputs_bt[:, -1:] = 1 + asked_b1
    latest_b1 = _last_place(keys_bw == asked_b1)
    found_b1 = np.take_along_axis(values_bw, latest_b1, axis=1)
    targets_bt[:, -1:] = 1 + config.keys + found_b1
    return inputs_bt, targets_bt


def reset_recall(config: ResetRecall, draws: Draws, length: int) -> Rows:
    """Return writes, in every second row with a reset in place of one, and a key.

    Blank, reset and none are 0, 1 and 2, then come the keys, then the values. A reset is followed
    by a blank.
    """
    writes = (length - 1) // 2
    keys_bw = draws.below(0, writes, config.keys)
    values_bw = draws.below(1, writes, config.values)
    asked_b1 = draws.below(2, 1, config.keys)
    # A place after the last write means that there is no reset.
    reset_b1 = np.where(draws.below(3, 1, 2) == 1, draws.below(4, 1, writes), writes)
    at_w = np.arange(writes)[None, :]
    is_reset_bw = at_w == reset_b1
    inputs_bt, targets_bt = _blank(draws.rows, length, 0)
    first = length - 1 - 2 * writes
    inputs_bt[:, first:-1:2] = np.where(is_reset_bw, 1, 3 + keys_bw)
    inputs_bt[:, first + 1 :: 2] = np.where(is_reset_bw, 0, 3 + config.keys + values_bw)
    inputs_bt[:, -1:] = 3 + asked_b1
    since_bw = (at_w > reset_b1) | (reset_b1 == writes)
    written_bw = (keys_bw == asked_b1) & since_bw & ~is_reset_bw
    found_b1 = np.take_along_axis(values_bw, _last_place(written_bw), axis=1)
    known_b1 = written_bw.any(axis=1, keepdims=True)
    targets_bt[:, -1:] = np.where(known_b1, 3 + config.keys + found_b1, 2)
    return inputs_bt, targets_bt


def keyed_fsm(config: KeyedFsm, draws: Draws, length: int) -> Rows:
    """Return orders to registers, and a register.

    Blank is 0, then come the registers, then the orders that set 0 to ``modulus`` - 1, then those
    that add it. A value is answered by the order that sets it.
    """
    orders, modulus = (length - 1) // 2, config.modulus
    keys_bw = draws.below(0, orders, config.keys)
    numbers_bw = draws.below(1, orders, modulus)
    sets_bw = draws.below(2, orders, 100) < SET_PERCENT
    asked_b1 = draws.below(3, 1, config.keys)
    set_0 = 1 + config.keys
    inputs_bt, targets_bt = _blank(draws.rows, length, 0)
    first = length - 1 - 2 * orders
    inputs_bt[:, first:-1:2] = 1 + keys_bw
    inputs_bt[:, first + 1 :: 2] = set_0 + numbers_bw + np.where(sets_bw, 0, modulus)
    inputs_bt[:, -1:] = 1 + asked_b1
    # What counts of the asked register's orders: the last that sets it, and all after it.
    own_bw = keys_bw == asked_b1
    sets_own_bw = own_bw & sets_bw
    last_b1 = np.where(sets_own_bw.any(axis=1, keepdims=True), _last_place(sets_own_bw), -1)
    counts_bw = own_bw & (np.arange(orders)[None, :] >= last_b1)
    value_b1 = np.where(counts_bw, numbers_bw, 0).sum(axis=1, keepdims=True) % modulus
    targets_bt[:, -1:] = set_0 + value_b1
    return inputs_bt, targets_bt


def _blank(rows: int, length: int, blank: int) -> Rows:
    """Return inputs of blanks, and targets without an answer."""
    shape = (rows, length)
    return np.full(shape, blank, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)


def _last_place(holds_bw: np.typing.NDArray[np.bool_]) -> Ints:
    """Return the last place where it holds, [b, 1]; the very last one where it never does."""
    last_b1: Ints = holds_bw.shape[1] - 1 - np.argmax(holds_bw[:, ::-1], axis=1)[:, None]
    return last_b1
