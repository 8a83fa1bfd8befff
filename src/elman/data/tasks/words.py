"""Rows of a task in words, for people."""

from __future__ import annotations

from elman.data.files import Bytes
from elman.data.tasks.counting import elements, generators
from elman.sections.tasks import (
    IGNORED,
    Copy,
    Dyck1,
    Dyck2,
    Fsm,
    KeyedFsm,
    OverwriteRecall,
    PermutationTask,
    Recall,
    ResetRecall,
    TaskConfig,
)

NOTHING = "."
"""Stands where there is no answer."""


def in_words(config: TaskConfig, row_2t: Bytes) -> tuple[list[str], list[str]]:
    """Return the inputs and the answers of one row of a task: a word for each position."""
    inputs, answers = symbol_names(config), answer_names(config)
    said = [inputs[symbol] for symbol in row_2t[0]]
    return said, [NOTHING if one == IGNORED else answers[one] for one in row_2t[1]]


def symbol_names(config: TaskConfig) -> list[str]:
    """Return a word for each symbol of the vocabulary, as an input."""
    match config:
        case Fsm():
            found = ["stay", "right", "left"]
        case Dyck1():
            found = ["(", ")"]
        case Dyck2():
            found = ["(", "[", ")", "]"]
        case Copy():
            found = [*_letters(config.symbols), "_", "go"]
        case Recall():
            found = [*_keys(config.keys), *_numbers(config.values)]
        case OverwriteRecall():
            found = ["_", *_keys(config.keys), *_numbers(config.values)]
        case ResetRecall():
            found = ["_", "reset", "none", *_keys(config.keys), *_numbers(config.values)]
        case KeyedFsm():
            orders = [f"{sign}{n}" for sign in "=+" for n in range(config.modulus)]
            found = ["_", *_keys(config.keys), *orders]
        case PermutationTask():
            group = elements(config.objects)
            found = [_permutation(group[index]) for index in generators(config)]
        case _:
            found = _numbers(config.vocabulary)
    return found + ["?"] * (config.vocabulary - len(found))


def answer_names(config: TaskConfig) -> list[str]:
    """Return a word for each symbol of the vocabulary, as an answer."""
    if isinstance(config, PermutationTask):
        return [_permutation(element) for element in elements(config.objects)]
    if isinstance(config, Fsm | Dyck1):
        return _numbers(config.vocabulary)
    if isinstance(config, KeyedFsm):
        return [name.lstrip("=") for name in symbol_names(config)]
    return ["even", "odd"] if config.task == "parity" else symbol_names(config)


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _letters(count: int) -> list[str]:
    return [chr(ord("a") + n) if n < 26 else f"s{n}" for n in range(count)]


def _keys(count: int) -> list[str]:
    return [chr(ord("A") + n) if n < 26 else f"K{n}" for n in range(count)]


def _permutation(element: tuple[int, ...]) -> str:
    """Return where the objects 1, 2, ... go, as in 213."""
    return "".join(str(place + 1) for place in element)
