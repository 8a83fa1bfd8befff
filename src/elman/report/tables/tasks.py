"""What ``mode=tasks`` prints: the list of every task, or one of them with examples."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from elman.config.task_files import ListedTask
from elman.data.tasks.batches import TaskData
from elman.data.tasks.words import in_words
from elman.report.tables.models import plain_table
from elman.sections.tasks import TaskConfig

HEADS = ("task", "what is asked", "chance", "trained", "tested at", "difficulty")
EXAMPLES = 3
_LONGEST_EXAMPLE = 16


def task_cells(task: ListedTask) -> list[str]:
    """Return one task as text, under ``HEADS``."""
    config = task.config
    return [
        task.name,
        config.definition,
        f"{config.chance:.3f}",
        "-" if task.length is None else str(task.length),
        ", ".join(f"{length:,}" for length in config.lengths),
        " ".join(f"data.{key}={value}" for key, value in config.difficulty().items()) or "-",
    ]


def tasks_table(tasks: Sequence[ListedTask]) -> Table:
    """Return one line for each task."""
    table = plain_table(*HEADS, right=("chance", "trained"))
    table.columns[0].no_wrap = True
    for task in tasks:
        table.add_row(*map(Text, task_cells(task)))
    return table


def examples(config: TaskConfig, count: int = EXAMPLES) -> list[tuple[list[str], list[str]]]:
    """Return short rows of a task in words: inputs and answers, the same in every call."""
    length = max(config.shortest, _LONGEST_EXAMPLE)
    rows = next(TaskData(config).validation_rows(length, count, count))
    return [in_words(config, row) for row in rows]


def print_task(console: Console, task: ListedTask) -> None:
    """Print everything that is known of one task: its settings and a few rows in words."""
    console.print(Text(task.name, style="bold"))
    facts = Table.grid(padding=(0, 2))
    for head, cell in zip(HEADS[1:], task_cells(task)[1:], strict=True):
        facts.add_row(Text(head, style="bold"), Text(cell))
    console.print(Padding(facts, (1, 0)))
    for number, (inputs, answers) in enumerate(examples(task.config), 1):
        widths = [max(map(len, pair)) for pair in zip(inputs, answers, strict=True)]
        for head, words in ((f"row {number}", inputs), ("answers", answers)):
            line = " ".join(word.rjust(n) for word, n in zip(words, widths, strict=True))
            console.print(Text(f"{head:<9}{line}"), soft_wrap=True)
    console.print(Text(f"A dot stands where nothing is asked. elman data={task.name} learns it."))
