"""The report as one HTML page that needs nothing from outside, not even a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from elman.base.exit_status import RunStatus
from elman.base.units import MEMORY as MEMORY_UNIT
from elman.report.comparison.conditions import data_names, run_marks
from elman.report.comparison.content import Report
from elman.report.comparison.escape import escape
from elman.report.comparison.figures import figures_of
from elman.report.comparison.ink import sample
from elman.report.comparison.notes import ending, run_notes
from elman.report.comparison.page_state import failures_text, is_living, progress_text
from elman.report.comparison.palette import COLOURS, DARK, LIGHT, rules, variables
from elman.report.comparison.plots import Plot
from elman.report.comparison.rows import (
    BPB,
    LOSS,
    MEMORY,
    MINUTES,
    NONE,
    STEPS,
    TOK_S,
    VAL_BPB,
    WARNING,
    Column,
    Row,
    published_words,
)
from elman.report.comparison.runs import Run, Source
from elman.report.comparison.tasks_page import PUBLISHED, TITLE, legend_of_models, tasks_html
from elman.report.comparison.wins_page import wins_html

PAGE_MARK = '<meta name="generator" content="elman mode=report" />'
# With this policy the browser refuses to load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
# A script keeps the reader's filter and order when it reloads the page of a sweep that runs.
_RELOAD = '<noscript><meta http-equiv="refresh" content="60" /></noscript>'
# For a reader of XML the script is text; for a browser these are comments in it.
_XML = ("/*<![CDATA[*/", "/*]]>*/")
_RUN_HEADS = (
    *("row", "run", "seed", "status", "marks", "params", "steps", "loss", "bpb", "val bpb"),
    *("tok/s", MEMORY_UNIT.name, "min"),
)
_RUN_TEXTS = 4
_ONE_COLOUR = "One colour for each row"
# With more rows than this the table scrolls in itself; with more runs, theirs is folded.
_MANY_ROWS, _MANY_RUNS = 30, 60
# Cells that do not wrap, or have small type so that the table fits.
_NARROW = {"spread": "w", "val spread": "w", "published": "p", "backend": "b"}
_RUN_MEASURES = (STEPS, LOSS, BPB, VAL_BPB, TOK_S, MEMORY, MINUTES)


def page_text(report: Report) -> str:
    """Return the whole page."""
    figures = figures_of(report)
    swept, curves = figures.swept, figures.curves
    parts = [
        _head(report),
        _section("Progress", progress_text(report)),
        _section("Failures", failures_text(report)),
        _comparison(report),
        _section(TITLE, tasks_html(report, _lengths(report, figures.tasks))),
        _section("What was swept", _plots(swept)) if swept else "",
        _section("Table", _table(report)),
        _section("Who wins", wins_html(report.wins, report.rows)),
        _section("Plots", _legend(report) + _plots(curves)) if curves else "",
        _section("Runs", _runs(report)),
        _section("Problems", _list(_other_problems(report), "notes")),
        _published_accuracies(report),
        _published(report),
        _section("What each column is", _definitions(report)),
        f"<script>{_XML[0]}{_asset('page.js')}{_asset('page_values.js')}{_XML[1]}</script>"
        "</body></html>\n",
    ]
    return "\n".join(filter(None, parts))


def _head(report: Report) -> str:
    names = ", ".join(source.folder.name for source in report.sources)
    facts = []
    for source in report.sources:
        when = f"{source.started} to {source.ended or 'no end recorded'}" if source.started else ""
        suite = f"suite {source.benchmark}" if source.benchmark else ""
        facts.append(" · ".join(filter(None, (str(source.folder), suite, when))))
        facts += [source.command, *source.added]
    about = "".join(map(_about, report.sources))
    kinds = ["living"] * is_living(report) + ["long"] * (len(report.rows) > _MANY_RUNS)
    body = f'<body class="{" ".join(kinds)}">'
    meta = "".join(f'<p class="meta"><code>{escape(fact)}</code></p>' for fact in facts if fact)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" />'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}" />{PAGE_MARK}'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />'
        f"{_RELOAD if is_living(report) else ''}"
        f"<title>{escape(names)}: report</title><style>{_styles()}</style></head>"
        f"{body}<h1>{escape(names)}</h1>{meta}{about}"
    )


def _about(source: Source) -> str:
    title, text = source.about
    return f'<p class="about"><strong>{escape(title)}.</strong> {escape(text)}</p>' if title else ""


def _comparison(report: Report) -> str:
    notes = report.comparison
    counted = [row for row in report.rows if row.counted]
    agree = len(counted) > 1 and len({row.set for row in counted}) == 1
    fine = agree and not any(note.startswith("differs") for note in notes)
    if agree:
        notes = ["comparable: all conditions agree in all rows (below the table)", *notes]
    return _list(notes, "notes fine" if fine else "notes")


def _table(report: Report) -> str:
    heads = "".join(
        f'<th scope="col" class="{_head_kind(column)}" '
        f'title="{escape(column.definition)}">'
        f"{escape(column.head)}</th>"
        for column in report.columns
    )
    lines = [_line(report, number, cells) for number, cells in enumerate(report.cells)]
    table = _sorted_table(heads, lines)
    tall = " tall" if len(lines) > _MANY_ROWS else ""
    return f'<div class="scroll{tall}">{table}</div>{_conditions(report.rows)}'


def _line(report: Report, number: int, cells: Sequence[str]) -> str:
    row = report.rows[number] if number < len(report.rows) else None
    kind = "only" if row is None else "" if row.counted else "failed"
    found = []
    for column, cell in zip(report.columns, cells, strict=True):
        text, css = escape(cell), _kind(column.numeric)
        if column.head == "model":
            mark = sample(row.style) if row is not None else ""
            text, css = f'{mark}<span class="label">{text}</span>', "k"
        elif column.head == "status":
            css = "s marked" if row is not None and cell != "ok" else "s"
        css = _NARROW.get(column.head, css)
        found.append(f'<td class="{css}">{text}</td>')
    which = f' data-row="{number}"' if row is not None else ""
    return f'<tr class="{kind}"{which}>{"".join(found)}</tr>'


def _conditions(rows: Sequence[Row]) -> str:
    """Return the conditions that must agree, with their values by set."""
    by_set: dict[int, dict[str, str]] = {}
    files: dict[int, dict[str, None]] = {}
    for row in rows:
        if row.set is not None:
            by_set.setdefault(row.set, row.conditions)
            files.setdefault(row.set, {})[data_names(row.counted[0])] = None
    for number, found in by_set.items():
        found["files of the data"] = " or ".join(files[number])
    if not by_set:
        return ""
    names = next(iter(by_set.values()))
    pairs = []
    for name in names:
        values = {number: found[name] for number, found in by_set.items()}
        same = len(set(values.values())) == 1
        text = (
            next(iter(values.values()))
            if same
            else "; ".join(f"{value} (set {number})" for number, value in values.items())
        )
        pairs.append((name, text))
    return f"<details><summary>Conditions of the runs</summary>{_pairs(pairs)}</details>"


def _legend(report: Report) -> str:
    entries = [
        _entry([number], row.style, escape(row.label) + _mark(row))
        for number, row in enumerate(report.rows)
        if any(run.metrics is not None for run in row.runs)
    ]
    several = len(report.tasks.names) > 1
    one = "One colour for each model, with other dashes for each task" if several else _ONE_COLOUR
    words_of_it = (
        f'<p class="caption">{one}: the mean of its seeds with a band from the '
        "lowest to the highest, or one run. A cross ends a run that did not end well; a dashed "
        "square marks what is marked in the table. Point at a row to see it alone, click to keep "
        "it. Point into a plot for its values, or select it and use the arrow keys.</p>"
    )
    return f'{words_of_it}<ul class="legend">{"".join(entries)}</ul>'


def _entry(rows: Sequence[int], style: int, name: str) -> str:
    """Return an entry of a legend: a button that shows the curves of some rows alone."""
    return (
        f'<li><button type="button" data-row="{" ".join(map(str, rows))}" aria-pressed="false">'
        f"{sample(style)}{name}</button></li>"
    )


def _lengths(report: Report, plots: Sequence[Plot]) -> str:
    """Return the plots of accuracy by length below the legend that they share."""
    if not plots:
        return ""
    models = legend_of_models(report.tasks)
    entries = "".join(_entry(rows, style, escape(model)) for model, (style, rows) in models.items())
    repeated = "; dashes tell models of one colour apart" if len(models) > COLOURS else ""
    words_of_it = (
        f'<p class="caption">One colour for each model, the same on the whole page{repeated}. '
        "Point at a model to see it alone, click to keep it.</p>"
    )
    return f'{words_of_it}<ul class="legend">{entries}</ul>{_plots(plots)}'


def _mark(row: Row) -> str:
    return f' <span class="marked">{escape(", ".join(row.marks))}</span>' if row.marks else ""


def _plots(plots: Sequence[Plot]) -> str:
    return f'<div class="plots">{"".join(map(_figure, plots))}</div>'


def _figure(plot: Plot) -> str:
    numbers = ""
    if plot.lines:
        table = _plain(plot.heads, plot.lines)
        numbers = f"<details><summary>In numbers</summary>{table}</details>"
    return (
        f'<figure><h3>{escape(plot.title)}</h3><div class="scroll">{plot.svg}</div>'
        f"<figcaption>{escape(plot.caption)}</figcaption>{numbers}</figure>"
    )


def _runs(report: Report) -> str:
    lines = []
    for number, row in enumerate(report.rows):
        for run in row.runs:
            cells = _run_cells(row, run)
            texts = [
                f'<td class="{_kind(at > _RUN_TEXTS)}">{escape(cell)}</td>'
                for at, cell in enumerate(cells)
            ]
            kind = "" if run.counts else "failed"
            lines.append(f'<tr class="{kind}" data-row="{number}">{"".join(texts)}</tr>')
    heads = "".join(
        f'<th scope="col" class="{_kind(at > _RUN_TEXTS)}">{escape(head)}</th>'
        for at, head in enumerate(_RUN_HEADS)
    )
    table = f'<div class="scroll">{_sorted_table(heads, lines)}</div>'
    if len(lines) <= _MANY_RUNS:
        return table
    return f"<details><summary>All {len(lines)} runs</summary>{table}</details>"


def _other_problems(report: Report) -> list[str]:
    """Return the problems that are not how a run ended: those stand among the failures."""
    ends = {line for run in report.runs if run.status != RunStatus.OK for line in run_notes([run])}
    problems = [problem for run in report.runs for problem in run_notes([run])]
    told = [line for line in report.problems if line not in ends]
    return told if problems else report.problems


def _sorted_table(heads: str, lines: Sequence[str]) -> str:
    """Return a table that its headings sort, if the page may run its script."""
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<table class="sorted">{body}</table>'


def _run_cells(row: Row, run: Run) -> list[str]:
    result = run.result
    params = result.params if result else None
    numbers = [m.shown(m.of(result) if result else None) for m in _RUN_MEASURES]
    return [
        row.label,
        run.name,
        NONE if run.seed is None else str(run.seed),
        run.status if run.counts else ending(run),
        ", ".join((*run_marks(run), *row.unequal_mark)) or NONE,
        NONE if params is None else f"{params:,}",
        *numbers,
    ]


def _published(report: Report) -> str:
    records = report.published.records
    if not records:
        return ""
    lines = []
    for record in records:
        figures = record.figures
        lines.append(
            (
                figures.model,
                published_words(record),
                NONE if figures.params is None else f"{figures.params:,}",
                NONE if figures.tok_s is None else f"{figures.tok_s:,.0f}",
                NONE if figures.steps is None else f"{figures.steps:,}",
                record.of.definition or NONE,
                record.of.setting,
                record.caveats,
                record.of.citation,
            )
        )
    heads = ("model", "published", "params", "tok/s", "steps", "definition of the loss")
    table = _plain((*heads, "setting", "caveat", "source"), lines)
    return _section("Published figures", f"<p>{escape(WARNING)}</p>{table}")


def _published_accuracies(report: Report) -> str:
    if not report.tasks.cells:
        return ""
    heads, lines = report.tasks.beside_published(report.published.records)
    return _section(PUBLISHED, _plain(heads, lines)) if lines else ""


def _definitions(report: Report) -> str:
    return _pairs([(column.head, column.definition) for column in report.columns])


def _plain(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    inside = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
    return f"<dl>{inside}</dl>"


def _list(lines: Sequence[str], css: str) -> str:
    if not lines:
        return ""
    return f'<ul class="{css}">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inside}</section>" if inside else ""


def _head_kind(column: Column) -> str:
    return "k" if column.head == "model" else _kind(column.numeric)


def _kind(numeric: bool) -> str:
    return "n" if numeric else "t"


def _styles() -> str:
    """Return the page's CSS with the colours and pens of its pictures."""
    light, dark = variables(LIGHT), variables(DARK)
    return (
        f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) "
        f"{{ :root {{ {dark} }} }}\n{rules()}\n{_asset('page.css')}"
    )


def _asset(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")
