"""The columns of the table: the numbers of a run, and what fills each cell of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elman.base.units import MEMORY as MEMORY_UNIT
from elman.evaluation.metrics import LOSS_WINDOW, SHARED_GPU
from elman.evaluation.result import DEFINITIONS, RunResult
from elman.report.comparison.conditions import WARM_UP, budget_kinds
from elman.report.comparison.published_figures import Records, published_words
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import Run
from elman.report.comparison.statistics import SPREAD_DEFINITION, Spread
from elman.sections.training import BYTES

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
