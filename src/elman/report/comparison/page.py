"""The report as one HTML page that needs nothing from outside, not even a network.

``blocks_of`` lists the blocks of the page in their order. A new block is a file with a function
that returns a :class:`~.blocks.Block`, and one line in that list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from elman.base.exit_status import RunStatus
from elman.base.units import MEMORY as MEMORY_UNIT
from elman.base.units import duration
from elman.report.comparison.audit.audit import TITLE as AUDIT
from elman.report.comparison.blocks import (
    Block,
    Command,
    Entry,
    Figure,
    Figures,
    Fold,
    Head,
    Item,
    Items,
    Job,
    Jobs,
    Legend,
    Line,
    Pairs,
    Table,
    Text,
    printable,
    table,
)
from elman.report.comparison.columns import (
    BPB,
    LOSS,
    MEMORY,
    MINUTES,
    SPEED_HEAD,
    STEPS,
    TOK_S,
    VAL_BPB,
    speed_head,
)
from elman.report.comparison.components_text import TITLE as COMPONENTS_TITLE
from elman.report.comparison.components_text import component_parts
from elman.report.comparison.conditions import data_names, run_marks
from elman.report.comparison.draw import Plot
from elman.report.comparison.draw_tuned import marker
from elman.report.comparison.ink import COLORS, DARK, LIGHT, rules, sample, svg, variables
from elman.report.comparison.ladder_text import TITLE as LADDER_TITLE
from elman.report.comparison.ladder_text import ladder_parts
from elman.report.comparison.notes import Failures, ending, failures_of, rate_notes, run_notes
from elman.report.comparison.plots import GRID, PagePictures, page_pictures
from elman.report.comparison.progress import ESTIMATE, JobProgress, Progress, progress_of
from elman.report.comparison.published_figures import WARNING, published_words
from elman.report.comparison.report_data import Report
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import NOT_ENDED, WAITS, Run
from elman.report.comparison.sources import Source
from elman.report.comparison.tasks import METHOD, PUBLISHED, TITLE, style_of_model
from elman.report.comparison.tuned_text import TITLE as TUNING_TITLE
from elman.report.comparison.tuned_text import tuning_parts
from elman.report.comparison.wins_text import wins_parts
from elman.runs.state import RUNNING

_MARK = '<meta name="generator" content="elman mode={}" />'
PAGE_MARK = _MARK.format("report")
_RUN_HEADS = (
    *("row", "run", "seed", "status", "marks", "params", "steps", "loss", "bpb", "val bpb"),
    *(SPEED_HEAD, MEMORY_UNIT.name, "min"),
)
_RUN_MEASURES = (STEPS, LOSS, BPB, VAL_BPB, TOK_S, MEMORY, MINUTES)
_RUN_TEXTS = 5
# With more rows than this the table scrolls in itself; with more runs, theirs is folded.
_MANY_ROWS, _MANY_RUNS = 30, 60
_MOST_NAMED = 12
# The parallel coordinates of more arms are folded.
_MOST_PARALLEL = 4
# Classes of cells: the name of a row, its status, cells that do not wrap, and small type.
_CELLS = {"model": "k", "status": "s", "spread": "w", "val spread": "w"}
_CELLS |= {"published": "p", "backend": "b"}
_SIGNS = {"ok": "\N{CHECK MARK}", "bad": "\N{MULTIPLICATION SIGN}", "runs": "", "waits": ""}


def blocks_of(report: Report) -> Iterator[Block]:
    """Yield the blocks of the page, in their order."""
    pictures = page_pictures(report)
    yield _about(report)
    yield _progress(report)
    yield _failures(report)
    yield _comparison(report)
    yield _tasks(report, pictures)
    yield Block("What was swept", figures_of(pictures.swept))
    yield _table(report)
    yield Block(LADDER_TITLE, [*ladder_parts(report.ladders), *_laws(pictures)])
    gains = [*component_parts(report.components), *figures_of(pictures.components)]
    yield Block(COMPONENTS_TITLE, gains)
    yield Block(TUNING_TITLE, [*tuning_parts(report.tuned), *_trials(pictures)])
    yield Block("Who wins", wins_parts(report.wins, report.rows))
    yield Block(AUDIT, report.audit.parts())
    yield _plots(report, pictures.curves)
    yield _runs(report)
    yield Block("Problems", _list(_other_problems(report)))
    yield _published_accuracies(report)
    yield _published(report)
    yield Block("What each column is", [Pairs([(c.head, c.definition) for c in report.columns])])


def page_text(report: Report) -> str:
    """Return the whole page."""
    names = ", ".join(source.folder.name for source in report.sources)
    living = any(source.living for source in report.sources)
    long = len(report.rows) > _MANY_RUNS
    return rendered("report", names, list(_facts(report)), blocks_of(report), living, long)


def rendered(
    mode: str,
    names: str,
    facts: Sequence[str],
    blocks: Iterable[Block],
    living: bool = False,
    long: bool = False,
) -> str:
    """Return a page of blocks.

    Args:
        mode: The mode that writes it.
        names: What it is about.
        facts: The lines below its heading.
        blocks: Its blocks; those without parts are left out.
        living: Whether it reloads itself each minute.
        long: Whether so much is on it that numbers of figures are not printed on paper.
    """
    return _template().render(
        mode=mode,
        blocks=list(blocks),
        names=names,
        facts=facts,
        living=living,
        long=long,
        mark=Markup(_MARK.format(mode)),
        light=Markup(variables(LIGHT)),
        dark=Markup(variables(DARK)),
        pens=Markup(rules()),
        css=_asset("page.css"),
        script=_asset("page.js") + _asset("page_values.js"),
        sample=_sample,
    )


def _sample(style: int, marked: bool = False) -> Markup:
    return Markup(sample(style, marker(style, 13, 5) if marked else None))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        finalize=_printable,
    )
    return environment.from_string(_asset("page.html.jinja"))


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> Markup:
    return Markup(files(__package__ or "").joinpath(name).read_text(encoding="utf-8"))


def _facts(report: Report) -> Iterator[str]:
    """Yield where a report is from, and the commands that made it."""
    for source in report.sources:
        when = f"{source.started} to {source.ended or 'no end recorded'}" if source.started else ""
        suite = f"suite {source.benchmark}" if source.benchmark else ""
        facts = (" · ".join(filter(None, (str(source.folder), suite, when))), source.command)
        yield from filter(None, (*facts, *source.added))


def _about(report: Report) -> Block:
    about = [source.about for source in report.sources]
    rates = [Text(line, "about") for line in rate_notes(report.sources)]
    return Block("", [Text(text, "about", f"{title}.") for title, text in about if title] + rates)


def _list(lines: Sequence[str], css: str = "notes") -> list[Items]:
    return [Items([Item(line) for line in lines], css)] if lines else []


def _comparison(report: Report) -> Block:
    notes = report.comparison
    counted = [row for row in report.rows if row.counted]
    agree = len(counted) > 1 and len({row.set for row in counted}) == 1
    fine = agree and not any(note.startswith("differs") for note in notes)
    if agree:
        notes = ["comparable: all conditions agree in all rows (below the table)", *notes]
    return Block("", _list(notes, "notes fine" if fine else "notes"))


def _progress(report: Report) -> Block:
    """Return how far the running sweeps are; without parts if none runs."""
    rows = {id(run): number for number, row in enumerate(report.rows) for run in row.runs}
    running = [source for source in report.sources if source.living]
    return Block("Progress", [part for source in running for part in _progress_of(source, rows)])


def _progress_of(source: Source, rows: dict[int, int]) -> Iterator[Any]:
    progress = progress_of(source)
    counts = {
        "ok": progress.count(RunStatus.OK),
        "bad": progress.failed,
        "runs": progress.count(RUNNING),
        "waits": progress.count(*WAITS),
    }
    words = dict(zip(counts, ("ok", "failed", "running", "waiting"), strict=True))
    bold = Markup("<b>{}</b> {}").format
    states = [bold(count, words[state]) for state, count in counts.items() if count]
    counted = Markup(", ").join(states)
    left = Markup("{} of {} jobs; {}").format(counted, len(progress.jobs), _left(progress))
    yield Text(left, "state")
    yield Jobs(counts, [_job(job.run, rows) for job in progress.jobs])
    running = [job for job in progress.jobs if job.run.status == RUNNING]
    if running:
        yield _running(running, rows)
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    yield Text(
        f"As of {now}; this page is rewritten each minute while the sweep runs, and reloads "
        f"itself. {ESTIMATE}",
        "caption",
    )


def _left(progress: Progress) -> str:
    """Say how long the sweep will take, and the time of its jobs together."""
    unit = "GPU hours" if progress.on_gpus else "hours of jobs"
    spent, left = progress.spent / 3600, progress.left / 3600
    if progress.unknown == progress.count(*NOT_ENDED) > 0:
        return f"time left unknown until a job has recorded steps; {_hours(spent)} {unit} so far"
    least = "at least" if progress.unknown else "about"
    until = Markup("<b>{}</b> left").format(duration(progress.seconds))
    return Markup("{} {}; {} {} so far, {} {} to come").format(
        least, until, _hours(spent), unit, least, _hours(left)
    )


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2g}"


def _state(run: Run) -> str:
    if run.status == RunStatus.OK:
        return "ok"
    return "runs" if run.status == RUNNING else "waits" if run.status in WAITS else "bad"


def _job(run: Run, rows: dict[int, int]) -> Job:
    state = _state(run)
    tip = f"job {run.job}: {_swept(run)}: {run.status}"
    return Job(f"{run.job}{_SIGNS[state]}", state, tip, rows.get(id(run), -1))


def _swept(run: Run) -> str:
    return " ".join(run.swept) or run.model


def _running(jobs: Sequence[JobProgress], rows: dict[int, int]) -> Table:
    """Return a table of the jobs that run now."""
    heads = [Head("job", number=True), Head("runs now"), Head("done", css="w")]
    heads += [Head(name, number=True) for name in ("step", "loss, last 100", "time", "left")]
    lines = []
    for job in jobs:
        metrics, share = job.run.metrics, job.share or 0.0
        steps = f"{metrics.steps[-1]:,.0f}" if metrics and metrics.steps.size else NONE
        losses = metrics.losses[-100:] if metrics and metrics.losses.size else None
        bar = Markup('<progress value="{}" max="1">{}</progress> {}')
        cells = (
            str(job.run.job),
            _swept(job.run),
            bar.format(f"{share:.3f}", f"{share:.0%}", f"{share:.0%}"),
            steps,
            NONE if losses is None else LOSS.shown(float(losses.mean())),
            duration(job.spent),
            NONE if job.left is None else duration(job.left),
        )
        lines.append(Line(cells, rows.get(id(job.run), -1)))
    return Table(heads, lines, "running")


def _failures(report: Report) -> Block:
    """Return what failed, why, and what to type; without parts if nothing failed."""
    failed = [one for source in report.sources if (one := failures_of(source)) is not None]
    return Block("Failures", [part for one in failed for part in _failures_of(one)])


def _failures_of(failures: Failures) -> Iterator[Items | Command]:
    items = []
    for failure in failures.groups:
        names = [f"job {run.job}" if run.job is not None else run.name for run in failure.runs]
        more = len(names) - _MOST_NAMED
        named = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        count = f"{len(names)} {'run' if len(names) == 1 else 'runs'}"
        items.append(Item(failure.words, lead=count, behind=named))
    yield Items(items, "notes failures")
    if failures.command:
        yield Command(failures.when, failures.command, css="")


def _tasks(report: Report, pictures: PagePictures) -> Block:
    """Return what the cells can compute; without parts if no run learned a task."""
    tasks, plots = report.tasks, pictures.tasks
    if pictures.grid is None:
        return Block(TITLE, [])
    grid = svg(pictures.grid, f'style="width: {pictures.grid.width:g}px"')
    parts = [*_list(tasks.verdicts(), "wins"), Text(METHOD, "caption")]
    parts.append(Figure(Markup(grid), GRID, css="wide"))
    tested = dict.fromkeys(cell.model for cell in tasks.cells if cell.lengths)
    if plots:
        repeated = "; dashes tell models of one color apart" if len(tested) > COLORS else ""
        caption = (
            f"One color for each model, the same on the whole page{repeated}. Point at a model "
            "to see it alone, click to keep it."
        )
        rows = {
            model: [cell.number for cell in tasks.cells if cell.model == model] for model in tested
        }
        legend = [Entry(rows[model], style_of_model(tasks, model), model) for model in tested]
        parts += [Text(caption, "caption"), Legend(legend), *figures_of(plots)]
    return Block(TITLE, parts)


def _table(report: Report) -> Block:
    heads = [
        Head(one.head, one.numeric, one.definition, _CELLS.get(one.head, ""))
        for one in report.columns
    ]
    lines = []
    for number, cells in enumerate(report.cells):
        row = report.rows[number] if number < len(report.rows) else None
        if row is None:
            lines.append(Line(cells, css="only"))
        else:
            lines.append(Line(cells, number, "" if row.counted else "failed", row.style))
    shown = Table(heads, lines, "sorted", tall=len(lines) > _MANY_ROWS)
    return Block("Table", [shown, *_conditions(report.rows)])


def _conditions(rows: Sequence[Row]) -> list[Fold]:
    """Return the conditions that must agree, with their values by set."""
    by_set: dict[int, dict[str, str]] = {}
    names: dict[int, dict[str, None]] = {}
    for row in rows:
        if row.set is not None:
            by_set.setdefault(row.set, row.conditions)
            names.setdefault(row.set, {})[data_names(row.counted[0])] = None
    for number, conditions in by_set.items():
        conditions["files of the data"] = " or ".join(names[number])
    pairs = []
    for name in next(iter(by_set.values()), {}):
        values = {number: conditions[name] for number, conditions in by_set.items()}
        text = "; ".join(f"{value} (set {number})" for number, value in values.items())
        if len(set(values.values())) == 1:
            text = next(iter(values.values()))
        pairs.append((name, text))
    return [Fold("Conditions of the runs", [Pairs(pairs)])] if pairs else []


def _plots(report: Report, plots: Sequence[Plot]) -> Block:
    if not plots:
        return Block("Plots", [])
    several = len(report.tasks.names) > 1
    colors = "One color for each row"
    if several:
        colors = "One color for each model, with other dashes for each task"
    caption = (
        f"{colors}: the mean of its seeds with a band from the lowest to the highest, or one run. "
        "A cross ends a run that did not end well; a dashed square marks what is marked in the "
        "table. Point at a row to see it alone, click to keep it. Point into a plot for its "
        "values, or select it and use the arrow keys."
    )
    legend = [
        Entry([number], row.style, row.label, ", ".join(row.marks))
        for number, row in enumerate(report.rows)
        if any(run.metrics is not None for run in row.runs)
    ]
    return Block("Plots", [Text(caption, "caption"), Legend(legend), *figures_of(plots)])


def _laws(pictures: PagePictures) -> Iterator[Any]:
    """Yield the pictures of ladders."""
    for one in pictures.ladders:
        yield Legend([Entry(rows, style, name, marker=True) for name, rows, style in one.families])
        yield from figures_of(one.plots)


def _trials(pictures: PagePictures) -> Iterator[Any]:
    """Yield the pictures of the trials of tuned sweeps."""
    for one in pictures.tuned:
        if len(one.arms) > 1:
            yield Legend([Entry([arm.row], arm.style, arm.name, marker=True) for arm in one.arms])
        folded = len(one.parallel) > _MOST_PARALLEL
        yield from figures_of([*one.plots, *(() if folded else one.parallel)])
        if folded:
            yield Fold("The trials of each arm as parallel coordinates", figures_of(one.parallel))
        yield from (Text(note, "caption") for note in one.notes)


def figures_of(plots: Sequence[Plot]) -> list[Figures]:
    figures = [Figure(Markup(one.svg), one.caption, one.title, one.numbers) for one in plots]
    return [Figures(figures)] if figures else []


def _runs(report: Report) -> Block:
    names = {SPEED_HEAD: speed_head(report.rows)}
    heads = [
        Head(names.get(name, name), number=at >= _RUN_TEXTS) for at, name in enumerate(_RUN_HEADS)
    ]
    lines = [
        Line(_run_cells(row, run), number, "" if run.counts else "failed")
        for number, row in enumerate(report.rows)
        for run in row.runs
    ]
    shown = Table(heads, lines, "sorted")
    if len(lines) <= _MANY_RUNS:
        return Block("Runs", [shown])
    return Block("Runs", [Fold(f"All {len(lines)} runs", [shown])])


def _run_cells(row: Row, run: Run) -> list[str]:
    result = run.result
    params = result.params if result else None
    return [
        row.label,
        run.name,
        NONE if run.seed is None else str(run.seed),
        run.status if run.counts else ending(run),
        ", ".join((*run_marks(run), *row.unequal_mark)) or NONE,
        NONE if params is None else f"{params:,}",
        *(one.shown(one.of(result) if result else None) for one in _RUN_MEASURES),
    ]


def _other_problems(report: Report) -> list[str]:
    """Return the problems that are not how a run ended: those stand among the failures."""
    ends = {line for run in report.runs if run.status != RunStatus.OK for line in run_notes([run])}
    if not any(run_notes([run]) for run in report.runs):
        return report.problems
    return [line for line in report.problems if line not in ends]


def _published_accuracies(report: Report) -> Block:
    if not report.tasks.cells:
        return Block(PUBLISHED, [])
    shown = report.tasks.beside_published(report.published.records)
    return Block(PUBLISHED, [shown] if shown.lines else [])


def _published(report: Report) -> Block:
    records = report.published.records
    heads = ("model", "published", "params", "tok/s", "steps", "definition of the loss")
    lines = [
        (
            record.figures.model,
            published_words(record),
            NONE if record.figures.params is None else f"{record.figures.params:,}",
            NONE if record.figures.tok_s is None else f"{record.figures.tok_s:,.0f}",
            NONE if record.figures.steps is None else f"{record.figures.steps:,}",
            record.of.definition or NONE,
            f"{record.of.setting}; {record.protocol.text}",
            record.caveats,
            record.of.citation,
        )
        for record in records
    ]
    shown = table((*heads, "setting", "caveat", "source"), lines)
    return Block("Published figures", [Text(WARNING), shown] if records else [])
