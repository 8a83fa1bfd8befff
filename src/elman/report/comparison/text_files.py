"""The report as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from elman.evaluation.result import DEFINITIONS
from elman.published import PublishedResult
from elman.report.comparison.content import Report
from elman.report.comparison.escape import one_line
from elman.report.comparison.rows import (
    MEASURES,
    NONE,
    STEP_DEFINITION,
    WARNING,
    Row,
    backend,
    published_words,
    step_us,
)
from elman.report.comparison.runs import Run
from elman.report.comparison.statistics import spread
from elman.report.comparison.tasks_page import task_tables
from elman.report.comparison.wins_text import (
    DIFFERENCE_COLUMNS,
    Command,
    difference_lines,
    wins_markdown,
)
from elman.report.markdown import table

MARKDOWN_MARK = "<!-- written by elman mode=report -->"
_SPREAD_OF = ("loss", "bpb", "val_bpb", "tok_s")
CSV_COLUMNS = {
    "kind": "model: one row of the table, over its seeds; run: one run of the row before it; "
    "published: a figure that others published; difference: a number of a row against another row",
    "set": "rows of one set are comparable; empty if no run counts",
    "model": "name of the model",
    "label": "the model and the settings that differ from the other rows",
    "folder": "of a run: its folder",
    "job": "of a run: its number in its sweep",
    "seed": "of a run: train.seed; of a row: the seeds in its means",
    "n": "of a row: the number of runs in its means",
    "runs": "of a row: the number of its runs",
    "status": "how it ended",
    "reason": "of a run: why it did not end well",
    "params": DEFINITIONS["params"],
    "backend": "which implementation ran",
    "contended": "of a run: whether other work used its GPU, or much of its CPUs; empty if unknown",
    "jobs_per_gpu": f"of a run: {DEFINITIONS['jobs_per_gpu']}",
    "slow_path": f"of a run: {DEFINITIONS['slow_path']}",
    "graph": f"of a run: {DEFINITIONS['graph']}",
    "metrics_version": f"of a run: {DEFINITIONS['metrics_version']}",
    **{measure.key: f"{measure.definition}; of a row: mean over seeds" for measure in MEASURES},
    "step_us": f"{STEP_DEFINITION}; of a row: mean over seeds",
    "accuracy": f"of a run: {DEFINITIONS['accuracy']}",
    "accuracy_by_length": f"of a run: {DEFINITIONS['accuracy_by_length']}; as length:share",
    "loss_steps": "of a run: number of steps over which its loss is the mean",
    **{
        f"{key}_{kind}": f"of a row: {what} of {key}"
        for key in _SPREAD_OF
        for kind, what in (
            ("sd", "standard deviation (n - 1), from two seeds on,"),
            ("min", "smallest"),
            ("max", "largest"),
        )
    },
    "published": "of a row: the published loss, its suite and date",
    "definition": "of a published figure: the definition of its loss, and its caveat",
    **DIFFERENCE_COLUMNS,
}
"""Columns of ``report.csv`` and what each holds."""


def csv_text(report: Report) -> str:
    """Return the rows, each followed by its runs, and then the published figures, as CSV."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for line in _lines(report):
        writer.writerow({key: _cell(value) for key, value in line.items()})
    return file.getvalue()


def _lines(report: Report) -> Iterator[dict[str, Any]]:
    for row, records in zip(report.rows, report.published.by_row, strict=True):
        yield _row(row, records[0] if records else None)
        for run in row.runs:
            yield _run(row, run)
    for record in report.published.records:
        yield _published(record)
    yield from difference_lines(report.wins)


def _row(row: Row, record: PublishedResult | None) -> dict[str, Any]:
    line: dict[str, Any] = {
        "kind": "model",
        "set": row.set,
        "model": row.model,
        "label": row.label,
        "seed": row.seeds if row.counted else None,
        "n": len(row.counted),
        "runs": len(row.runs),
        "status": row.status,
        "params": row.first(lambda result: result.params),
        "backend": None if backend(row) == NONE else backend(row),
        "published": published_words(record) if record else None,
    }
    if (each := spread([step_us(run) for run in row.counted])) is not None:
        line["step_us"] = each.mean
    for measure in MEASURES:
        if (found := row.over_runs(measure.of)) is None:
            continue
        line[measure.key] = found.mean / measure.scale
        if measure.key in _SPREAD_OF:
            line[f"{measure.key}_sd"] = found.sd
            line[f"{measure.key}_min"] = found.low
            line[f"{measure.key}_max"] = found.high
    return line


def _run(row: Row, run: Run) -> dict[str, Any]:
    line: dict[str, Any] = {
        "kind": "run",
        "set": row.set if run.counts else None,
        "model": run.model,
        "label": row.label,
        "folder": str(run.folder) if run.folder else None,
        "job": run.job,
        "seed": run.seed,
        "status": run.status,
        "reason": "; ".join(filter(None, (run.reason, *run.problems))),
    }
    if (result := run.result) is None:
        return line
    names = ("params", "backend", "contended", "jobs_per_gpu", "slow_path", "graph")
    line |= {name: getattr(result, name) for name in (*names, "metrics_version", "loss_steps")}
    line["step_us"] = step_us(run)
    line["accuracy"] = result.accuracy
    tested = result.accuracy_by_length.items()
    line["accuracy_by_length"] = " ".join(f"{at}:{share}" for at, share in tested)
    for measure in MEASURES:
        if (value := measure.of(result)) is not None:
            line[measure.key] = value / measure.scale
    return line


def _published(record: PublishedResult) -> dict[str, Any]:
    figures = record.figures
    return {
        "kind": "published",
        "model": figures.model,
        "label": figures.model,
        "params": figures.params,
        "loss": figures.loss,
        "tok_s": figures.tok_s,
        "steps": figures.steps,
        "peak_memory_gb": figures.memory_gb,
        "step_us": figures.step_us,
        "published": published_words(record),
        "definition": "; ".join(filter(None, (record.of.definition, record.caveats))),
    }


def _cell(value: Any) -> Any:
    """Return a value for CSV that a spreadsheet does not take for a formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = one_line(value)
        return f"'{value}" if value[:1] in tuple("=+-@") else value
    return value


def markdown_text(report: Report) -> str:
    """Return the table with its notes, every column's definition, and the published figures."""
    columns = report.columns
    parts = [MARKDOWN_MARK, "# Report"]
    parts += [
        _code(command)
        for source in report.sources
        for command in (source.command, *source.added)
        if command
    ]
    parts += [
        f"**{_plain(title)}.** {_plain(text)}".strip()
        for title, text in (source.about for source in report.sources)
        if title
    ]
    parts.append(_table([column.head for column in columns], report.cells))
    if notes := [*report.comparison, *report.problems]:
        parts.append("\n".join(f"- {_plain(note)}" for note in notes))
    for line in (*task_tables(report), *wins_markdown(report.wins)):
        if isinstance(line, Command):
            parts.append(f"{_plain(line.purpose)}: {_code(line.text)}")
        else:
            parts.append(_table(*line) if isinstance(line, tuple) else _plain(line))
    parts.append("What each column is:")
    parts.append("\n".join(f"- {_plain(c.head)}: {_plain(c.definition)}" for c in columns))
    if records := report.published.records:
        heads = ("model", "published", "definition of its loss", "caveat")
        lines = [
            [r.figures.model, published_words(r), r.of.definition or NONE, r.caveats]
            for r in records
        ]
        parts += [WARNING, _table(heads, lines)]
    return "\n\n".join(parts) + "\n"


def _code(command: str) -> str:
    return f"`{one_line(command).replace('`', chr(39))}`"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return table([_plain(head) for head in heads], [list(map(_plain, line)) for line in lines])


def _plain(text: str) -> str:
    """Return text that Markdown shows unchanged, on one line; a table escapes its bars itself."""
    shown = one_line(text)
    for mark in "\\`*_<>[]#":
        shown = shown.replace(mark, f"\\{mark}")
    return shown
