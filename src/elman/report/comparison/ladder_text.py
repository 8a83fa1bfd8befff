"""The block on a ladder: its verdict, its tables, its limits, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from elman.report.comparison.blocks import (
    Fold,
    Item,
    Items,
    Table,
    Text,
    Title,
    say,
    table,
    terminal_table,
)
from elman.report.comparison.ladder import Family, Ladder
from elman.report.comparison.rows import NONE
from elman.report.comparison.verdict import Standing
from elman.tuning.power_law import DRAWS, SHARE, Crossing, Fit

TITLE = "The ladder"
JSON_MARK = '"written_by": "elman mode=report (ladder)"'
METHOD = (
    "Each family is trained at several sizes, with bytes in proportion to the number of parameters "
    "N. The law E + A N^-a is fitted to its mean scores, with N in millions. In the law over "
    "compute, N is training operations in units of 1e15. E, A and a are not below 0.",
    f"An interval holds {SHARE:.0%} of {DRAWS:,} resamples (Efron and Tibshirani 1993). A resample "
    "draws sizes, at least three different ones, and the noise of their seeds. The noise is drawn "
    "from the seeds' distances from their means, widened as Student's t is for few seeds.",
    "The prediction is made from the smaller sizes alone. sweep.json has it with its time, before "
    "the runs of the largest size begin.",
    "Sizes without trials take their rates from a line. It goes through the logarithms of the best "
    "rates and widths of the sizes that have trials.",
)
"""How a ladder is read, in paragraphs."""
_FAMILY_HEADS = ("family", "sizes", "E", "A", "a", "a over compute")
_LAST_HEADS = ("family", "size", "predicted", "recorded", "measured", "missed by", "inside")
_RATE_HEADS = (
    "family",
    "slope",
    "checked at",
    "line says",
    "best of trials",
    "line / best",
    "cost",
)
_TITLES = (
    "The law of each family: E + A N^-a, N in millions of parameters",
    "The largest size, predicted before it was trained",
    "The line of rates, and how far it is from the best of the trials that check it",
)
_ENOUGH = 5


def size_words(params: float) -> str:
    """Return a number of parameters in short: ``25.6M``."""
    return f"{params / 1e6:.3g}M" if params >= 1e6 else f"{params / 1e3:.3g}K"


def verdict_sentence(ladder: Ladder) -> str:
    """Return what a ladder says, as one sentence."""
    leader = ladder.verdict.leader
    if leader is None:
        reasons = "; ".join(
            f"{one.arm.label}: {one.arm.why_not}" for one in ladder.verdict.left_out
        )
        first = f"There is no order at the largest size ({reasons})"
    else:
        at = size_words(ladder.top or 0)
        others = [_behind(one) for one in ladder.verdict.compared[1:]]
        left = [f"{one.arm.label} is not judged ({one.arm.why_not})" for one in _left(ladder)]
        first = (
            f"At {at}, {leader.arm.label} leads with {leader.arm.mean:.4f} held-out bits per byte"
            f", and {', '.join([*others, *left])}"
        )
    return "; ".join(filter(None, (first, _crossing_words(ladder), _missed_words(ladder)))) + "."


def _left(ladder: Ladder) -> Sequence[Standing]:
    return ladder.verdict.left_out


def _behind(one: Standing) -> str:
    assert one.pair is not None
    if one.outcome == "worse":
        return f"{one.arm.label} is behind by {one.pair.common.value:.4f}"
    return f"{one.arm.label} is not distinguishable from it ({one.pair.common.value:+.4f})"


def _crossing_words(ladder: Ladder) -> str:
    """Say which families cross within the ladder, those that certainly do first."""
    found = ladder.crossings
    if not found:
        return ""
    certain = [_crossed(pair, one) for pair, one in found.items() if one.share >= SHARE]
    unsure = [_unsure(pair, one) for pair, one in found.items() if not one.is_certain]
    apart = sum(one.share <= 1 - SHARE for one in found.values())
    texts = [*certain, *unsure]
    if apart == len(found):
        what = "the two laws do" if apart == 1 else f"the laws of all {apart} pairs do"
        low, high = (min(one.low for one in found.values()), max(o.high for o in found.values()))
        return f"{what} not cross between {size_words(low)} and {size_words(high)}"
    if apart:
        texts.append(f"{apart} other {'pair does' if apart == 1 else 'pairs do'} not cross")
    return ", ".join(texts)


def _crossed(pair: tuple[str, str], one: Crossing) -> str:
    ahead, behind = pair if one.first else pair[::-1]
    where = size_words(one.at) if one.at is not None else "an uncertain size"
    low, high = map(size_words, one.interval or (one.low, one.high))
    return f"{ahead} passes {behind} at {where} ({low} to {high})"


def _unsure(pair: tuple[str, str], one: Crossing) -> str:
    between = f"between {size_words(one.low)} and {size_words(one.high)}"
    return (
        f"whether {pair[0]} and {pair[1]} cross {between} is open "
        f"({one.share:.0%} of the resamples do)"
    )


def _missed_words(ladder: Ladder) -> str:
    known = [one for one in ladder.families if one.missed is not None]
    if not known:
        return ""
    most = max(abs(one.missed or 0.0) for one in known)
    inside = sum(bool(one.is_inside) for one in known)
    if len(known) == 1:
        where = "inside" if inside else "outside"
        return f"the prediction made before training missed by {most:.4f}, {where} its interval"
    return (
        f"the predictions made before training missed by {most:.4f} at most, and {inside} of "
        f"{len(known)} scores are inside their intervals"
    )


def limits(ladder: Ladder) -> list[str]:
    """Return what is too short or too few to be sure of, one sentence each."""
    found = [line for family in ladder.families for line in _limits_of(family)]
    fewest = min((len(step.scores) for one in ladder.families for step in one.steps), default=0)
    if fewest < 2:
        found.append("A size with one seed says nothing about its noise; add train.seed=1,2,3.")
    if any(one.law is not None and len(one.law.points) < _ENOUGH for one in ladder.families):
        found.append(
            f"A law through fewer than {_ENOUGH} sizes bends with each of them: take E, A and a as "
            "a description of these sizes."
        )
    found.append("Nothing here holds beyond the largest size, or for other bytes for a parameter.")
    return found


def _limits_of(family: Family) -> Iterator[str]:
    yield from _of_fit(family)
    one = family.prediction
    if one is not None and one.is_open:
        yield (
            f"{family.name}: two sizes leave E open, so its prediction takes every E from 0 to the "
            "lowest score alike."
        )
    if one is not None and one.score is None:
        yield f"{family.name}: too few smaller sizes have a score, so nothing was predicted."
    for step in family.steps:
        if step.failed:
            yield f"{step.arm.label}: {step.failed}."
        if step.waits:
            yield f"{step.arm.label}: {step.waits} of its runs have not ended."
        if step.edge is not None:
            side = "lower" if step.edge == "low" else "upper"
            yield f"{step.arm.label}: its best rate is at the {side} edge of what was tried."
    yield from _of_line(family)


def _of_fit(family: Family) -> Iterator[str]:
    if family.law is None:
        number = sum(bool(step.scores) for step in family.steps)
        yield f"{family.name}: no law, because {number} of its sizes have a score."
    elif not family.law.falls:
        yield f"{family.name}: its score does not fall with size, so its law is flat."
    elif not family.law.is_open and family.law.interval("limit")[0] <= 0:
        yield f"{family.name}: E may be 0; the interval of E is open below."
    if family.law is not None and family.of_compute is None:
        yield f"{family.name}: no law over compute, because its operations are not counted."


def _of_line(family: Family) -> Iterator[str]:
    if family.line is None:
        yield f"{family.name}: no line of rates, because no trial of its small sizes has a score."
    elif len({width for width, _ in family.line.points}) < 2:
        yield f"{family.name}: its line of rates is flat, because one width alone has a best rate."
    check = family.check
    if check is not None and check.edge is not None:
        side = "lowest" if check.edge == "low" else "highest"
        yield (
            f"{family.name}: the best rate at {check.step.arm.label} is the {side} one that was "
            "tried, so the line may be farther off than the table says."
        )


def _interval(value: float, ends: tuple[float, float], form: str) -> str:
    return f"{value:{form}} ({ends[0]:{form}} to {ends[1]:{form}})"


def _number(law: Fit | None, name: str, form: str) -> str:
    if law is None:
        return NONE
    return _interval(getattr(law.law, name), law.interval(name), form)


def tables(ladder: Ladder) -> list[Table]:
    """Return the laws, the predictions, and the lines of rates."""
    laws, last, rates = [], [], []
    for one in ladder.families:
        count = len(one.law.points) if one.law is not None else 0
        numbers = [_number(one.law, name, ".3f") for name in ("limit", "factor", "exponent")]
        laws.append((one.name, str(count), *numbers, _number(one.of_compute, "exponent", ".3f")))
        last.append((one.name, *_last_cells(one)))
        rates.append((one.name, *_rate_cells(one)))
    return [table(_FAMILY_HEADS, laws), table(_LAST_HEADS, last), table(_RATE_HEADS, rates)]


def _last_cells(one: Family) -> list[str]:
    told, step = one.prediction, one.last
    if step is None:
        return [NONE] * (len(_LAST_HEADS) - 1)
    predicted = NONE
    if told is not None and told.score is not None:
        ends = (told.low or told.score, told.high or told.score)
        predicted = _interval(told.score, ends, ".4f")
    inside = {True: "yes", False: "no", None: NONE}[one.is_inside]
    return [
        size_words(step.arm.params or 0),
        predicted,
        NONE if told is None else told.at,
        NONE if step.mean is None else f"{step.mean:.4f} (n={len(step.scores)})",
        NONE if one.missed is None else f"{one.missed:+.4f}",
        inside,
    ]


def _rate_cells(one: Family) -> list[str]:
    if one.line is None:
        return [NONE] * (len(_RATE_HEADS) - 1)
    slope, check = f"{one.line.slope:+.2f}", one.check
    if check is None:
        return [slope, *[NONE] * (len(_RATE_HEADS) - 2)]
    return [
        slope,
        check.step.arm.label,
        f"{check.step.rate:.4g}",
        f"{check.rate:.4g}",
        f"{check.factor:.2g}",
        NONE if check.cost is None else f"{check.cost:+.4f}",
    ]


def ladder_parts(ladders: Sequence[Ladder]) -> list[Any]:
    """Return the parts of the page's block; none without a ladder."""
    return [part for ladder in ladders for part in _parts(ladder)]


def _parts(ladder: Ladder) -> Iterator[Any]:
    yield Items([Item(verdict_sentence(ladder))], "wins")
    for title, one in zip(_TITLES, tables(ladder), strict=True):
        yield from (Title(title), one)
    yield Title("Limits")
    yield Items([Item(line) for line in limits(ladder)], "notes")
    yield Fold("How a ladder is read", [Text(text) for text in METHOD])


def print_ladders(console: Console, ladders: Sequence[Ladder]) -> None:
    """Print the verdict, the tables and the limits."""
    for ladder in ladders:
        say(console, f"{TITLE}:")
        for one in tables(ladder):
            terminal_table(one, ("recorded", "a over compute", "sizes", "slope")).print(console)
        say(console, verdict_sentence(ladder))
        for line in limits(ladder):
            say(console, f"limit: {line}")


def ladder_json(ladders: Sequence[Ladder]) -> str:
    """Return the laws with their intervals, the predictions and the crossings as JSON."""
    tree = {
        "written_by": "elman mode=report (ladder)",
        "ladders": [
            {
                "folder": str(ladder.source.folder),
                "verdict": verdict_sentence(ladder),
                "limits": limits(ladder),
                "families": {one.name: _family_json(one) for one in ladder.families},
                "crossings": [
                    {"families": list(pair), **asdict(one)}
                    for pair, one in ladder.crossings.items()
                ],
            }
            for ladder in ladders
        ],
    }
    return json.dumps(tree, indent=2) + "\n"


def _family_json(one: Family) -> dict[str, Any]:
    return {
        "sizes": [
            {
                "model": step.arm.model,
                "params": step.arm.params,
                "flops": step.flops,
                "rate": step.rate,
                "rate_from": "trials" if step.is_tuned else "line",
                "scores": {str(seed): score for seed, score in step.scores.items()},
            }
            for step in one.steps
        ],
        "law": _law_json(one.law),
        "law_over_compute": _law_json(one.of_compute),
        "line": None if one.line is None else asdict(one.line),
        "line_over_best": None if one.check is None else one.check.factor,
        "prediction": None if one.prediction is None else asdict(one.prediction),
        "missed_by": one.missed,
        "inside_its_interval": one.is_inside,
    }


def _law_json(law: Fit | None) -> dict[str, Any] | None:
    if law is None:
        return None
    names = {"E": "limit", "A": "factor", "a": "exponent"}
    numbers = {sign: getattr(law.law, name) for sign, name in names.items()}
    ends = {f"{sign}_interval": law.interval(name) for sign, name in names.items()}
    return {**numbers, **ends, "unit": law.law.unit, "limit_is_open": law.is_open}
