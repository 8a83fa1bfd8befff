"""Finds the generator of a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from elman.data.files import Bytes
from elman.data.tasks import brackets, counting, memory
from elman.data.tasks.draws import Draws, Ints
from elman.sections.tasks import TaskConfig

Generator = Callable[[Any, Draws, int], tuple[Ints, Ints]]
"""Makes rows of a length: inputs and targets, int64 [b, t], from a task's settings and draws."""

GENERATORS: dict[str, Generator] = {
    "parity": counting.parity,
    "modular_counter": counting.modular_counter,
    "fsm": counting.fsm,
    "dyck1": brackets.dyck1,
    "dyck2": brackets.dyck2,
    "copy": memory.copy,
    "selective_copy": memory.selective_copy,
    "recall": memory.recall,
    "overwrite_recall": memory.overwrite_recall,
    "reset_recall": memory.reset_recall,
    "keyed_fsm": memory.keyed_fsm,
    "s3": counting.permutations,
    "s5": counting.permutations,
    "modular_quadratic": counting.modular_quadratic,
}
"""Every task's generator by the task's name."""


def make_rows(config: TaskConfig, draws: Draws, length: int) -> Bytes:
    """Return rows of a task: uint8 [b, 2, t], the inputs and then the targets.

    A target without an answer is :data:`~elman.sections.tasks.IGNORED`.
    """
    inputs_bt, targets_bt = GENERATORS[config.task](config, draws, length)
    return np.stack([inputs_bt, targets_bt], axis=1).astype(np.uint8)
