"""The table at the end of a run, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from elman.base import run_files
from elman.base.consoles import say
from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable
from elman.base.tables import TerminalTable, names, numbers, text
from elman.base.typed_in import shortest
from elman.base.units import MEMORY, duration
from elman.evaluation.result import RunResult, Seconds
from elman.report.comparison.per_byte import bytes_per_token
from elman.report.tables.sweep import computed_by
from elman.sections.budget import KINDS

_COLORS = {"ok": "green", "interrupted": "yellow"}


def print_summary(console: Console, folder: Path, result: RunResult) -> None:
    """Print the defined numbers of ``result`` and the commands for the next steps."""
    status = result.status
    if result.params is None:  # it ended before there was a model; its error is already printed
        console.print(f"{result.model}: {status}", style=_COLORS.get(status, "red"))
        return
    console.print(Text(f"{result.model}: {status}", style=_COLORS.get(status, "red")))
    table = measures_table()
    for measure, value, meaning in _rows(result):
        table.add(measure, value, Text(meaning, style="dim"))
    table.print(console)
    place = shortest(folder)
    say(console, f"everything about it: {place}")
    saved = bool(run_files.checkpoints_in(folder))
    if saved and status != RunStatus.NAN:  # after NaN, the error says what to try
        _print_next(console, place, status, learned_text=result.data.task is None)


_OF_TOKENS = ("token", "tokens predicted")


def measures_table() -> TerminalTable:
    """Return an empty table of numbers, each with its name and meaning."""
    return TerminalTable([*names("measure"), *numbers("value"), text("meaning")])


def _print_next(console: Console, place: str, status: str, *, learned_text: bool) -> None:
    steps = [("score it", f"elman mode=eval {pasteable('eval.checkpoint', place)}")]
    if learned_text:
        generate = f"elman mode=generate {pasteable('generate.checkpoint', place)}"
        steps.insert(0, ("sample it", generate))
    if status != RunStatus.OK:
        steps.insert(0, ("continue", f"elman {pasteable('train.resume', place)}"))
    for label, command in steps:
        say(console, f"  {label:<10} {command}")


def _rows(result: RunResult) -> list[tuple[str, str, str]]:
    seconds, task = result.seconds, result.data.task
    what, unit = ("answer", "positions read") if task else ("byte", "bytes predicted")
    learned, predicted = (what, unit) if result.data.tokenizer is None else _OF_TOKENS
    paused = f"{duration(seconds.validation or 0.0)} validating"
    paused += f", {duration(seconds.checkpoint or 0.0)} saving"
    if seconds.first_step is not None:
        paused += f", {duration(_before(seconds))} before the first step"
    rows = [
        ("parameters", f"{result.params:,}", _computed_by(result)),
        ("steps", f"{result.steps:,}", f"{result.tokens:,} {predicted}{_text_of(result)}"),
        *_measured(result),
        ("time", duration(seconds.train or 0.0), f"training; besides {paused}"),
        ("loss", _number(result.loss), f"nats per {learned}, last {result.loss_steps} steps"),
        ("bpb", _number(result.bpb), f"bits per {what}, the same steps"),
    ]
    if result.val_bpb is not None:
        meaning = f"bits per {what} on {result.val_tokens:,} held-out {what}s"
        if result.data.reset_at_documents:
            meaning += ", state zeroed after each document"
        if result.val_step != result.steps:
            meaning += f", at step {result.val_step:,}"
        rows.append(("val_bpb", _number(result.val_bpb), meaning))
    rows += _accuracies(result)
    rate = result.tok_s
    rows.append(
        (
            "tok/s",
            f"{rate:,.0f}" if rate else "-",
            f"{'positions' if task else f'predicted {learned}s'} a second",
        )
    )
    rows.append(("peak memory", MEMORY.text(result.peak_memory_bytes or 0, 2), ""))
    if (share := result.data_wait_share) is not None:
        rows.append(("data wait", f"{share:.2%}", "of training time"))
    if result.mfu is not None:
        rows.append(("mfu", f"{result.mfu:.1%}", "of the device's bf16 peak"))
    return rows


def _text_of(result: RunResult) -> str:
    """Say how many bytes the predicted tokens stand for, if they are no bytes."""
    if result.data.tokenizer is None or not result.tokens:
        return ""
    return f", {round(result.tokens * bytes_per_token(result)):,} bytes"


def _before(seconds: Seconds) -> float:
    """Return the time from the start of the process to the first step, without that of waiting."""
    parts = (seconds.start, seconds.imports, seconds.build, seconds.check, seconds.first_step)
    return sum(part or 0.0 for part in parts)


def _measured(result: RunResult) -> Iterator[tuple[str, str, str]]:
    """Yield how much a run took of each of its budgets that has a rate."""
    for kind in KINDS:
        if kind.rate is not None and kind.key in result.budget:
            each = getattr(result, kind.rate.name, None)
            one = kind.rate.each if result.data.tokenizer is None else "a token"
            rate = "" if each is None else f", {each:.4g} {one}"
            yield kind.unit, f"{result.budget[kind.key]['spent']:.4g}", kind.label + rate


def _accuracies(result: RunResult) -> list[tuple[str, str, str]]:
    """Return the right answers of a run that learned a task, by the length of the rows."""
    task, reached = result.data.task, result.reached_accuracy
    chance = result.data.chance_by_length
    accuracies = [
        (
            f"accuracy at {int(length):,}",
            _number(share),
            f"right answers on {task}; chance is {_number(chance.get(length))}",
        )
        for length, share in result.accuracy_by_length.items()
    ]
    if reached:
        ended = "train.until_accuracy was reached, and training ended"
        accuracies.append(("ended at", f"step {result.steps:,}", ended))
    return accuracies


def _computed_by(result: RunResult) -> str:
    """Name the backend and, of a packaged baseline, what computed it."""
    graph = ", as a CUDA graph" if result.graph else ""
    by = computed_by(result.backend or "", result.path, bool(result.slow_path))
    return f"backend {by}{graph}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
