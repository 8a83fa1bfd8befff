"""The rows of the table, its columns, and the published figures beside the rows.

A row has the runs of one experiment, which differ only in their seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from elman.base.units import MEMORY as MEMORY_UNIT
from elman.config.suites import SuiteFigures
from elman.evaluation.metrics import LOSS_WINDOW, SHARED_GPU
from elman.evaluation.result import DEFINITIONS, RunResult
from elman.published import PublishedResult, published_for
from elman.report.comparison.conditions import (
    MARKS,
    WARM_UP,
    budget_kinds,
    conditions,
    experiment,
    measured,
    settings,
)
from elman.report.comparison.runs import Run, task_of
from elman.report.comparison.statistics import SPREAD_DEFINITION, Spread, spread
from elman.sections.training import BYTES

_SHOWN_SETTINGS = 4
_UNTOLD = ("model", "train.seed")
# Without these a label would not say which task it is.
_NAMES_TASK = ("data", "data.task")


@dataclass(frozen=True)
class Row:
    """The runs of one model in one configuration, over its seeds.

    Args:
        model: Name of the model.
        runs: All its runs, failed ones too.
        label: The model, and the settings that distinguish the row from the other rows.
        set: Rows with the same number are comparable; None if no run counts.
        unequal: The conditions in which it differs from the rows of the largest set.
        style: Its line style on the whole page, a number for :mod:`~.ink`.
    """

    model: str
    runs: tuple[Run, ...]
    label: str = ""
    set: int | None = None
    unequal: tuple[str, ...] = ()
    style: int = 0
    _counted: tuple[Run, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A second run with a seed says nothing about the noise between seeds: the first counts.
        first: dict[int | None, Run] = {}
        for run in self.runs:
            if run.counts:
                first.setdefault(run.seed, run)
        object.__setattr__(self, "_counted", tuple(first.values()))

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose numbers are in the means: one for each seed."""
        return self._counted

    @property
    def repeated(self) -> tuple[Run, ...]:
        """The runs that ended well but repeat another run's seed, and so do not count."""
        return tuple(run for run in self.runs if run.counts and run not in self._counted)

    def over_runs(self, number: Callable[[RunResult], float | None]) -> Spread | None:
        """Return a number over the runs that count; None if no run counts, or one lacks it."""
        return spread([number(run.result) for run in self.counted if run.result is not None])

    @property
    def tokens(self) -> frozenset[str]:
        """What tells the tokens of the runs that count from others."""
        return frozenset(run.tokens for run in self.counted)

    def first(self, fact: Callable[[RunResult], object]) -> object:
        """Return the first known value of a fact that is the same in every run."""
        facts = (fact(run.result) for run in self.runs if run.result is not None)
        return next((value for value in facts if value is not None), None)

    @property
    def seeds(self) -> str:
        """The seeds that are in the means."""
        known = [run.seed for run in self.counted]
        return ", ".join(map(str, sorted(seed for seed in known if seed is not None))) or "-"

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions that must agree with those of another row, by name."""
        first = self.counted[0]
        return {"seeds": self.seeds, **conditions(first)}

    @property
    def status(self) -> str:
        """How its runs ended, with the marks of the runs that count."""
        ends = Counter(run.status for run in self.runs)
        if len(self.runs) == 1:
            words = [self.runs[0].status]
        else:
            many = len(ends) > 1 or len(self.runs) > len(self.counted) > 0
            words = [f"{n} {status}" if many else status for status, n in ends.items()]
        return ", ".join([*words, *self.marks])

    @property
    def marks(self) -> list[str]:
        """What a reader must know about how its runs were computed."""
        marks = []
        for mark, holds in MARKS.items():
            count = sum(map(holds, self.runs))
            if count:
                marks.append(mark if count == len(self.runs) else f"{count} {mark}")
        if self.repeated:
            marks.append(f"{len(self.repeated)} repeated")
        return [*marks, *self.unequal_mark]

    @property
    def unequal_mark(self) -> tuple[str, ...]:
        """The mark of a row that is not comparable with the largest set of rows."""
        return (f"unequal {', '.join(self.unequal)}",) if self.unequal else ()

    @property
    def jobs(self) -> str:
        """The numbers of its jobs in their sweep."""
        return ", ".join(str(run.job) for run in self.runs if run.job is not None) or "-"


def make_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows in the order of their first runs, labeled, in comparable sets."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for key, run in _keyed(runs):
        grouped.setdefault(key, []).append(run)
    rows = [Row(group[0].model, tuple(group)) for group in grouped.values()]
    return _numbered(_labeled(rows))


def _keyed(runs: Sequence[Run]) -> Iterator[tuple[tuple[str, str], Run]]:
    """Yield each run with the key of its row.

    A job without a configuration of its own gets that of a job whose overrides differ only in the
    seed. A run without numbers joins the first row that has numbers.
    """
    by_overrides = {
        _experiment_typed(run): experiment(run) for run in runs if run.config and run.overrides
    }
    ways: dict[str, list[str]] = {}
    keys = []
    for run in runs:
        known = run.config is not None
        key = experiment(run) if known else by_overrides.get(_experiment_typed(run))
        key = experiment(run) if key is None else key
        if run.counts:
            ways.setdefault(key, []).append(measured(run))
        keys.append((key, run))
    for key, run in keys:
        first = next(iter(ways.get(key, [])), "")
        yield (key, measured(run) if run.counts else first), run


def _experiment_typed(run: Run) -> str:
    return experiment(replace(run, config=None))


def _labeled(rows: Sequence[Row]) -> list[Row]:
    """Label each row: its model, what its sweep swept, and what differs from rows of that label."""
    set_by_tasks = _given_by_tasks(rows)
    labels = [" ".join([row.model, *_swept(row, set_by_tasks)]) for row in rows]
    by_row = [settings(row.runs[0]) for row in rows]
    for label in [label for label, count in Counter(labels).items() if count > 1]:
        same = [n for n, other in enumerate(labels) if other == label]
        keys = {key for n in same for key in by_row[n]}
        differing = [key for key in sorted(keys) if len({by_row[n].get(key) for n in same}) > 1]
        for n in same:
            shown = [f"{key}={by_row[n].get(key, '-')}" for key in differing[:_SHOWN_SETTINGS]]
            more = len(differing) - len(shown)
            labels[n] = " ".join([label, *shown, *([f"and {more} more"] if more else [])])
    counts: Counter[str] = Counter()
    for n, label in enumerate(labels):
        counts[label] += 1
        if counts[label] > 1:
            labels[n] = f"{label} #{counts[label]}"
    return [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]


def _swept(row: Row, set_by_tasks: Collection[str]) -> list[str]:
    """Return the swept settings that all its runs share, without the seed and those of tasks.

    The layers of a mixed stack can be typed in several ways.
    """
    first, *others = row.runs
    untold = {*_UNTOLD, *set_by_tasks}
    swept = [(text.partition("=")[0], text) for text in first.swept]
    return [
        text
        for key, text in swept
        if key not in untold and (key == "model.layers" or all(text in run.swept for run in others))
    ]


def _given_by_tasks(rows: Sequence[Row]) -> set[str]:
    """Return the swept keys whose values follow from the task.

    A suite may train one task longer, or on longer rows, than the others. Such a setting says
    nothing beside the name of its task, and a model is called the same for all tasks.
    """
    begun = [row for row in rows if any(run.config is not None for run in row.runs)]
    tasks = {_question(row) for row in begun}
    values: dict[str, dict[str, set[str]]] = {}
    for text in {text for row in begun for run in row.runs for text in run.swept}:
        values[text.partition("=")[0]] = {task: set() for task in tasks}
    for row in begun:
        for run in row.runs:
            overrides = dict(text.partition("=")[::2] for text in run.swept)
            for key, by_task in values.items():
                by_task[_question(row)].add(overrides.get(key, ""))
    return {
        key
        for key, by_task in values.items()
        if key not in _NAMES_TASK and len(tasks) > 1 and max(map(len, by_task.values())) == 1
    }


def _numbered(rows: Sequence[Row]) -> list[Row]:
    """Give comparable rows the same number, and name what the others differ in."""
    conditions = [row.conditions if row.counted else None for row in rows]
    sizes = Counter(tuple(one.values()) for one in conditions if one is not None)
    numbers = {key: number for number, key in enumerate(sizes, 1)}
    # A task is another question, not an unequal condition: rows are marked within their task.
    largest = {
        question: Counter(
            tuple(one.values())
            for row, one in zip(rows, conditions, strict=True)
            if one is not None and _question(row) == question
        ).most_common(1)[0][0]
        for question in {_question(row) for row in rows if row.counted}
    }
    numbered = []
    for row, one in zip(rows, conditions, strict=True):
        if one is None:
            numbered.append(replace(row, set=None))
            continue
        pairs = zip(one.items(), largest[_question(row)], strict=True)
        unequal = tuple(name for (name, value), most in pairs if value != most)
        numbered.append(replace(row, set=numbers[tuple(one.values())], unequal=unequal))
    return numbered


def _question(row: Row) -> str:
    """Return the task of a row; empty for text."""
    return next((task for task in map(task_of, row.runs) if task), "")


Records = Sequence[PublishedResult]
NONE = "-"
STEP_HEAD = "us a step"
SPEED_HEAD = "tok/s"
_FLOPS_HEAD, _STATE_HEAD, _GROWTH_HEAD = "FLOPs", "state bytes", "per byte"
STEP_DEFINITION = (
    "microseconds of training for one step of time of one layer: 1e6 * train.batch_size / "
    "(tok_s * model.depth), everything of a training step included; published: the forward pass "
    "of one layer's recurrence alone, batch 4"
)


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Args:
        key: Its name in files.
        of: Reads it from a result.
        definition: What it means.
        form: Format in which it is shown.
        scale: It is divided by this when it is shown.
    """

    key: str
    of: Callable[[RunResult], float | None]
    definition: str
    form: str
    scale: float = 1.0

    def shown(self, value: float | None) -> str:
        """Return a value as text."""
        return NONE if value is None else format(value / self.scale, self.form)

    def mean(self, row: Row) -> str:
        """Return the mean over a row's runs as text."""
        values = row.over_runs(self.of)
        return self.shown(values.mean if values else None)

    def spread(self, row: Row) -> str:
        """Return the spread over a row's runs as text."""
        values = row.over_runs(self.of)
        if values is None:
            return NONE
        scaled = Spread(tuple(value / self.scale for value in values.values))
        return scaled.words(self.form)


def _defined(key: str, of: Callable[[RunResult], float | None], form: str) -> Measure:
    return Measure(key, of, DEFINITIONS[key], form)


STEPS = _defined("steps", lambda result: result.steps, ",.0f")
LOSS = _defined("loss", lambda result: result.loss, ".4f")
BPB = _defined("bpb", lambda result: result.bpb, ".4f")
VAL_BPB = _defined("val_bpb", lambda result: result.val_bpb, ".4f")
TOK_S = _defined("tok_s", lambda result: result.tok_s, ",.0f")
MEMORY = Measure(
    "peak_memory_gb",
    lambda result: result.peak_memory_bytes,
    f"peak memory in {MEMORY_UNIT.name} ({MEMORY_UNIT.factor} bytes): "
    f"{DEFINITIONS['peak_memory_bytes']}",
    ".2f",
    MEMORY_UNIT.bytes,
)
MINUTES = Measure(
    "minutes",
    lambda result: result.seconds.train,
    f"minutes of {DEFINITIONS['seconds.train']}",
    ".2f",
    60,
)
FLOPS = Measure(
    "flops",
    lambda result: result.flops,
    f"floating-point operations of training: {DEFINITIONS['flops']}; "
    f"flops_per_byte: {DEFINITIONS['flops_per_byte']}",
    ".4g",
)
MEASURES = (STEPS, LOSS, BPB, VAL_BPB, TOK_S, MEMORY, MINUTES, FLOPS)
"""The numbers that a run has, in the order of the table."""


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        head: Its heading.
        definition: What it means.
        cell: Fills it, given a row and the published records of its model.
        numeric: Whether it is aligned to the right.
    """

    head: str
    definition: str
    cell: Callable[[Row, Records], str]
    numeric: bool = True


def _count(of: Callable[[RunResult], object]) -> Callable[[Row, Records], str]:
    """Return what fills a column with a whole number that is the same in every run."""

    def cell(row: Row, records: Records) -> str:
        count = row.first(of)
        return f"{count:,}" if isinstance(count, int) else NONE

    return cell


def backend(row: Row) -> str:
    """Return the backend, or package, that computed a row's model."""
    name, path = row.first(lambda result: result.backend), row.first(lambda result: result.path)
    if name is None:
        return NONE
    return f"{name}: {path}" if path else str(name)


def _loss(row: Row, records: Records) -> str:
    steps = [run.result.loss_steps for run in row.counted if run.result is not None]
    fewest = min((count for count in steps if count is not None), default=LOSS_WINDOW)
    text = LOSS.mean(row)
    return text if fewest >= LOSS_WINDOW or text == NONE else f"{text} (last {fewest})"


def _published(row: Row, records: Records) -> str:
    params = row.first(lambda result: result.params)
    return (
        published_words(records[0], params if isinstance(params, int) else None)
        if records
        else NONE
    )


def _step_us(row: Row, records: Records) -> str:
    times = [time for time in map(step_us, row.counted) if time is not None]
    text = format(sum(times) / len(times), ".1f") if times else NONE
    seeds = next((r.figures.step_us for r in records if r.figures.step_us is not None), None)
    return text if seeds is None else f"{text} (published {seeds:g})"


def step_us(run: Run) -> float | None:
    """Return the microseconds that a run trained for one step of time in one layer."""
    config, rate = run.config or {}, run.result.tok_s if run.result else None
    batch = (config.get("train") or {}).get("batch_size")
    depth = (config.get("model") or {}).get("depth")
    return 1e6 * batch * run.bytes_per_token / (rate * depth) if rate and batch and depth else None


def _set(row: Row, records: Records) -> str:
    return NONE if row.set is None else str(row.set)


def _measure(measure: Measure) -> Callable[[Row, Records], str]:
    return lambda row, records: measure.mean(row)


COLUMNS = (
    Column("job", "numbers of the row's jobs in their sweep", lambda row, _: row.jobs),
    Column(
        "model",
        "the model, and the settings that differ from the other rows",
        lambda row, _: row.label,
        numeric=False,
    ),
    Column("loss", f"{LOSS.definition}; mean over seeds", _loss),
    Column(
        "spread",
        f"of loss, {SPREAD_DEFINITION}",
        lambda row, _: LOSS.spread(row),
    ),
    Column("val bpb", f"{VAL_BPB.definition}; mean over seeds", _measure(VAL_BPB)),
    Column(
        "val spread",
        f"of val bpb, {SPREAD_DEFINITION}",
        lambda row, _: VAL_BPB.spread(row),
    ),
    Column("bpb", f"{BPB.definition}; mean over seeds", _measure(BPB)),
    Column("params", DEFINITIONS["params"], _count(lambda result: result.params)),
    Column(_STATE_HEAD, DEFINITIONS["state_bytes"], _count(lambda result: result.state_bytes)),
    Column(
        _GROWTH_HEAD,
        DEFINITIONS["state_bytes_per_byte"],
        _count(lambda result: result.state_bytes_per_byte),
    ),
    Column(
        "backend",
        "which implementation of the recurrence ran (kernels.backend); for a packaged baseline "
        "also what computed it",
        lambda row, _: backend(row),
        numeric=False,
    ),
    Column("steps", STEPS.definition, _measure(STEPS)),
    Column(SPEED_HEAD, f"{TOK_S.definition}; mean over seeds", _measure(TOK_S)),
    Column(
        STEP_HEAD,
        f"{STEP_DEFINITION}; mean over seeds",
        _step_us,
    ),
    Column(MEMORY_UNIT.name, f"{MEMORY.definition}; mean over seeds", _measure(MEMORY)),
    Column("min", f"{MINUTES.definition}; mean over seeds", _measure(MINUTES)),
    Column(_FLOPS_HEAD, f"{FLOPS.definition}; mean over seeds", _measure(FLOPS)),
    Column("seeds", "train.seed of the runs in the means", lambda row, _: row.seeds),
    Column(
        "set",
        "rows of one set are comparable: data, batch, chunk, seeds, data seed, duration, metric "
        "version, validation and device agree",
        _set,
    ),
    Column(
        "published",
        "the published figure of the model (suite, date); its loss has a definition of its own, "
        "and its size is shown if it is not the row's",
        _published,
        numeric=False,
    ),
    Column(
        "status",
        "how the runs ended; contended: "
        + DEFINITIONS["contended"].split(";")[0]
        + f"; {SHARED_GPU}: more than one of "
        + DEFINITIONS["jobs_per_gpu"].removesuffix("; null on a CPU")
        + "; slow path: "
        + DEFINITIONS["slow_path"]
        + f"; {WARM_UP}",
        lambda row, _: row.status,
        numeric=False,
    ),
)


def published_only(record: PublishedResult) -> dict[str, str]:
    """Return the cells, by heading, of a published row that no run repeats."""
    figures = record.figures
    return {
        "model": figures.model,
        "params": NONE if figures.params is None else f"{figures.params:,}",
        "published": published_words(record),
        "status": "published only",
    }


def shown_columns(rows: Sequence[Row], records: Records) -> list[Column]:
    """Return the columns of a table that say something.

    Args:
        rows: Its rows; jobs are left out if there are none, sets if there is one, FLOPs if they
            are nobody's budget, states if none is known, and what they grow by if none grows.
        records: The published records beside them; a step's time is left out if none states it.
    """
    hidden = set()
    if all(row.jobs == NONE for row in rows):
        hidden.add("job")
    if len({row.set for row in rows if row.set is not None}) < 2:
        hidden.add("set")
    if all(record.figures.step_us is None for record in records):
        hidden.add(STEP_HEAD)
    limited = {kind.key for row in rows if row.counted for kind in budget_kinds(row.counted[0])}
    if FLOPS.key not in limited:
        hidden.add(_FLOPS_HEAD)
    if not any(row.first(lambda result: result.state_bytes) for row in rows):
        hidden.add(_STATE_HEAD)
    if not any(row.first(lambda result: result.state_bytes_per_byte or None) for row in rows):
        hidden.add(_GROWTH_HEAD)
    return [
        replace(column, head=speed_head(rows)) if column.head == SPEED_HEAD else column
        for column in COLUMNS
        if column.head not in hidden
    ]


def speed_head(rows: Sequence[Row]) -> str:
    """Return what the speed of some rows is called: of subword tokens it is shown in bytes."""
    counted = (run for row in rows for run in row.counted)
    return SPEED_HEAD if all(run.tokens == BYTES for run in counted) else "bytes/s"


WARNING = (
    "Published losses have other definitions than ours (each stands beside its figure) and come "
    "from other data, hardware and code: compare published figures only within one suite, and "
    "never with a measured number."
)


@dataclass(frozen=True)
class Beside:
    """The published figures of a report's models.

    Args:
        by_row: For each row the records of its model; the first one is shown.
        not_run: Records of the suite that no row repeats.
    """

    by_row: tuple[tuple[PublishedResult, ...], ...]
    not_run: tuple[PublishedResult, ...]

    @property
    def records(self) -> list[PublishedResult]:
        """Every record, once."""
        records = [record for records in self.by_row for record in records]
        return list({id(record): record for record in [*records, *self.not_run]}.values())


def beside(rows: Sequence[Row], suites: Sequence[SuiteFigures]) -> Beside:
    """Return the published records of the rows' models; for a suite's models, that suite's."""
    by_row = tuple(tuple(_records(row, suites)) for row in rows)
    models = {row.model for row in rows}
    # A suite's own figures come first. Only those can be missing, not figures of other suites.
    own = [r for suite in suites for r in suite.published if r.of == suite.published[0].of]
    missing = [record for record in own if record.figures.model not in models]
    never = [record for suite in suites for record in suite.published_only]
    # Several sweeps of one suite have the same records.
    return Beside(by_row, tuple(dict.fromkeys((*missing, *never))))


def _records(row: Row, suites: Sequence[SuiteFigures]) -> list[PublishedResult]:
    """Return a row's records: those of a suite in the suite's order, others newest first.

    Figures of a task stand beside runs of that task, and others beside runs of text.
    """
    task = next((task for task in map(task_of, row.runs) if task), "")
    of_suites = [record for suite in suites for record in suite.published_for(row.model)]
    records = of_suites or published_for(row.model)[::-1]
    records = [record for record in records if record.figures.task == task]
    # Records with a loss come before records without.
    return sorted(records, key=lambda record: record.figures.loss is None)


def published_words(record: PublishedResult, params: int | None = None) -> str:
    """Return a record as text; ``params`` is the size of the row that it stands beside."""
    figures = record.figures
    number = "no loss"
    if figures.accuracy is not None:
        number = f"accuracy {figures.accuracy:.3f} on {figures.task} at {figures.length:,}"
    elif figures.loss is not None:
        number = f"{figures.loss:.4f}"
    elif figures.tok_s is not None:
        number = f"{figures.tok_s:,.0f} tok/s"
    elif figures.step_us is not None:
        number = f"{figures.step_us:g} us a step"
    if figures.withdrawn:
        number += ", withdrawn"
    other_size = params is not None and figures.params not in (None, params)
    size = f" at {(figures.params or 0) / 1e6:.1f}M" if other_size else ""
    return f"{number}{size} ({record.of.suite}, {record.of.date})"
