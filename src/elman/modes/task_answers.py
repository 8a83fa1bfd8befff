"""``mode=eval`` of a run that learned a task: its right answers, by the length of the rows."""

from __future__ import annotations

import torch
from rich.console import Console

from elman.base.consoles import say
from elman.base.errors import UserError
from elman.base.tables import TerminalTable, numbers, text
from elman.config.run_config import RunConfig
from elman.data.tasks.batches import TaskData
from elman.data.tasks.blind import chance
from elman.evaluation.answers import accuracy_at, rows_at_once
from elman.models.language_model import LanguageModel
from elman.sections.modes import EvalConfig
from elman.sections.tasks import TaskConfig


def print_answers(
    console: Console,
    settings: EvalConfig,
    trained: RunConfig,
    model: LanguageModel,
    device: torch.device,
) -> None:
    """Test a model at each length, and print the accuracies.

    Args:
        console: Where to.
        settings: Section ``eval``.
        trained: The configuration of the run.
        model: Its model.
        device: Where the model is.

    Raises:
        UserError: a setting is for text, or a length is too short for the task.
    """
    task, train = trained.data, trained.train
    assert isinstance(task, TaskConfig)
    for key in ("path", "max_bytes", "carry_state", "document_window"):
        if getattr(settings, key) not in (None, False):
            raise UserError(
                f"eval.{key}: {settings.checkpoint} learned the task {task.task}, not text; drop it"
            )
    lengths = task.lengths if settings.lengths is None else settings.lengths
    task.check_lengths("eval.lengths", lengths)
    headings = [*numbers("length", "accuracy", "chance", "answers"), text("meaning")]
    table = TerminalTable(headings, ("meaning", "answers"))
    for length in sorted(set(lengths)):
        rows = settings.batch_size or rows_at_once(train.batch_size, train.chunk_size, length)
        score = accuracy_at(model, TaskData(task), length, rows, device, train.precision)
        meaning = "the trained length" if length == train.chunk_size else ""
        guess = f"{chance(task, length):.4f}"
        table.add(f"{length:,}", f"{score.accuracy:.4f}", guess, f"{score.answered:,}", meaning)
    table.print(console)
    say(
        console,
        f"{trained.model.name} on {task.task}: share of right answers in {task.test_rows:,} fixed "
        "rows of each length; chance: the best blind guess (always one answer, or by the position, "
        "or by the present symbol)",
    )
