"""What ``mode=suites`` prints: the list of every suite, or one of them explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from elman.base.tables import TerminalTable, names, numbers, text
from elman.config.catalog import Listed
from elman.config.suite_rates import is_tuning
from elman.config.suites import Suite, model_of
from elman.models.backends import REFERENCE, best_backend
from elman.models.mixed import cell_of
from elman.published import Circumstances, PublishedResult
from elman.report.tables.models import FIGURES, figure_numbers
from elman.sections.budget import KINDS, MINUTES, UNSAID_MINUTES
from elman.sections.tune import LadderConfig

HEADS = ("suite", "runs", "each", "GPU hours", "what it compares", "source")
_SLOW = "slow path"
_BY_SIZE = "tune.ladder.bytes_per_param="
_NUMBERS = ("parameters", *FIGURES)


def suite_cells(suite: Suite) -> list[str]:
    """Return one suite as text, under ``HEADS``."""
    hours = "-" if suite.gpu_hours is None else f"{suite.gpu_hours:.2g}"
    runs = str(len(suite.runs))
    return [suite.name, runs, bound(suite), hours, suite.title, suite.citation]


def bound(suite: Suite) -> str:
    """Return how long each run of a suite is, by the first kind of budget that all of them have."""
    if "tune=ladder" in suite.shared:
        own = (text.removeprefix(_BY_SIZE) for text in suite.shared if text.startswith(_BY_SIZE))
        return f"{next(own, f'{LadderConfig().bytes_per_param:g}')} bytes a parameter"
    for kind in KINDS:
        if sizes := _limits(suite, kind.key):
            form = ",.0f" if kind.equal_steps else kind.form
            return " to ".join(f"{size:{form}}" for size in sizes) + f" {kind.unit}"
    return MINUTES.text(UNSAID_MINUTES)


def _limits(suite: Suite, key: str) -> list[float]:
    """Return the smallest and the largest budget of its runs, once if they are equal.

    Nothing is returned if a run has none of this kind.
    """
    budgets = set()
    for run in suite.runs:
        own = [text.partition("=")[2] for text in run if text.startswith(f"train.{key}=")]
        try:
            budgets.add(float(own[-1] if own else suite.budgets.get(key, "null")))
        except ValueError:  # null, or an interpolation
            return []
    return sorted({min(budgets), max(budgets)}) if budgets else []


def suites_table(suites: Sequence[Suite]) -> TerminalTable:
    """Return one line for each suite."""
    headings = [*names("suite"), *numbers(*HEADS[1:4]), text("what it compares", 30)]
    table = TerminalTable([*headings, text("source", 40)], ("source", "GPU hours", "each", "runs"))
    for suite in suites:
        table.add(*suite_cells(suite))
    return table


def print_suite(console: Console, suite: Suite, listed: Sequence[Listed], tuning: str) -> None:
    """Print everything that is known of one suite: settings, runs, published figures.

    Args:
        console: Where to.
        suite: The suite.
        listed: Its models.
        tuning: How its models get their rates.
    """
    models = {one.name: one for one in listed}
    console.print(Text(suite.name, style="bold"))
    console.print(Text(f"{suite.title} ({suite.citation})"))
    if suite.description:
        console.print(Text(suite.description))
    console.print(Padding(_facts(suite, models, tuning), (1, 0), expand=False))
    _runs_table(suite, models).print(console)
    _print_published(console, "Published", FIGURE_HEADS, suite.published)
    _print_published(console, "Published only", ONLY_HEADS, suite.published_only)
    for name, words in circumstances((*suite.published, *suite.published_only)):
        console.print(Text(f"{name}: {words}"))
    if suite.published:
        console.print(Text("Losses of different suites and dates cannot be compared."))
    slow = any(one.config is not None and _on_a_gpu(one) == _SLOW for one in listed)
    more = ""
    if slow and suite.claims_speed:
        more = f"; on a GPU it needs baseline.allow_slow=true, because of the {_SLOW}"
    elif slow:
        more = f"; on a GPU the rows of the {_SLOW} are marked"
    console.print(Text(f"elman benchmark={suite.name} runs it{more}"))


_MOST_RUNS = 80


def listed_runs(suite: Suite) -> list[tuple[str, ...]]:
    """Return the runs to list: all, or of very many one for each model, see :func:`choices`."""
    if len(suite.runs) <= _MOST_RUNS:
        return list(suite.runs)
    return [(f"model={model}",) for model in suite.models]


def choices(suite: Suite) -> str:
    """Return with what each listed model runs, in words; empty if every run is listed."""
    if len(suite.runs) <= _MOST_RUNS:
        return ""
    by_key: dict[str, dict[str, None]] = {}
    for run in suite.runs:
        for key, _, value in (setting.partition("=") for setting in run):
            if key != "model":
                by_key.setdefault(key, {})[value] = None
    return "; ".join(f"{key}={','.join(values)}" for key, values in by_key.items())


RUN_HEADS = ("run", "parameters", "on a GPU", "what it is")
FIGURE_HEADS = ("model", "suite", "date", *_NUMBERS, "caveat")
ONLY_HEADS = ("row", "suite", "date", *_NUMBERS, "why it does not run")


def run_cells(suite: Suite, run: Sequence[str], models: Mapping[str, Listed]) -> list[str]:
    """Return one run as text, under ``RUN_HEADS``."""
    name = model_of(run)
    model = models.get(name or "")
    if model is None:
        return [" ".join(run), "-", "-", ""]
    if model.config is None:
        return [" ".join(run), "-", "-", model.problem]
    params = model.config.expected_params
    count = "-" if params is None else f"{params:,}"
    return [" ".join(run), count, _on_a_gpu(model), model.source]


def figure_cells(record: PublishedResult) -> list[str]:
    """Return one published row as text, under ``FIGURE_HEADS`` or ``ONLY_HEADS``."""
    figures = record.figures
    count = "-" if figures.params is None else f"{figures.params:,}"
    numbers = (count, *figure_numbers(figures))
    return [figures.model, record.of.suite, record.of.date, *numbers, record.own_caveats]


def circumstances(records: Sequence[PublishedResult]) -> list[tuple[str, str]]:
    """Return each published suite of some rows, with one line on what its runs share."""
    return [
        (f"{of.suite}, {of.date}", _described(of)) for of in dict.fromkeys(r.of for r in records)
    ]


def _described(of: Circumstances) -> str:
    loss = f"; loss: {of.definition}" if of.definition else ""
    caveat = f"; {of.caveat}" if of.caveat else ""
    return f"{of.setting}; {of.protocol.text}{loss}{caveat} ({of.citation})"


def _facts(suite: Suite, models: Mapping[str, Listed], tuning: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, fact in facts(suite, models, tuning).items():
        table.add_row(Text(name, style="bold"), Text(fact))
    return table


def facts(suite: Suite, models: Mapping[str, Listed], tuning: str) -> dict[str, str]:
    """Return what the runs of a suite share, in words; arguments as of :func:`print_suite`."""
    settings = (text for text in suite.shared if not is_tuning(text))
    lines = {"settings": " ".join(settings), "tuning": tuning}
    hours = "" if suite.gpu_hours is None else f", {suite.gpu_hours:.2g} GPU hours of training"
    lines["time"] = f"{len(suite.runs)} runs of {bound(suite)}{hours}"
    if text := choices(suite):
        lines["each model with"] = text
    counts = [one.config.expected_params for one in models.values() if one.config is not None]
    known = [count for count in counts if count is not None]
    if known:
        spread = max(known) / min(known) - 1
        claim = "claims one size" if suite.claims_equal_size else "claims no equal size"
        lines["sizes"] = f"{min(known):,} to {max(known):,} ({spread:.0%} apart); {claim}"
    if suite.against is not None:
        lines["compared with"] = suite.against
    if suite.components:
        families = (f"of {family}: {', '.join(own)}" for family, own in suite.components.items())
        lines["gain of each component"] = "; ".join(families)
    if suite.claims_speed:
        lines["speed"] = "its figures are speeds: no slow path on a GPU without allow_slow"
    return lines


def _on_a_gpu(model: Listed) -> str:
    """Return whether a kernel runs the model on a GPU, in words."""
    assert model.config is not None
    ways = []
    for cell in map(cell_of, model.config.parts()):
        fastest = best_backend(cell, "cuda")
        ways.append(cell.package or (_SLOW if fastest == REFERENCE else fastest))
    return _SLOW if _SLOW in ways else ", ".join(dict.fromkeys(ways))


def _print_published(
    console: Console, title: str, heads: Sequence[str], records: Sequence[PublishedResult]
) -> None:
    if not records:
        return
    console.print(Padding(Text(title, style="bold"), (1, 0, 0, 0), expand=False))
    name, *more, remark = heads
    headings = [*names(name, *more[:2]), *numbers(*_NUMBERS), text(remark)]
    table = TerminalTable(headings, ("memory", "steps", "parameters", "date", remark, "suite"))
    for record in records:
        table.add(*figure_cells(record))
    table.print(console)


def _runs_table(suite: Suite, models: Mapping[str, Listed]) -> TerminalTable:
    run, params, where, what = RUN_HEADS
    headings = [*names(run), *numbers(params), *names(where), text(what)]
    table = TerminalTable(headings, (what, where, params))
    for one in listed_runs(suite):
        table.add(*run_cells(suite, one, models))
    return table
