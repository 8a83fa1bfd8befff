"""What ``mode=tasks`` prints: the list of every task, or one of them with examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from elman.base.tables import TerminalTable, names, numbers, text
from elman.config.task_files import ListedTask
from elman.data.tasks.batches import TaskData
from elman.data.tasks.blind import chance
from elman.data.tasks.words import NOTHING, in_words
from elman.sections.tasks import TaskConfig

HEADS = ("task", "what is asked", "chance", "rows")
EXAMPLES = 3
_LONGEST_EXAMPLE = 16


def tasks_table(tasks: Sequence[ListedTask]) -> TerminalTable:
    """Return one line for each task, with the lengths of its rows: trained to longest tested."""
    name, question, chance, rows = HEADS
    headings = [*names(name), text(question, 30), *numbers(chance, rows)]
    table = TerminalTable(headings, (rows, chance))
    for task in tasks:
        first = "-" if task.length is None else f"{task.length:,}"
        lengths = f"{first} to {max(task.config.lengths):,}"
        cells = (task.name, task.config.definition, _chance(task), lengths)
        table.add(*cells)
    return table


def _chance(task: ListedTask) -> str:
    """Return the share of right answers of the best blind guess, where the task is trained."""
    length = min(task.config.lengths) if task.length is None else task.length
    return f"{chance(task.config, length):.3f}"


def _facts(task: ListedTask) -> Iterator[tuple[str, str]]:
    """Yield what is known of one task, a name and its text."""
    config = task.config
    yield "what is asked", config.definition
    yield "chance", f"{_chance(task)} by the best blind guess"
    yield "trained", "-" if task.length is None else str(task.length)
    yield "tested at", ", ".join(f"{length:,}" for length in config.lengths)
    if difficulty := config.difficulty():
        yield "difficulty", " ".join(f"data.{key}={value}" for key, value in difficulty.items())


def examples(config: TaskConfig, count: int = EXAMPLES) -> list[tuple[list[str], list[str]]]:
    """Return short rows of a task in words: inputs and answers, the same in every call."""
    length = max(config.shortest, _LONGEST_EXAMPLE)
    rows = next(TaskData(config).validation_rows(length, count, count))
    return [in_words(config, row) for row in rows]


def print_task(console: Console, task: ListedTask) -> None:
    """Print everything that is known of one task: its settings and a few rows in words."""
    console.print(Text(task.name, style="bold"))
    facts = Table.grid(padding=(0, 2))
    for head, fact in _facts(task):
        facts.add_row(Text(head, style="bold"), Text(fact))
    console.print()
    console.print(facts)
    console.print()
    unasked = False
    for number, (inputs, answers) in enumerate(examples(task.config), 1):
        unasked = unasked or NOTHING in answers
        widths = [max(map(len, pair)) for pair in zip(inputs, answers, strict=True)]
        for head, words in ((f"row {number}", inputs), ("answers", answers)):
            line = " ".join(word.rjust(n) for word, n in zip(words, widths, strict=True))
            console.print(Text(f"{head:<9}{line}"), soft_wrap=True)
    dot = "A dot stands where nothing is asked. " if unasked else ""
    console.print(Text(f"{dot}elman data={task.name} learns it."))
