"""The table at the end of a tuned sweep: what tuning found for each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console

from elman.base.consoles import say
from elman.base.tables import TerminalTable, names, numbers
from elman.sections.tune import Value
from elman.tuning.choice import best
from elman.tuning.edges import Side, edges_of
from elman.tuning.ranks import rank_correlation
from elman.tuning.trials import Arm, Trial, Tuned
from elman.tuning.windows import window

_SPARE = ("at the published setting", "window", "trials")


def print_tuned(console: Console, tuned: Tuned) -> None:
    """Print a line for each arm, and what a reader needs to judge it."""
    headings = [*names("arm", "best setting", "window"), *numbers("trials", "best trial")]
    headings += [*numbers("confirmed", "at the published setting"), *names("edge")]
    table = TerminalTable(headings, _SPARE)
    for arm in tuned.arms:
        table.add(arm.label, *_cells(tuned, arm))
    table.print(console)
    for line in _notes(tuned):
        say(console, line)


def _cells(tuned: Tuned, arm: Arm) -> list[str]:
    trials = tuned.of(arm.label)
    first = best(trials, tuned.goal)
    counts = f"{sum(one.scored for one in trials)} of {len(trials)}"
    if first is None or first.score is None:
        return ["none: no trial has a score", "-", counts, "-", "-", "-", "-"]
    return [
        _setting(first.values),
        ", ".join(_windows(tuned, trials)) or "-",
        counts,
        f"{first.score:.4f}",
        _mean(tuned.of(arm.label, "best")),
        _mean(tuned.of(arm.label, "common")),
        _edge(edges_of(trials, tuned.bounds, tuned.goal)),
    ]


def _setting(values: Mapping[str, Value]) -> str:
    return " ".join(f"{key}={_shown(value)}" for key, value in values.items())


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}"


def _windows(tuned: Tuned, trials: Sequence[Trial]) -> list[str]:
    """Return the window of each key, in words; with one key without its name."""
    found = []
    for key in tuned.bounds:
        inside = window(trials, key, tuned.config.window, tuned.goal)
        if inside is None:
            continue
        low, high = f"{inside.low:g}", f"{inside.high:g}"
        text = low if low == high else f"{low} to {high}"
        text = ("<= " if inside.open_low else "") + text + (" or more" if inside.open_high else "")
        found.append(text if len(tuned.bounds) == 1 else f"{key} {text}")
    return found


def _mean(runs: Sequence[Trial]) -> str:
    scores = [one.score for one in runs if one.score is not None]
    return f"{fmean(scores):.4f} (n={len(scores)})" if scores else "-"


def _edge(sides: dict[str, Side]) -> str:
    return ", ".join(f"at the edge: {key} {side}" for key, side in sides.items()) or "inside"


def _notes(tuned: Tuned) -> list[str]:
    """Return what the numbers mean, and how far trials can be trusted."""
    share = f"{tuned.config.window:.0%}"
    better = "lower" if tuned.goal == "minimize" else "higher"
    lines = [
        f"{tuned.score}, {better} is better; window: values whose trials are within {share} of the "
        "best; confirmed: whole runs with fresh seeds"
    ]
    found = rank_correlation(tuned)
    if found.rho is not None:
        lines.append(
            f"trials and whole runs agree in order by {found.rho:+.2f} (Spearman's rank "
            f"correlation of {len(found.pairs)} settings)"
        )
    if tuned.state != "done":
        lines.append("the sweep has not ended: its confirmation is not complete")
    return lines
