"""Group ``data``: text, or a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from elman.base.errors import UserError, nearest
from elman.sections.tasks import (
    S3,
    S5,
    TASKS,
    Copy,
    Dyck1,
    Dyck2,
    Fsm,
    KeyedFsm,
    ModularCounter,
    ModularQuadratic,
    OverwriteRecall,
    Parity,
    Recall,
    ResetRecall,
    SelectiveCopy,
)
from elman.sections.training import DataConfig

TEXT = "data of text"
"""Tag of :class:`DataConfig` among the forms of the group."""


def _form(value: Any) -> str:
    task = value.get("task") if isinstance(value, Mapping) else getattr(value, "task", None)
    return TEXT if task is None else str(task)


AnyData = Annotated[
    Annotated[DataConfig, Tag(TEXT)]
    | Annotated[Parity, Tag("parity")]
    | Annotated[ModularCounter, Tag("modular_counter")]
    | Annotated[Fsm, Tag("fsm")]
    | Annotated[Dyck1, Tag("dyck1")]
    | Annotated[Dyck2, Tag("dyck2")]
    | Annotated[Copy, Tag("copy")]
    | Annotated[SelectiveCopy, Tag("selective_copy")]
    | Annotated[Recall, Tag("recall")]
    | Annotated[OverwriteRecall, Tag("overwrite_recall")]
    | Annotated[ResetRecall, Tag("reset_recall")]
    | Annotated[KeyedFsm, Tag("keyed_fsm")]
    | Annotated[S3, Tag("s3")]
    | Annotated[S5, Tag("s5")]
    | Annotated[ModularQuadratic, Tag("modular_quadratic")],
    Discriminator(_form),
]


def refuse_unknown_task(data: Any, named: frozenset[str]) -> None:
    """Raise UserError if section ``data`` names no task that there is, or the user typed one."""
    if not isinstance(data, Mapping) or ("task" not in data and "data.task" not in named):
        return
    task = data.get("task")
    if task in TASKS and "data.task" not in named:
        return
    raise UserError(chosen_by_file(task))


def chosen_by_file(task: Any) -> str:
    """Return the error for a task that is given as a setting."""
    best = nearest(str(task), TASKS) or "parity"
    return (
        f"data.task={task}: choose the task, with its settings, by data={best}; "
        f"choices: {', '.join(TASKS)}"
    )
