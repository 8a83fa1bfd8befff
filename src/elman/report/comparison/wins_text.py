"""Who wins, in words: for the terminal, Markdown, CSV and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from elman.base.tables import TerminalTable
from elman.report.comparison.blocks import (
    Command,
    Fold,
    Head,
    Item,
    Items,
    Line,
    Table,
    Text,
    Title,
    say,
    terminal_table,
)
from elman.report.comparison.deciding import (
    EQUAL_STEPS,
    KIND_OF,
    LOSS,
    MEMORY,
    RULE,
    SPEED,
    UNEQUAL_STEPS,
    VAL_BPB,
    different_tokens,
)
from elman.report.comparison.rows import Row
from elman.report.comparison.statistics import LEVEL, MOST_SEEDS
from elman.report.comparison.wins import Challenger, Comparison, Group, Wins

NONE = "-"
TITLE = "Who wins"
METHOD = (
    "Each row is compared with one row, and only if both agree in all conditions except the seeds. "
    "report.against names that row: a model, a label, or the number of a job. Otherwise it is the "
    "row with the lowest number that decides, of all that are comparable with one another (of "
    "those with several seeds, if there are any). Such a row is lowest in part by luck, so its "
    "lead is somewhat overstated. Name a row beforehand to avoid this.",
    *RULE,
    "Whole runs are compared at the budget that all of them spent. A run ends with a whole step, "
    "so it may end up to a step later. Elsewhere two rows are compared where the shortest run of "
    "both ends. A star marks a comparison before the end of the longer runs, by more than 2 % of "
    "such a run and more than one step: their learning rate may not have fallen yet.",
    f"At equal {' and '.join(EQUAL_STEPS)} the loss is the mean over the last 100 optimizer steps "
    f"up to there. At equal {' and '.join(UNEQUAL_STEPS)} it is the mean over the last tenth of "
    "them: an equal share of runs of few and of many steps. Between two steps it is linear. "
    "val bpb is linear between two validations, or that of a validation at most 2 % away.",
    "Differences are paired by seed if both rows have the same seeds, or if one has all seeds of "
    "the other, two or more. The interval is then Student's t (1908) over the differences, and "
    "otherwise Welch's (1947). It holds the true mean difference in 95 % of such comparisons if "
    "the noise between seeds is about normal. One seed gives no interval. Speed and memory are "
    "compared by ratios, with the interval of the mean logarithm.",
    "A difference is told from noise if its p is below 5 %. For each number, p is adjusted over "
    "the rows by Holm (1979). Intervals are not adjusted for the number of rows.",
    "The seeds that would decide are those with which such a test finds a true difference in 80 % "
    "of cases (noncentral t; Colas et al. 2018, arXiv:1806.08295). That difference and its noise "
    "are those seen. From two or three seeds this is a rough guess.",
)
"""How rows are compared, in paragraphs, with its sources."""
_AXES = f"{', '.join([*KIND_OF][:-1])} or {[*KIND_OF][-1]}"
DIFFERENCE_COLUMNS = {
    "against": "of a difference: the row that it is compared with",
    "measure": "of a difference: loss, val_bpb, tok_s or peak_memory_gb",
    "decides": "of a difference: whether it decides who wins; of each two rows one does",
    "at": f"of a difference: compared at equal {_AXES}; empty for whole runs",
    "at_value": f"of a difference: the number of {_AXES}",
    "difference": "of a difference: mean of the row less mean of the other row",
    "ratio": "of a difference in speed or memory: the row's over the other row's",
    "low": "of a difference or ratio: lower end of its 95 % interval",
    "high": "of a difference or ratio: upper end of its 95 % interval",
    "noise": "of a difference: standard deviation between seeds, pooled over both rows",
    "method": "of a difference: paired (by seed), Welch, or one seed, which has no interval",
    "p": "of a difference: probability of one at least as large if there is none",
    "p_holm": "of a difference: the same, adjusted for the number of rows by Holm",
    "more_seeds": "of a difference: seeds that would decide, about; empty if decided or unknown",
    "verdict": "of a difference: what follows from it, or why there is none",
}
"""Columns of ``report.csv`` that only differences fill."""
HEADS = (
    *("row", "number", "at equal", "difference", "95 % interval", "times the noise", "seeds"),
    *("p (Holm)", "verdict"),
)
AS_EQUAL = ": take them as equal"
TO_DECIDE, TO_MEASURE = "to decide it", "to learn the noise between seeds"
"""What the commands are for that add seeds."""
EARLIER = "before the end of the longer runs: their learning rate may not have fallen yet"
"""What a star says."""
MOST_LISTED = 40
"""Of more rows only the number that decides is listed."""
_MOST_IN_TERMINAL, _MOST_COMMANDS = 20, 5


def to_decide(group: Group, one: Challenger) -> Sequence[str]:
    """Return the commands that would decide about a row; none where a verdict names its own."""
    return () if group.judged_apart else one.to_decide


def heading(group: Group) -> str:
    """Return what the rows of a group are compared with."""
    why = "report.against" if group.chosen else f"the lowest {group.by.number.name}"
    return f"against {group.reference.label} ({why}, n={len(group.reference.counted)})"


def verdict(line: Comparison) -> str:
    """Return what follows from one line."""
    diff = line.difference
    if diff is None:
        return line.why_not
    note = ""
    if line.marks:
        note = f"; not the model's own speed: {', '.join(line.marks)}"
    if diff.interval is None:
        return f"one seed in a row, so the noise is unknown{note}"
    if diff.value == 0 and diff.error == 0:
        return f"equal in every seed{note}"
    if line.decided:
        return f"{line.number.better[diff.value > 0]}{note}"
    return _undecided(line) + note


def _undecided(line: Comparison) -> str:
    diff = line.difference
    assert diff is not None
    counts = str(diff.n[0]) if diff.n[0] == diff.n[1] else f"{diff.n[0]} and {diff.n[1]}"
    alone = diff.p is not None and diff.p < 1 - LEVEL
    many = " among so many rows" if alone else ""
    more = line.more_seeds
    decide = (
        f"about {more} more would decide"
        if more is not None
        else f"more than {MOST_SEEDS} more would be needed{AS_EQUAL}"
    )
    return f"not distinguishable with {counts} seeds{many}; {decide}"


def shown(line: Comparison) -> str:
    """Return a difference or ratio as text."""
    if line.value is None:
        return NONE
    times = " times" if line.number.is_ratio else ""
    star = "*" if line.earlier else ""
    return f"{line.value:{line.number.form}}{times}{star}"


def _interval(line: Comparison) -> str:
    if line.interval is None:
        return NONE
    low, high = (format(end, line.number.form) for end in line.interval)
    return f"{low} to {high}"


def _both(line: Comparison) -> str:
    """Return a difference with its interval."""
    return shown(line) if line.interval is None else f"{shown(line)} ({_interval(line)})"


def _at(line: Comparison) -> str:
    if line.axis is None or line.effort is None:
        return NONE if line.axis is None else line.axis
    return f"{line.axis}: {line.effort:{KIND_OF[line.axis].spent_form}}"


def cells(group: Group, challenger: Challenger, line: Comparison) -> list[str]:
    """Return one line as text, under ``HEADS``."""
    diff = line.difference
    noisy = diff is not None and diff.noise
    n = diff.n if diff is not None else None
    return [
        challenger.row.label,
        f"{line.number.name} (decides)" if line is group.decisive(challenger) else line.number.name,
        _at(line),
        shown(line),
        _interval(line),
        f"{abs(diff.value) / diff.noise:.2g}" if diff and noisy and diff.noise else NONE,
        NONE if n is None or diff is None else f"{n[0]}, {diff.method}",
        NONE if line.p is None else f"{line.p:.2g}",
        verdict(line),
    ]


def difference_lines(wins: Wins) -> Iterator[dict[str, Any]]:
    """Yield every difference as a line of ``report.csv``."""
    for group in wins.groups:
        for one in group.challengers:
            for line in one.lines:
                yield _csv_line(group, one.row, line) | {"decides": line is group.decisive(one)}


def _csv_line(group: Group, row: Row, line: Comparison) -> dict[str, Any]:
    diff, kind = line.difference, "ratio" if line.number.is_ratio else "difference"
    columns: dict[str, Any] = {
        "kind": "difference",
        "set": row.set,
        "model": row.model,
        "label": row.label,
        "against": group.reference.label,
        "measure": line.number.key,
        "at": line.axis,
        "at_value": line.effort,
        "verdict": verdict(line),
    }
    if diff is None:
        return columns
    low, high = line.interval or (None, None)
    own = {
        kind: line.value,
        "low": low,
        "high": high,
        "method": diff.method,
        "n": diff.n[0],
    }
    noise = None if line.number.is_ratio else diff.noise
    tests = {"noise": noise, "p": diff.p, "p_holm": line.p, "more_seeds": line.more_seeds}
    return columns | own | tests


def wins_parts(wins: Wins, rows: Sequence[Row]) -> list[Any]:
    """Return the parts of the page's block; none if nothing is compared."""
    numbers = {id(row): number for number, row in enumerate(rows)}
    parts = [part for group in wins.groups for part in _parts(group, numbers)]
    if wins.left_out:
        parts.append(Items([Item(line) for line in wins.left_out]))
    if wins.groups:
        parts.append(Fold("How rows are compared", [Text(text) for text in METHOD]))
    return parts


def _parts(group: Group, numbers: Mapping[int, int]) -> Iterator[Any]:
    yield Title(_begun(heading(group)))
    yield Text(f"{_begun(group.by.sentence)}.")
    yield Items(
        [
            Item(
                sentence(group, one),
                [Command(TO_DECIDE, text) for text in to_decide(group, one) if at < MOST_LISTED],
            )
            for at, one in enumerate(group.challengers)
        ],
        "wins",
    )
    yield from (Command(TO_MEASURE, text) for text in group.to_measure)
    note = [Text(shortened(group))] if shortened(group) else []
    yield Fold("Every difference, with its interval", [*note, differences(group, numbers)])


def _begun(text: str) -> str:
    return text[0].upper() + text[1:]


def differences(group: Group, numbers: Mapping[int, int] | None = None) -> Table:
    """Return every difference of a group; ``numbers``: of the rows, by their identity."""
    lines = [
        Line(cells(group, one, line), numbers[id(one.row)] if numbers else None)
        for one, line in listed(group)
    ]
    return Table([Head(head) for head in HEADS], lines, "sorted differences")


def wins_markdown(wins: Wins) -> Iterator[str | Command | Table]:
    """Yield paragraphs, commands and tables."""
    for group in wins.groups:
        yield f"{TITLE}, {heading(group)}:"
        yield group.by.sentence
        for one in group.challengers[:MOST_LISTED]:
            yield sentence(group, one)
            yield from (Command(TO_DECIDE, text) for text in to_decide(group, one))
        yield from (Command(TO_MEASURE, text) for text in group.to_measure)
        yield differences(group)
        if note := shortened(group):
            yield note
    yield from wins.left_out
    if wins.groups:
        yield from METHOD


def listed(group: Group) -> list[tuple[Challenger, Comparison]]:
    """Return the lines that a reader gets: of many rows only what decides."""
    if len(group.challengers) > MOST_LISTED:
        return [(one, group.decisive(one)) for one in group.challengers]
    return [(one, line) for one in group.challengers for line in one.lines]


def shortened(group: Group) -> str:
    """Return what a list leaves out, or an empty text."""
    if len(group.challengers) <= MOST_LISTED:
        return ""
    return (
        f"Of so many rows only {group.by.number.name} at equal {group.axis} is listed; "
        "report.csv has the rest."
    )


def sentence(group: Group, one: Challenger) -> str:
    """Return a line about one row: what decides with its verdict, and whether the other agrees."""
    line, beside = group.decisive(one), group.beside(one)
    at = f"at equal {group.axis}"
    if line.difference is None:
        return f"{one.row.label}: {line.number.name} {at}: {verdict(line)}"
    if group.judged_apart:
        return _without_outcome(one, line, beside, at)
    outcome = verdict(line)
    if beside.decided:  # they are not equal by every number
        outcome = outcome.removesuffix(AS_EQUAL)
    parts = [
        f"{one.row.label}: {outcome}: {line.number.name} {_both(line)} {at}; "
        f"{beside.number.name} {_agreement(line, beside)}"
    ]
    return ", ".join([*parts, *_speed_and_memory(one)])


def _without_outcome(one: Challenger, line: Comparison, beside: Comparison, at: str) -> str:
    """Return a line of numbers alone: the verdict stands with the tuned sweep."""
    parts = [f"{one.row.label}: {line.number.name} {_both(line)} {at}"]
    parts += [f"{beside.number.name} {_both(beside)}"] if beside.difference is not None else []
    return ", ".join([*parts, *_speed_and_memory(one)])


def _speed_and_memory(one: Challenger) -> Iterator[str]:
    for other in (one.line(SPEED), one.line(MEMORY)):
        if other.difference is not None:
            marks = f" ({', '.join(other.marks)})" if other.marks else ""
            yield f"{other.number.name} {_both(other)}{marks}"


def _agreement(line: Comparison, beside: Comparison) -> str:
    """Say whether a second number tells two rows apart as the one that decides does."""
    if line.difference is None or beside.difference is None:
        return beside.why_not
    if line.p is None or beside.p is None:
        same = line.difference.value * beside.difference.value >= 0
        return f"{_both(beside)}{'' if same else ', which points the other way'}"
    if _outcome(line) == _outcome(beside):
        return f"agrees, {_both(beside)}"
    return (
        f"disagrees: {_outcome(beside)}, {_both(beside)}, "
        f"p {beside.p:.2g} beside {line.p:.2g} of {line.number.name}"
    )


def _outcome(line: Comparison) -> str:
    """Return what a number with several seeds says of two rows, in two words."""
    assert line.difference is not None
    if line.decided:
        return line.number.better[line.difference.value > 0]
    return "not distinguishable"


def print_wins(console: Console, wins: Wins) -> None:
    """Print for each group what decides, the losses at equal effort, and a line for each row."""
    for group in wins.groups:
        say(console, f"{TITLE}, {heading(group)}; in brackets 95 % intervals:")
        say(console, group.by.sentence)
        shown = group.challengers[:_MOST_IN_TERMINAL]
        _losses(group, shown).print(console)
        if any(line.earlier for one in shown for line in _shown_losses(group, one)):
            say(console, f"* {EARLIER}")
        stars = 0
        for one in shown:
            say(console, sentence(group, one))
            for text in to_decide(group, one)[: _MOST_COMMANDS - stars]:
                say(console, f"{TO_DECIDE}: {text}")
                stars += 1
        for text in group.to_measure:
            say(console, f"{TO_MEASURE}: {text}")
        if len(shown) < len(group.challengers):
            say(console, f"and {len(group.challengers) - len(shown)} more rows in report.html")
    for line in wins.left_out:
        say(console, line)


def _losses(group: Group, challengers: Sequence[Challenger]) -> TerminalTable:
    lines = _shown_losses(group, group.challengers[0])
    heads = [f"{line.number.name} at equal {line.axis}" for line in lines]
    decisive = group.decisive(group.challengers[0])
    spare = [head for head, line in zip(heads, lines, strict=True) if line is not decisive]
    # Without bars, for these are remarks on the table of the report.
    name = Head(f"minus that of {group.reference.label}")
    lines_of = [
        Line([one.row.label, *map(_both, _shown_losses(group, one))]) for one in challengers
    ]
    table = Table([name, *(Head(head, number=True) for head in heads)], lines_of)
    return terminal_table(table, spare[::-1], bars=False)


def _shown_losses(group: Group, one: Challenger) -> list[Comparison]:
    """Return the lines of the terminal's table: what decides, and the loss at equal everything.

    Of different tokens no losses are compared: then it is val bpb at equal everything.
    """
    rows = (group.reference, *(challenger.row for challenger in group.challengers))
    number = VAL_BPB if different_tokens(rows) else LOSS
    decisive = group.decisive(one)
    lines = [line for line in one.lines if line.number is number]
    if decisive.number is LOSS:
        return lines
    return [decisive, *(line for line in lines if line is not decisive)]
