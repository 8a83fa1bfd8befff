"""Rows of the tasks in which every symbol changes one small state.

Shapes: b rows, t positions. A generator returns inputs and targets, int64 [b, t].
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np

from elman.data.tasks.draws import Draws, Ints
from elman.sections.tasks import (
    Fsm,
    ModularCounter,
    ModularQuadratic,
    Parity,
    PermutationTask,
)

Rows = tuple[Ints, Ints]
_TURN = np.array([0, 1, -1])
"""What the orders stay, right and left add to a heading."""


def parity(config: Parity, draws: Draws, length: int) -> Rows:
    """Return bits and the parity of those so far."""
    bits_bt = draws.below(0, length, 2)
    return bits_bt, np.cumsum(bits_bt, axis=1) % 2


def modular_counter(config: ModularCounter, draws: Draws, length: int) -> Rows:
    """Return numbers and their sum so far, modulo the modulus."""
    numbers_bt = draws.below(0, length, config.modulus)
    return numbers_bt, np.cumsum(numbers_bt, axis=1) % config.modulus


def fsm(config: Fsm, draws: Draws, length: int) -> Rows:
    """Return orders (0 stay, 1 right, 2 left) and the heading after each."""
    orders_bt = draws.below(0, length, 3)
    return orders_bt, np.cumsum(_TURN[orders_bt], axis=1) % config.states


def modular_quadratic(config: ModularQuadratic, draws: Draws, length: int) -> Rows:
    """Return numbers and the state s = s * s + x after each."""
    numbers_bt = draws.below(0, length, config.modulus)
    states_bt = np.empty_like(numbers_bt)
    state_b = np.zeros(draws.rows, dtype=np.int64)
    for t in range(length):
        state_b = (state_b * state_b + numbers_bt[:, t]) % config.modulus
        states_bt[:, t] = state_b
    return numbers_bt, states_bt


def permutations(config: PermutationTask, draws: Draws, length: int) -> Rows:
    """Return elements of a group and the index of their product so far.

    Elements are numbered in the alphabetical order of their permutations; 0 changes nothing. The
    product after x is: first what came before, then x.
    """
    table_ge = product_table(config.objects)
    inputs = generators(config)
    numbers_bt = draws.below(0, length, len(inputs))
    products_bt = np.empty_like(numbers_bt)
    product_b = np.zeros(draws.rows, dtype=np.int64)
    for t in range(length):
        product_b = table_ge[product_b, inputs[numbers_bt[:, t]]]
        products_bt[:, t] = product_b
    return numbers_bt, products_bt


def elements(objects: int) -> list[tuple[int, ...]]:
    """Return all permutations of 0 to ``objects`` - 1 in alphabetical order."""
    return list(itertools.permutations(range(objects)))


@cache
def product_table(objects: int) -> Ints:
    """Return the group's table: entry [g, e] is the index of first g, then e."""
    group = np.array(elements(objects))
    # An element as a number with one digit for each object.
    digits = objects ** np.arange(objects)[::-1]
    index = {int(number): place for place, number in enumerate(group @ digits)}
    # First g, then e: object i goes to g[i] and from there to e[g[i]].
    composed = np.stack([group[:, g] for g in group]) @ digits
    table_ge: Ints = np.vectorize(index.__getitem__, otypes=[np.int64])(composed)
    return table_ge


def generators(config: PermutationTask) -> Ints:
    """Return the group's index of every input symbol."""
    group = elements(config.objects)
    if config.generators == "all":
        return np.arange(len(group))
    swaps = []
    for place in range(config.objects - 1):
        swapped = list(range(config.objects))
        swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
        swaps.append(group.index(tuple(swapped)))
    return np.array(swaps)
