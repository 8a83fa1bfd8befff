"""The block on the gain of each component: a sentence, a table, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from elman.report.comparison.blocks import (
    Fold,
    Head,
    Item,
    Items,
    Line,
    Table,
    Text,
    say,
    terminal_table,
)
from elman.report.comparison.components import Components, Effect, Gain
from elman.report.comparison.rows import NONE
from elman.report.comparison.tuned_text import published_setting, unit_of
from elman.report.comparison.verdict import more_seeds_words

TITLE = "Gain of each component"
JSON_MARK = '"written_by": "elman mode=report, components"'
METHOD = (
    "The gain of a component is the score of the arm without it against that of the arm with it, "
    "above 0 if it helps. Only runs at full budget with fresh seeds enter, never a trial. Arms are "
    "paired by seed. The noise is that of all arms together (Tukey 1953). The p of a gain is "
    "adjusted by Holm (1979) over all components. The arms' own seeds must say the same, by "
    "Student's paired t at 5 %. An interval is the wider one of these two: it excludes zero if, "
    "and only if, a gain is beyond noise. A component has two gains, paired by seed. If they "
    "differ at 5 %, adjusted likewise, its sign differs beyond noise."
)
HEADS = (
    *("component", "with", "without", "gain at each one's best", "verdict"),
    *("gain at the published setting", "verdict there", "sign"),
)
_SPARE = ("verdict there", "without", "with")
COMPONENT_COLUMNS = {
    "gain": "of a component: score without it against that with it, at each arm's best setting; "
    "above 0 if it helps",
    "gain_low": "of a component: lower end of the interval of that gain",
    "gain_high": "of a component: upper end of it",
    "gain_common": "of a component: the same gain at the published setting",
    "gain_common_low": "of a component: lower end of the interval of that gain",
    "gain_common_high": "of a component: upper end of it",
    "sign": "of a component: whether both gains have the same sign",
}
"""Columns of ``report.csv`` that only components fill."""


def table_of(components: Components) -> Table:
    """Return the components, those of each family by their gain."""
    heads = [Head(name) for name in HEADS]
    return Table(heads, [Line(_cells(gain)) for gain in ordered(components)])


def ordered(components: Components) -> list[Gain]:
    """Return the gains, the families in their order, in each the largest gain first."""
    families = list(dict.fromkeys(gain.family for gain in components.gains))

    def place(gain: Gain) -> tuple[int, bool, float]:
        value = gain.best.value
        return families.index(gain.family), value is None, -(value or 0.0)

    return sorted(components.gains, key=place)


def _cells(gain: Gain) -> list[str]:
    return [
        gain.name,
        _mean(gain.best.with_it.mean),
        _mean(gain.best.without.mean),
        _value(gain.best),
        gain.best.outcome,
        _value(gain.common),
        gain.common.outcome,
        gain.sign,
    ]


def _mean(mean: float | None) -> str:
    return NONE if mean is None else f"{mean:.4f}"


def _value(effect: Effect) -> str:
    if effect.value is None or effect.interval is None:
        return NONE
    low, high = effect.interval
    return f"{effect.value:+.4f} ({low:+.4f} to {high:+.4f})"


def verdict(components: Components) -> str:
    """Return what the components gain, in one sentence."""
    unit = unit_of(components.sweep)
    parts = [_told(components, unit), _undecided(components), _signs(components)]
    return "; ".join(filter(None, parts)) + "."


def _told(components: Components, unit: str) -> str:
    """Say which components gain or cost beyond noise at each arm's best."""
    judged = [gain for gain in components.gains if gain.best.pair is not None]
    if not judged:
        return "No component has a verdict yet"
    beyond = [gain for gain in ordered(components) if gain.best.outcome in ("gains", "costs")]
    count = (
        f"{len(beyond)} of {len(judged)} components {'changes' if len(beyond) == 1 else 'change'}"
    )
    text = f"With each arm at its own best setting, {count} the score beyond noise"
    if not beyond:
        return text
    return f"{text} ({unit}): " + ", ".join(map(_one_told, beyond))


def _one_told(gain: Gain) -> str:
    assert gain.best.value is not None
    assert gain.best.interval is not None
    low, high = sorted(map(abs, gain.best.interval))
    size = f"{abs(gain.best.value):.4f} ({low:.4f} to {high:.4f})"
    return f"{gain.component} in {gain.family} {gain.best.outcome} {size}"


def _undecided(components: Components) -> str:
    """Say which components have no verdict, and why."""
    left = [gain for gain in components.gains if gain.best.pair is None]
    if not left or len(left) == len(components.gains):
        return ""
    reasons = ", ".join(f"{gain.component} in {gain.family} ({gain.best.why_not})" for gain in left)
    return f"there is no verdict on {reasons}"


def _signs(components: Components) -> str:
    """Say for which components the published setting has the other sign."""
    known = [gain for gain in components.gains if gain.sign != "unknown"]
    other = [gain for gain in known if gain.sign != "same"]
    if not known:
        return ""
    at = (
        f"at {published_setting(components.sweep)} the sign of {len(other)} of {len(known)} differs"
    )
    beyond = [gain for gain in other if gain.sign == "differs beyond noise"]
    left = [f"{gain.component} in {gain.family}" for gain in other if gain not in beyond]
    parts = ["beyond noise for " + ", ".join(map(_there, beyond))] if beyond else []
    parts += ["within noise for " + ", ".join(left)] if left else []
    return ", ".join([at, *parts])


def _there(gain: Gain) -> str:
    """Say what a component gains at the published setting."""
    assert gain.common.value is not None
    verb = "gains" if gain.common.value > 0 else "costs"
    return f"{gain.component} in {gain.family} (there it {verb} {abs(gain.common.value):.4f})"


def component_parts(components: Sequence[Components]) -> list[Any]:
    """Return the parts of the page's block, without the picture; none without components."""
    parts: list[Any] = []
    for one in components:
        parts += [Items([Item(verdict(one))], "wins"), table_of(one)]
    return [*parts, Fold("How a gain is judged", [Text(METHOD)])] if parts else []


def print_components(console: Console, components: Sequence[Components]) -> None:
    """Print the table of components, and the verdict on them."""
    for one in components:
        say(console, f"{TITLE}:")
        terminal_table(table_of(one), _SPARE).print(console)
        say(console, verdict(one))


def component_lines(components: Sequence[Components]) -> Iterator[dict[str, Any]]:
    """Yield every component as a line of ``report.csv``."""
    for one in components:
        for gain in ordered(one):
            yield _csv_line(one, gain)


def _csv_line(components: Components, gain: Gain) -> dict[str, Any]:
    best, common = _effect(gain.best), _effect(gain.common)
    with_it, without = gain.models
    line: dict[str, Any] = {"kind": "component", "label": gain.name, "model": with_it}
    line |= {"against": without, "measure": components.sweep.tuned.score, "sign": gain.sign}
    line |= {"gain": best["gain"], "gain_low": best["low"], "gain_high": best["high"]}
    line |= {f"gain_common{end}": common[key] for end, key in _ENDS.items()}
    return line | {key: best[key] for key in ("verdict", "reason", "p", "p_holm", "n")}


_ENDS = {"": "gain", "_low": "low", "_high": "high"}


def _effect(effect: Effect) -> dict[str, Any]:
    """Return one gain as plain data."""
    low, high = effect.interval or (None, None)
    pair = effect.pair
    return {
        "gain": effect.value,
        "low": low,
        "high": high,
        "verdict": effect.outcome,
        "reason": effect.why_not or None,
        "p": pair.common.p if pair else None,
        "p_holm": pair.p if pair else None,
        "n": pair.common.n[0] if pair else None,
        "with": effect.with_it.mean,
        "without": effect.without.mean,
        "to_decide": more_seeds_words(pair) if pair and not pair.is_decided else None,
    }


def component_json(components: Sequence[Components]) -> str:
    """Return the gains as JSON."""
    mark, _, by = JSON_MARK.partition(": ")
    tree: dict[str, Any] = {json.loads(mark): json.loads(by), "method": METHOD}
    tree["sweeps"] = [
        {
            "folder": str(one.sweep.source.folder),
            "score": one.sweep.tuned.score,
            "verdict": verdict(one),
            "components": [_record(gain) for gain in ordered(one)],
        }
        for one in components
    ]
    return json.dumps(tree, indent=2) + "\n"


def _record(gain: Gain) -> Mapping[str, Any]:
    with_it, without = gain.models
    return {
        "family": gain.family,
        "component": gain.component,
        "with": with_it,
        "without": without,
        "at_best": _effect(gain.best),
        "at_published": _effect(gain.common),
        "sign": gain.sign,
        "p_change": gain.p_change,
    }
