"""The files of a report: its page, its table as CSV and as Markdown, and its audit as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.whole_file import put_text
from elman.evaluation.result import DEFINITIONS
from elman.published import PublishedResult
from elman.report.comparison.audit.audit import JSON_MARK
from elman.report.comparison.audit.audit import METHOD as AUDIT_METHOD
from elman.report.comparison.audit.audit import TITLE as AUDIT
from elman.report.comparison.audit.finding import State
from elman.report.comparison.blocks import (
    Command,
    Head,
    Line,
    Table,
    csv_table,
    markdown_table,
    one_line,
    paragraphs,
    plain_markdown,
    table,
)
from elman.report.comparison.columns import MEASURES, STEP_DEFINITION, backend, step_us
from elman.report.comparison.components_text import (
    COMPONENT_COLUMNS,
    component_json,
    component_lines,
    component_parts,
)
from elman.report.comparison.components_text import JSON_MARK as COMPONENTS_MARK
from elman.report.comparison.components_text import TITLE as COMPONENTS
from elman.report.comparison.ladder_text import JSON_MARK as LADDER_MARK
from elman.report.comparison.ladder_text import TITLE as LADDER
from elman.report.comparison.ladder_text import ladder_json, ladder_parts
from elman.report.comparison.notes import rate_notes
from elman.report.comparison.page import PAGE_MARK, page_text
from elman.report.comparison.published_figures import WARNING, published_words
from elman.report.comparison.report_data import Report
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import Run
from elman.report.comparison.statistics import spread
from elman.report.comparison.tuned_text import TITLE as TUNING
from elman.report.comparison.tuned_text import TUNING_COLUMNS, tuning_lines, tuning_parts
from elman.report.comparison.wins_text import DIFFERENCE_COLUMNS, difference_lines, wins_markdown

MARKDOWN_MARK = "<!-- written by elman mode=report -->"
_SPREAD_OF = ("loss", "bpb", "val_bpb", "tok_s")
CSV_COLUMNS = {
    "kind": "model: one row of the table, over its seeds; run: one run of the row before it; "
    "published: a figure that others published; difference: a number of a row against another row; "
    "arm: an arm of a tuned sweep; component: a component of a suite",
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
    "state_bytes": DEFINITIONS["state_bytes"],
    "state_bytes_per_byte": DEFINITIONS["state_bytes_per_byte"],
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
    **TUNING_COLUMNS,
    **COMPONENT_COLUMNS,
}
"""Columns of ``report.csv`` and what each holds."""


def csv_text(report: Report) -> str:
    """Return the rows, each followed by its runs, and then the published figures, as CSV."""
    lines = [Line([line.get(key, "") for key in CSV_COLUMNS]) for line in _lines(report)]
    return csv_table(Table([Head(key) for key in CSV_COLUMNS], lines))


def _lines(report: Report) -> Iterator[dict[str, Any]]:
    for row, records in zip(report.rows, report.published.by_row, strict=True):
        yield _row(row, records[0] if records else None)
        for run in row.runs:
            yield _run(row, run)
    for record in report.published.records:
        yield _published(record)
    yield from difference_lines(report.wins)
    yield from tuning_lines(report.tuned)
    yield from component_lines(report.components)


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
        "state_bytes": row.first(lambda result: result.state_bytes),
        "state_bytes_per_byte": row.first(lambda result: result.state_bytes_per_byte),
        "backend": None if backend(row) == NONE else backend(row),
        "published": published_words(record) if record else None,
    }
    if (each := spread([step_us(run) for run in row.counted])) is not None:
        line["step_us"] = each.mean
    for measure in MEASURES:
        if (values := row.over_runs(measure.of)) is None:
            continue
        line[measure.key] = values.mean / measure.scale
        if measure.key in _SPREAD_OF:
            line[f"{measure.key}_sd"] = values.sd
            line[f"{measure.key}_min"] = values.low
            line[f"{measure.key}_max"] = values.high
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
    names = (
        *("params", "state_bytes", "state_bytes_per_byte", "backend", "contended"),
        *("jobs_per_gpu", "slow_path", "graph"),
    )
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
        f"**{plain_markdown(title)}.** {plain_markdown(text)}".strip()
        for title, text in (source.about for source in report.sources)
        if title
    ]
    parts += map(plain_markdown, rate_notes(report.sources))
    parts.append(markdown_table(table([column.head for column in columns], report.cells)))
    if notes := [*report.comparison, *report.problems]:
        parts.append("\n".join(f"- {plain_markdown(note)}" for note in notes))
    tasks = report.tasks.in_words(report.published.records)
    ladders = paragraphs(LADDER, ladder_parts(report.ladders))
    gains = paragraphs(COMPONENTS, component_parts(report.components))
    tuned = paragraphs(TUNING, tuning_parts(report.tuned))
    for part in (*tasks, *ladders, *gains, *tuned, *wins_markdown(report.wins)):
        if isinstance(part, Command):
            parts.append(f"{plain_markdown(part.purpose)}: {_code(part.text)}")
        else:
            parts.append(plain_markdown(part) if isinstance(part, str) else markdown_table(part))
    parts += _audit(report)
    parts.append("What each column is:")
    parts.append(
        "\n".join(f"- {plain_markdown(c.head)}: {plain_markdown(c.definition)}" for c in columns)
    )
    if records := report.published.records:
        heads = ("model", "published", "definition of its loss", "caveat")
        lines = [
            [r.figures.model, published_words(r), r.of.definition or NONE, r.caveats]
            for r in records
        ]
        parts += [WARNING, markdown_table(table(heads, lines))]
    return "\n\n".join(parts) + "\n"


def _audit(report: Report) -> list[str]:
    """Return the audit as paragraphs and a table; nothing if nothing is compared."""
    if not report.audit.rows:
        return []
    method = map(plain_markdown, AUDIT_METHOD)
    return [f"{AUDIT}:", *method, markdown_table(report.audit.table(*State))]


def _code(command: str) -> str:
    return f"`{one_line(command).replace('`', chr(39))}`"


PAGE, TABLE, MARKDOWN = "report.html", "report.csv", "report.md"
_WRITERS: dict[str, Callable[[Report], str]] = {
    TABLE: csv_text,
    MARKDOWN: markdown_text,
    PAGE: page_text,
    run_files.AUDIT: lambda report: report.audit.json(),
}
_OF_LADDERS: dict[str, Callable[[Report], str]] = {
    run_files.LADDER: lambda report: ladder_json(report.ladders)
}
_OF_COMPONENTS: dict[str, Callable[[Report], str]] = {
    run_files.COMPONENTS: lambda report: component_json(report.components)
}
# How an earlier report begins: only such a file is replaced.
_MARKS = {TABLE: ",".join(list(CSV_COLUMNS)[:5]), MARKDOWN: MARKDOWN_MARK, PAGE: PAGE_MARK}
_MARKS |= {run_files.AUDIT: JSON_MARK, run_files.COMPONENTS: COMPONENTS_MARK}
_MARKS |= {run_files.LADDER: LADDER_MARK}
_BEGINNING = 1024


def write_report(report: Report, folder: Path) -> Path:
    """Write the report into ``folder`` and return the path of its page.

    Raises:
        UserError: another program's file has such a name, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writers = {**_WRITERS, **(_OF_COMPONENTS if report.components else {})}
        writers |= _OF_LADDERS if report.ladders else {}
        for name in writers:
            _refuse_foreign(folder / name)
        for name, writer in writers.items():
            # A file name may hold bytes that are not text.
            put_text(folder / name, writer(report), several=True, errors="replace")
    except OSError as error:
        raise UserError(
            f"{folder}: the report cannot be written ({error.strerror}); "
            "name another folder with report.out=<folder>"
        ) from None
    return folder / PAGE


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    known = path.is_file() and _MARKS[path.name].encode() in path.read_bytes()[:_BEGINNING]
    if not known:
        raise UserError(
            f"{path}: exists and is not an earlier report; "
            "move it, or name another folder with report.out=<folder>"
        )
