"""Group ``data`` of a run that learns a task: one section for each task.

A row of a task has T input symbols, and at each position either an answer or nothing to answer.
Symbols and answers share one vocabulary, 0 to V - 1. :mod:`elman.data.tasks` makes the rows.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from elman.base.errors import UserError
from elman.sections.section import Count, Section, rounded

IGNORED = 255
"""Target of a position that has no answer; every vocabulary is smaller."""

LONGEST = 2**20
"""Most positions of a row."""

Lengths = Annotated[list[Count], Field(min_length=1)]
_Modulus = Annotated[int, rounded, Field(ge=2, le=IGNORED)]
_Symbols = Annotated[int, rounded, Field(ge=2, le=120)]
_Small = Annotated[int, rounded, Field(ge=1, le=120)]


class TaskConfig(Section):
    """What all tasks share. The length of a training row is ``train.chunk_size``.

    Args:
        task: Name of the task.
        lengths: Lengths at which the trained model is tested, once, when training ends.
        val_rows: Rows of the trained length that a validation answers; the same in every run.
        test_rows: Rows that the test answers at each length; the same in every run.
    """

    task: str
    lengths: Lengths
    val_rows: Count = 128
    test_rows: Count = 512

    definition: ClassVar[str] = ""

    @property
    def vocabulary(self) -> int:
        """How many symbols there are, answers included."""
        raise NotImplementedError

    @property
    def answers(self) -> int:
        """How many different answers there are."""
        return self.vocabulary

    @property
    def shortest(self) -> int:
        """Length of the shortest row."""
        return 1

    @property
    def reset_at_documents(self) -> bool:
        """Rows of a task are not documents."""
        return False

    @property
    def reset_after(self) -> None:
        """No symbol zeroes the state."""

    def difficulty(self) -> dict[str, int | str]:
        """Return the settings that only this task has."""
        return self.model_dump(exclude=set(TaskConfig.model_fields))

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        if self.vocabulary > IGNORED:
            raise UserError(
                f"data={self.task}: {self.vocabulary} symbols, but a task has at most {IGNORED}; "
                f"make one of {', '.join(f'data.{key}' for key in self.difficulty())} smaller"
            )
        self.check_lengths("data.lengths", self.lengths)
        return self

    def check_lengths(self, setting: str, lengths: list[int]) -> None:
        """Raise UserError if a row of the task cannot have one of these lengths."""
        if (longest := max(lengths)) > LONGEST:
            raise UserError(
                f"{setting}: {longest:,} positions are too many for a row; use {LONGEST:,} or fewer"
            )
        if (shortest := min(lengths)) < self.shortest:
            raise UserError(
                f"{setting}: {shortest} positions are too few for data={self.task} with these "
                f"settings; use {self.shortest} or more"
            )


class Parity(TaskConfig):
    """``data=parity``."""

    task: Literal["parity"]
    definition = "bits; after each bit: is the number of ones so far odd?"

    @property
    def vocabulary(self) -> int:
        """Two bits."""
        return 2


class ModularCounter(TaskConfig):
    """``data=modular_counter``; ``modulus``: numbers are below it, and sums are taken modulo it."""

    task: Literal["modular_counter"]
    modulus: _Modulus = 5
    definition = "numbers below modulus; after each: the sum so far, modulo modulus"

    @property
    def vocabulary(self) -> int:
        """The numbers."""
        return self.modulus


class ModularQuadratic(TaskConfig):
    """``data=modular_quadratic``; ``modulus``: as of ``modular_counter``."""

    task: Literal["modular_quadratic"]
    modulus: _Modulus = 5
    definition = (
        "numbers x below modulus, and a state s that begins as 0; each number makes s = s * s + x, "
        "modulo modulus; after each: s"
    )

    @property
    def vocabulary(self) -> int:
        """The numbers."""
        return self.modulus


class Fsm(TaskConfig):
    """``data=fsm``; ``states``: headings on a circle."""

    task: Literal["fsm"]
    states: _Modulus = 4
    definition = "stay, right or left; after each: the heading, one of states on a circle, from 0"

    @property
    def vocabulary(self) -> int:
        """Three orders; headings use the same symbols and more."""
        return max(3, self.states)

    @property
    def answers(self) -> int:
        """The headings."""
        return self.states


class Dyck1(TaskConfig):
    """``data=dyck1``; ``depth``: brackets that may be open at once."""

    task: Literal["dyck1"]
    depth: Annotated[int, rounded, Field(ge=1, le=IGNORED - 1)] = 8
    definition = "opening and closing brackets, at most depth open; after each: how many are open"

    @property
    def vocabulary(self) -> int:
        """Depths 0 to ``depth``; the two brackets use symbols 0 and 1."""
        return self.depth + 1


class Dyck2(TaskConfig):
    """``data=dyck2``; ``depth``: brackets that may be open at once."""

    task: Literal["dyck2"]
    depth: Annotated[int, rounded, Field(ge=1, le=1024)] = 8
    definition = (
        "brackets of two kinds, at most depth open; wherever the next one closes: which kind it is"
    )

    @property
    def vocabulary(self) -> int:
        """Four brackets."""
        return 4

    @property
    def answers(self) -> int:
        """The two closing brackets."""
        return 2

    @property
    def shortest(self) -> int:
        """So long that every row has a closing bracket."""
        return self.depth


class Copy(TaskConfig):
    """``data=copy``; ``symbols``: how many different ones are copied."""

    task: Literal["copy"]
    symbols: _Symbols = 16
    definition = (
        "T // 2 symbols, then go, then blanks; from go on: the symbols again, in their order"
    )

    @property
    def vocabulary(self) -> int:
        """The symbols, blank and go."""
        return self.symbols + 2

    @property
    def answers(self) -> int:
        """The symbols."""
        return self.symbols

    @property
    def shortest(self) -> int:
        """One symbol, and go."""
        return 2


class SelectiveCopy(Copy):
    """``data=selective_copy``; ``items``: symbols to copy; ``symbols``: how many different ones."""

    task: Literal["selective_copy"]  # type: ignore[assignment]
    items: _Small = 8
    definition = (
        "items symbols scattered among blanks, then go, then blanks; from go on: those symbols, "
        "in their order"
    )

    @property
    def shortest(self) -> int:
        """The items, and as many positions for the answers."""
        return 2 * self.items


class Recall(TaskConfig):
    """``data=recall``: associative recall with many queries.

    Args:
        pairs: Pairs of a row; their keys differ.
        keys: How many different keys there are.
        values: How many different values there are.
    """

    task: Literal["recall"]
    pairs: _Small = 8
    keys: _Symbols = 16
    values: _Symbols = 16
    definition = "pairs of a key and its value, all keys different; then keys: the value of each"

    @property
    def vocabulary(self) -> int:
        """Keys and values."""
        return self.keys + self.values

    @property
    def answers(self) -> int:
        """The values."""
        return self.values

    @property
    def shortest(self) -> int:
        """The pairs, and one query."""
        return 2 * self.pairs + 1

    @model_validator(mode="after")
    def _enough_keys(self) -> Self:
        if self.pairs > self.keys:
            raise UserError(
                f"data.pairs={self.pairs}: the keys of a row differ, and data.keys={self.keys}; "
                f"use data.pairs={self.keys} or less, or more keys"
            )
        return self


class OverwriteRecall(TaskConfig):
    """``data=overwrite_recall``; ``keys``, ``values``: how many different ones there are."""

    task: Literal["overwrite_recall"]
    keys: _Symbols = 16
    values: _Symbols = 16
    definition = (
        "(T - 1) // 2 writes of a value to a key; at the end a key that was written at least "
        "twice: its latest value"
    )

    @property
    def vocabulary(self) -> int:
        """Blank, keys and values."""
        return 1 + self.keys + self.values

    @property
    def answers(self) -> int:
        """The values."""
        return self.values

    @property
    def shortest(self) -> int:
        """Two writes, and the query."""
        return 5


class ResetRecall(TaskConfig):
    """``data=reset_recall``; ``keys``, ``values``: how many different ones there are."""

    task: Literal["reset_recall"]
    keys: _Symbols = 16
    values: _Symbols = 16
    definition = (
        "(T - 1) // 2 writes of a value to a key, in every second row one of them a reset that "
        "forgets all; at the end a key: its latest value, or none"
    )

    @property
    def vocabulary(self) -> int:
        """Blank, reset, none, keys and values."""
        return 3 + self.keys + self.values

    @property
    def answers(self) -> int:
        """The values and none."""
        return self.values + 1

    @property
    def shortest(self) -> int:
        """One write, and the query."""
        return 3


class KeyedFsm(TaskConfig):
    """``data=keyed_fsm``; ``keys``: registers; ``modulus``: their values are below it."""

    task: Literal["keyed_fsm"]
    keys: _Symbols = 8
    modulus: Annotated[int, rounded, Field(ge=2, le=120)] = 8
    definition = (
        "(T - 1) // 2 orders to registers that begin as 0: set it (35 % of them) or add to it, "
        "modulo modulus; at the end a register: its value"
    )

    @property
    def vocabulary(self) -> int:
        """Blank, registers, an order for each value to set or add; answers are set orders."""
        return 1 + self.keys + 2 * self.modulus

    @property
    def answers(self) -> int:
        """The values."""
        return self.modulus

    @property
    def shortest(self) -> int:
        """One order, and the query."""
        return 3


class PermutationTask(TaskConfig):
    """The word problem of a group of permutations.

    Args:
        generators: ``swaps``: the inputs are the swaps of neighbors, as published. ``all``: the
            inputs are all elements of the group.
    """

    generators: Literal["swaps", "all"] = "swaps"

    objects: ClassVar[int]
    order: ClassVar[int]

    @property
    def vocabulary(self) -> int:
        """The elements of the group; swaps use the first symbols."""
        return self.order


class S3(PermutationTask):
    """``data=s3``."""

    task: Literal["s3"]
    definition = "permutations of 3 objects; after each: the product so far, one of 6"
    objects, order = 3, 6


class S5(PermutationTask):
    """``data=s5``."""

    task: Literal["s5"]
    definition = "permutations of 5 objects; after each: the product so far, one of 120"
    objects, order = 5, 120


TASKS: dict[str, type[TaskConfig]] = {
    "parity": Parity,
    "modular_counter": ModularCounter,
    "fsm": Fsm,
    "dyck1": Dyck1,
    "dyck2": Dyck2,
    "copy": Copy,
    "selective_copy": SelectiveCopy,
    "recall": Recall,
    "overwrite_recall": OverwriteRecall,
    "reset_recall": ResetRecall,
    "keyed_fsm": KeyedFsm,
    "s3": S3,
    "s5": S5,
    "modular_quadratic": ModularQuadratic,
}
"""Every task by its name in YAML."""
