"""The block on a tuned sweep: its arms in a table, the two orders, and the trials' ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from elman.base.exit_status import RunStatus
from elman.report.comparison.blocks import (
    Command,
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
from elman.report.comparison.rows import NONE
from elman.report.comparison.tuned import ArmFacts, TunedSweep, to_decide
from elman.report.comparison.verdict import (
    METHOD,
    Arm,
    Pair,
    Standing,
    Verdict,
    more_seeds_words,
)

TITLE = "Each at its best"
NOT_CORRECTED = (
    "Who wins has the differences of the confirmed runs at equal steps, minutes and bytes, too; "
    "its probabilities are not corrected for having chosen the leader by its result."
)
_OPEN = {
    (False, False): "",
    (True, False): ", may reach lower",
    (False, True): ", may reach higher",
    (True, True): ", may reach lower and higher",
}
"""What is said of a window whose lowest or highest value is the last one that was tried."""
_UNITS = {"val_bpb": "bits per byte", "accuracy": "accuracy"}
HEADS = (
    *("arm", "trials", "best setting", "window", "edge", "trial score"),
    *("confirmed at best", "at the published setting", "verdict"),
)
_SPARE = ("window", "trials", "trial score", "edge", "at the published setting", "best setting")
TUNING_COLUMNS = {
    "trials": "of an arm: how many of its trials have ended",
    "best_setting": "of an arm: its best setting, by its trials",
    "window": "of an arm: the values whose score is nearly that of the best (tune.window)",
    "edge": "of an arm: the keys whose best value is at the edge of what was tried",
    "trial_score": "of an arm: the score of its best trial, too good because it was chosen for it",
    "confirmed": "of an arm: mean score of its best setting with fresh seeds",
    "confirmed_low": "of an arm: lower end of the 95 % interval of that mean",
    "confirmed_high": "of an arm: upper end of it",
    "common": "of an arm: mean score of its published setting with fresh seeds",
    "common_low": "of an arm: lower end of the 95 % interval of that mean",
    "common_high": "of an arm: upper end of it",
}
"""Columns of ``report.csv`` that only the arms of a tuned sweep fill."""


def table_of(sweep: TunedSweep) -> Table:
    """Return the arms, those with the best confirmed setting first."""
    heads = [Head(name) for name in HEADS]
    return Table(heads, [Line(_cells(sweep, facts)) for facts in _ordered(sweep)])


def _ordered(sweep: TunedSweep) -> list[ArmFacts]:
    places = {one.arm.label: place for place, one in enumerate(sweep.best.standings)}
    return sorted(sweep.arms, key=lambda facts: places[facts.arm.label])


def _cells(sweep: TunedSweep, facts: ArmFacts) -> list[str]:
    label = facts.arm.label
    standing, common = sweep.best.of(label), sweep.common.of(label)
    score = facts.first.score if facts.first is not None else None
    return [
        label,
        _trials(facts),
        NONE if facts.first is None else setting(facts.first.values),
        _windows(facts) or NONE,
        _edges(facts) or NONE,
        NONE if score is None else f"{score:.4f}",
        NONE if standing is None else _mean(standing.arm),
        NONE if common is None else _mean(common.arm),
        NONE if standing is None else standing.outcome,
    ]


def _trials(facts: ArmFacts) -> str:
    """Return how many trials an arm had, and how the others ended that did not end well."""
    ends = Counter(trial.status for trial in facts.trials)
    others = [f"{count} {status}" for status, count in ends.items() if status != RunStatus.OK]
    return ", ".join([str(len(facts.trials)), *others])


def setting(values: Mapping[str, object]) -> str:
    """Return the values of keys as text: ``optim.lr 0.001``."""
    return ", ".join(f"{key} {value_text(value)}" for key, value in values.items())


def value_text(value: object) -> str:
    """Return a value as it is typed, a number with four digits."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _edges(facts: ArmFacts) -> str:
    return ", ".join(f"{key}: {side}" for key, side in facts.edges.items())


def _windows(facts: ArmFacts) -> str:
    """Return each key's window with the number of points in it."""
    parts = []
    for key, one in facts.windows.items():
        ends = [value_text(one.low), value_text(one.high)]
        text = " to ".join(dict.fromkeys(ends))
        points = f"{len(one.points)} point{'' if len(one.points) == 1 else 's'}"
        parts.append(f"{key} {text} ({points}{_OPEN[one.open_low, one.open_high]})")
    return ", ".join(parts)


def _mean(arm: Arm) -> str:
    """Return the mean of an arm's scores with its interval and the number of seeds."""
    if arm.mean is None:
        return NONE
    n = len(arm.scores)
    if arm.interval is None:
        return f"{arm.mean:.4f} (n={n})"
    low, high = arm.interval
    return f"{arm.mean:.4f} ({low:.4f} to {high:.4f}, n={n})"


def sentences(sweep: TunedSweep) -> list[str]:
    """Return the order at the published setting, and that at each one's best with what differs."""
    unit = unit_of(sweep)
    first = _order(f"With every arm at {published_setting(sweep)}", sweep.common, unit)
    second = _order("With each arm at its own best setting", sweep.best, unit)
    return [first, " ".join(filter(None, (second, _difference(sweep))))]


def unit_of(sweep: TunedSweep) -> str:
    """Return the unit of a sweep's scores."""
    return _UNITS.get(sweep.tuned.score, sweep.tuned.score)


def published_setting(sweep: TunedSweep) -> str:
    """Say which the published setting is, if all arms have one."""
    settings = [dict(facts.arm.published) for facts in sweep.arms]
    if any(one != settings[0] for one in settings):
        return "its published setting"
    return f"the published setting ({setting(settings[0])})"


def _order(at: str, verdict: Verdict, unit: str) -> str:
    """Return one order as a sentence."""
    leader = verdict.leader
    if leader is None:
        reasons = "; ".join(f"{one.arm.label}: {one.arm.why_not}" for one in verdict.left_out)
        return f"{at} there is no verdict" + (f" ({reasons})." if reasons else ".")
    n, mean, interval = len(leader.arm.scores), leader.arm.mean, leader.arm.interval
    assert mean is not None
    assert interval is not None
    low, high = interval
    parts = [
        f"{at}, {leader.arm.label} leads with {mean:.4f} {unit} "
        f"(95 % interval {low:.4f} to {high:.4f}, {n} seeds)"
    ]
    parts += [_standing(one, verdict) for one in verdict.compared[1:]]
    text = "; ".join(parts) + "."
    if verdict.left_out:
        left = "; ".join(f"{one.arm.label}, {one.arm.why_not}" for one in verdict.left_out)
        text += f" No verdict on {left}."
    return text


def _standing(one: Standing, verdict: Verdict) -> str:
    assert one.pair is not None
    value, low, high = _behind(one.pair, verdict)
    if one.outcome == "worse":
        return f"{one.arm.label} is worse by {value:.4f} ({low:.4f} to {high:.4f})"
    return (
        f"{one.arm.label} is not distinguishable from it ({value:+.4f}, {low:+.4f} to {high:+.4f}, "
        f"{one.pair.common.n[0]} seeds; {more_seeds_words(one.pair)})"
    )


def _behind(pair: Pair, verdict: Verdict) -> tuple[float, float, float]:
    """Return by how much an arm is behind the leader, and the ends of the interval."""
    value, (low, high) = pair.common.value, pair.interval
    return (value, low, high) if verdict.goal == "minimize" else (-value, -high, -low)


def _difference(sweep: TunedSweep) -> str:
    """Say whether the two orders differ."""
    common, best = sweep.common, sweep.best
    if common.leader is None or best.leader is None:
        return "So the two orders cannot be compared."
    before, after = common.leader.arm.label, best.leader.arm.label
    if before == after:
        return _same_leader(sweep, after)
    one, other = common.of(after), best.of(before)
    clear = [each is not None and each.outcome == "worse" for each in (one, other)]
    begun = f"The leader changes from {before} to {after}"
    if all(clear):
        return (
            f"The two orders differ beyond noise: {before} is ahead of {after} at the published "
            "setting, and behind it at each one's best."
        )
    if any(clear):
        where = "the published setting" if clear[0] else "each one's best setting"
        return f"{begun}; only at {where} are these two told apart."
    return f"{begun}, but neither order tells these two apart."


def _same_leader(sweep: TunedSweep, leader: str) -> str:
    changed = []
    for standing in sweep.best.compared[1:]:
        before = sweep.common.of(standing.arm.label)
        if before is None or before.outcome in (standing.outcome, "no verdict"):
            continue
        only = "at its best" if standing.outcome == "worse" else "at the published setting"
        changed.append(f"{standing.arm.label} is told from it only {only}")
    more = f", but {'; '.join(changed)}" if changed else ""
    return f"The two orders do not differ in their leader{more}."


def care_line(sweep: TunedSweep) -> str:
    """Say how much care every arm got, which is the same for all."""
    config, tuned = sweep.tuned.config, sweep.tuned
    each = "the full budget"
    if config.minutes is not None:
        each = f"{config.minutes:g} minutes"
    elif config.steps is not None:
        each = f"{config.steps:,} steps"
    elif config.bytes is not None:
        each = f"{config.bytes:,} bytes"
    ends = [f"{key} {low:g} to {high:g}" for key, (low, high) in tuned.bounds.items()]
    grown = len(tuned.ranges) - 1
    growth = f", which grew {grown} time{'' if grown == 1 else 's'} for all" if grown > 0 else ""
    ranges = f", with {', '.join(ends)}{growth}" if ends else ""
    return f"Every arm had {config.trials} trials of {each} from the same space{ranges}."


def rank_line(sweep: TunedSweep) -> str:
    """Say whether the trials put settings into the order that whole runs do."""
    ranks = sweep.ranks
    pairs = ranks.same + ranks.reverse
    if ranks.tau is None:
        return (
            "Too few settings were both tried and confirmed to say whether trials order settings "
            f"as whole runs do (n={len(ranks.pairs)})."
        )
    text = (
        f"Trials order settings as whole runs do in {ranks.same} of {pairs} pairs within an arm "
        f"(Kendall's tau {ranks.tau:.2f}, n={pairs})"
    )
    if ranks.rho is not None:
        text += (
            f"; over all settings Spearman's rank correlation is {ranks.rho:.2f} "
            f"(n={len(ranks.pairs)})"
        )
    return f"{text}."


def commands(sweep: TunedSweep) -> list[Command]:
    """Return what to type for arms that are undecided or without a verdict, each command once."""
    by_command: dict[str, list[str]] = {}
    for one in (*sweep.best.left_out, *sweep.common.left_out):
        if one.arm.command:
            by_command.setdefault(one.arm.command, []).append(one.arm.label)
    commands = [
        Command(f"for a verdict on {', '.join(dict.fromkeys(labels))}", command)
        for command, labels in by_command.items()
    ]
    undecided, command = to_decide(sweep)
    if command:
        commands.append(Command(f"to decide {', '.join(undecided)}", command))
    return commands


def tuning_parts(sweeps: Sequence[TunedSweep]) -> list[Any]:
    """Return the parts of the page's block; none without a tuned sweep."""
    return [part for sweep in sweeps for part in _parts(sweep)]


def _parts(sweep: TunedSweep) -> Iterator[Any]:
    yield Items([Item(sentence) for sentence in sentences(sweep)], "wins")
    yield from commands(sweep)
    yield table_of(sweep)
    yield Text(f"{care_line(sweep)} {rank_line(sweep)}")
    yield Text(NOT_CORRECTED, "caption")
    yield Fold("How the verdict is given", [Text(text) for text in METHOD])


def print_tuning(console: Console, sweeps: Sequence[TunedSweep]) -> None:
    """Print the table of arms, the two orders, and what to type next."""
    for sweep in sweeps:
        say(console, f"{TITLE}:")
        terminal_table(table_of(sweep), _SPARE).print(console)
        for line in (*sentences(sweep), care_line(sweep), rank_line(sweep)):
            say(console, line)
        for command in commands(sweep):
            say(console, f"{command.purpose}: {command.text}")


def tuning_lines(sweeps: Sequence[TunedSweep]) -> Iterator[dict[str, Any]]:
    """Yield every arm as a line of ``report.csv``."""
    for sweep in sweeps:
        for facts in _ordered(sweep):
            yield _csv_line(sweep, facts)


def _csv_line(sweep: TunedSweep, facts: ArmFacts) -> dict[str, Any]:
    first, label = facts.first, facts.arm.label
    standing, common = sweep.best.of(label), sweep.common.of(label)
    line: dict[str, Any] = {
        "kind": "arm",
        "model": facts.arm.model,
        "label": label,
        "params": facts.arm.params,
        "trials": sum(trial.ended for trial in facts.trials),
        "best_setting": None if first is None else setting(first.values),
        "window": _windows(facts) or None,
        "edge": _edges(facts) or None,
        "trial_score": None if first is None else first.score,
    }
    for name, one in (("confirmed", standing), ("common", common)):
        if one is not None and one.arm.mean is not None:
            line[name] = one.arm.mean
            line[f"{name}_low"], line[f"{name}_high"] = one.arm.interval or (None, None)
    if standing is None:
        return line
    line |= {"n": len(standing.arm.scores), "verdict": standing.outcome}
    line["reason"] = standing.arm.why_not or None
    if standing.pair is not None:
        low, high = standing.pair.interval
        pair = standing.pair
        line |= {"measure": sweep.tuned.score, "difference": pair.common.value}
        line |= {"low": low, "high": high, "p": pair.common.p, "p_holm": pair.p}
        line |= {"method": pair.common.method, "more_seeds": pair.more_seeds}
        assert sweep.best.leader is not None
        line["against"] = sweep.best.leader.arm.label
    return line
