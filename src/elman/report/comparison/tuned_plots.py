"""Which pictures a tuned sweep has: its trials over each key, and what each key decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import fmean

from elman.base.exit_status import RunStatus
from elman.report.comparison.axes import (
    Axis,
    axis,
    axis_of_names,
    axis_of_values,
    log_axis,
    on_log_axis,
)
from elman.report.comparison.blocks import Table, table
from elman.report.comparison.draw import Plot
from elman.report.comparison.pictures import (
    ArmTrials,
    Bar,
    Bars,
    OverSetting,
    Parallel,
    Reach,
    Strand,
    Tried,
)
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import task_of
from elman.report.comparison.swept import ceiling
from elman.report.comparison.tuned import ArmFacts, TunedSweep
from elman.report.comparison.tuned_text import setting, value_text
from elman.sections.tune import SHAPE, Leaf, Value
from elman.tuning.importance import LEAST_TRIALS, METHOD, SOURCE, Importance, importance
from elman.tuning.space import Space, overrides_of
from elman.tuning.trials import Trial, Tuned, same_values

ABOUT = "Each filled marker is one trial. The ring is its arm's best."
ABOUT_CONFIRMED = (
    "A hollow marker is a setting at full budget with fresh seeds: their mean, with a bar from the "
    "lowest to the highest."
)
ABOUT_FAILED = "Marks above the axes are trials without a score, by how they ended."
ABOUT_PARALLEL = (
    "Each line is one trial, through its value of each key to its score. The thick one is the "
    "best. Colored lines are in the window, gray ones have other scores, and dashed ones have none."
)
ABOUT_IMPORTANCE = (
    f"{METHOD} ({SOURCE}, as in Optuna) says how much each key decides whether a trial of an arm "
    "is among its best fifth, as shares of 1. From few trials this is rough."
)
_WORDS = {"optim.lr": "learning rate", "optim.weight_decay": "weight decay"}
# A list of no more values than this has no picture of its own beside other keys.
_HANDFUL = 5
# Scores so many times as far from the best as the median flatten the others.
_WAYS = 5
_MOST_LINES = 60
_PHASES = {"best": "best setting", "second": "second best setting", "common": "published setting"}


@dataclass(frozen=True)
class ArmStyle:
    """The row of the table that an arm has, and its line style."""

    name: str
    row: int
    style: int


@dataclass(frozen=True)
class TunedPictures:
    """The pictures of one tuned sweep.

    Args:
        arms: Its arms, for a legend.
        plots: Scores over keys, and the importance of keys.
        parallel: The trials of each arm as parallel coordinates; empty with one key.
        notes: What has no picture, and why.
    """

    arms: tuple[ArmStyle, ...]
    plots: tuple[Plot, ...]
    parallel: tuple[Plot, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _KeyAxis:
    """The axis of a key, and whether it shows names."""

    axis: Axis
    names: bool = False

    def place(self, value: Value) -> float:
        """Return the place of one of its values."""
        if self.names:
            return next(at for at, text in self.axis.own_ticks if text == value_text(value))
        number = float(value)
        return on_log_axis(self.axis, number) if self.axis.log else number


@dataclass(frozen=True)
class _Sweep:
    """A tuned sweep with the styles of its arms, and the beginning of its pictures' names."""

    results: TunedSweep
    styles: Mapping[str, ArmStyle]
    prefix: str

    @property
    def tuned(self) -> Tuned:
        return self.results.tuned

    @property
    def upwards(self) -> bool:
        return self.tuned.goal == "maximize"

    @property
    def label(self) -> str:
        """What its scores are, with the unit."""
        if self.tuned.score == "accuracy":
            return "share of right answers"
        answers = any(task_of(run) for run in self.results.source.runs)
        return f"held-out bits per {'answer' if answers else 'byte'}"

    @property
    def trials(self) -> list[Trial]:
        """Its trials that have ended."""
        return [one for one in self.tuned.trials if one.phase == "trial" and one.ended]

    @property
    def keys(self) -> list[str]:
        """Every key that its trials vary; a shape has one for each of its sizes."""
        return list(dict.fromkeys(key for one in self.trials for key in settings(one.values)))

    def score(self, value: float | None) -> str:
        return NONE if value is None else f"{value:.4f}"


def settings(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a point by key; a shape is several settings."""
    by_key = {key: value for key, value in values.items() if key != SHAPE}
    for text in overrides_of(str(values.get(SHAPE, ""))):
        key, _, number = text.partition("=")
        by_key[key] = float(number) if "." in number else int(number)
    return by_key


def tuned_pictures(sweeps: Sequence[TunedSweep], rows: Sequence[Row]) -> list[TunedPictures]:
    """Return the pictures of each tuned sweep of a report.

    Args:
        sweeps: The sweeps.
        rows: The rows of the report: an arm has the color of its row.
    """
    prefixes = [f"tuned-{number}" for number in range(1, len(sweeps) + 1)]
    prefixes = ["tuned"] if len(sweeps) == 1 else prefixes
    return [
        _pictures(_Sweep(one, _styles(one, rows), prefix))
        for one, prefix in zip(sweeps, prefixes, strict=True)
    ]


def _styles(sweep: TunedSweep, rows: Sequence[Row]) -> dict[str, ArmStyle]:
    """Return the row and style of each arm; one without a row has a style that no row has."""
    own = {id(run) for run in sweep.source.runs}
    of_arms = {
        run.tuning.arm: (number, row.style)
        for number, row in reversed(list(enumerate(rows)))
        for run in row.runs
        if run.tuning is not None and id(run) in own
    }
    used = {row.style for row in rows}
    free = (style for style in count() if style not in used)
    styles = {}
    for place, arm in enumerate(facts.arm.label for facts in sweep.arms):
        row, style = of_arms[arm] if arm in of_arms else (len(rows) + place, next(free))
        styles[arm] = ArmStyle(arm, row, style)
    return styles


def _pictures(sweep: _Sweep) -> TunedPictures:
    plots, parallel, notes = [], [], []
    keys = sweep.keys
    if any(one.scored for one in sweep.trials):
        shown = [key for key in keys if _has_picture(sweep, key)]
        plots = [_over(sweep, key, numbers=key == shown[0]) for key in shown]
        if len(keys) > 1:
            axes = {key: _key_axis(sweep, key) for key in keys}
            every = [_parallel(sweep, facts, axes) for facts in sweep.results.arms]
            parallel = [plot for plot in every if plot is not None]
    if len(Space.of(sweep.tuned.config, sweep.tuned.arms[0]).keys) > 1:
        bars, text = _importance(sweep)
        plots += bars
        notes += [text] if text else []
    return TunedPictures(tuple(sweep.styles.values()), tuple(plots), tuple(parallel), tuple(notes))


def _has_picture(sweep: _Sweep, key: str) -> bool:
    if len(sweep.keys) == 1:
        return True
    leaf = sweep.tuned.config.leaves.get(key)
    return (leaf is not None and leaf.is_range) or len(_values(sweep, key)) > _HANDFUL


def _values(sweep: _Sweep, key: str) -> list[Value]:
    """Return the different values of a key that were tried, confirmed, or published."""
    every = [settings(one.values) for one in sweep.tuned.trials]
    every += [settings(facts.arm.published) for facts in sweep.results.arms]
    by_text = {value_text(one[key]): one[key] for one in every if one.get(key) is not None}
    return list(by_text.values())


def _over(sweep: _Sweep, key: str, *, numbers: bool) -> Plot:
    """Return the scores of every arm's trials over one key; the numbers are those of all keys."""
    x = _key_axis(sweep, key)
    y, cut = _score_axis(sweep)
    joined = len(sweep.keys) == 1 and not x.names
    arms = [_arm(sweep, facts, key, x) for facts in sweep.results.arms]
    grown = _grown(sweep.tuned, key, x)
    word = _WORDS.get(key, key)
    name = f"{sweep.prefix}-{key.replace('.', '-')}"
    title = f"Trials: {sweep.label} over {word}"
    picture = OverSetting(name, title, arms, x.axis, y, joined, sweep.upwards, grown)
    lines = _numbers(sweep) if numbers else None
    return Plot(picture, _caption(sweep, picture, key) + cut, lines)


def _caption(sweep: _Sweep, picture: OverSetting, key: str) -> str:
    parts = [ABOUT]
    parts += [ABOUT_CONFIRMED] if any(arm.confirmed for arm in picture.arms) else []
    failed = any(one.score is None for arm in picture.arms for one in arm.trials)
    parts += [ABOUT_FAILED] if failed else []
    if any(arm.window is not None for arm in picture.arms):
        share = sweep.tuned.config.window
        parts.append(
            f"The bar below the curves is an arm's window, its values within {100 * share:g} % of "
            "its best score; it is pointed where it may reach farther."
        )
    if not picture.joined and len(sweep.keys) > 1:
        parts.append("Other keys vary too, so no line joins the trials.")
    if picture.grown:
        times = "once" if len(sweep.tuned.ranges) == 2 else f"{len(sweep.tuned.ranges) - 1} times"
        parts.append(f"The range grew {times}, for all arms alike: the tinted parts were added.")
    edges = [f"{arm.name} ({arm.edge})" for arm in picture.arms if arm.edge]
    if edges:
        parts.append(f"The best value is at an edge of {key}: {', '.join(edges)}.")
    others = {arm.trial_model for arm in sweep.tuned.arms if arm.trial_model != arm.model}
    if others:
        parts.append(f"Trials are of smaller models: {', '.join(sorted(others))}.")
    return " ".join(parts)


def _arm(sweep: _Sweep, facts: ArmFacts, key: str, x: _KeyAxis) -> ArmTrials:
    style = sweep.styles[facts.arm.label]
    published = settings(facts.arm.published).get(key)
    side = facts.edges.get(key)
    return ArmTrials(
        style.row,
        style.name,
        style.style,
        _trials(sweep, facts, key, x),
        [
            _tried(sweep, facts, runs, key, x)
            for runs in _confirmed(sweep.tuned, facts)
            if key in settings(runs[0].values)
        ],
        _reach(sweep, facts, key, x),
        None if published is None else x.place(published),
        "" if side is None else f"{'lower' if side == 'low' else 'upper'} edge",
    )


def _trials(sweep: _Sweep, facts: ArmFacts, key: str, x: _KeyAxis) -> list[Tried]:
    """Return the trials of an arm that have ended, in the order of their places."""
    ended = [one for one in facts.trials if one.ended and key in settings(one.values)]
    trials = [
        Tried(
            x.place(settings(one.values)[key]),
            one.score if one.scored else None,
            _tip(sweep, facts, one),
            one.status,
            best=one is facts.first,
        )
        for one in ended
        if one.scored or one.status != RunStatus.OK
    ]
    return sorted(trials, key=lambda one: one.at)


def _tip(sweep: _Sweep, facts: ArmFacts, one: Trial) -> str:
    """Return everything about a trial in one line."""
    end = f"{sweep.label} {sweep.score(one.score)}" if one.scored else one.status
    parts = [f"trial {one.number}" if one.number is not None else "trial", end]
    parts += [f"growth {one.growth}"] if one.growth else []
    parts += ["the best"] if one is facts.first else []
    return f"{one.arm}, {setting(one.values)}: {'; '.join(parts)}"


def _confirmed(tuned: Tuned, facts: ArmFacts) -> Iterator[list[Trial]]:
    """Yield the runs at full budget of each setting of an arm that have a score."""
    left = [one for one in tuned.of(facts.arm.label, "best", "second", "common") if one.scored]
    while left:
        same = [one for one in left if same_values(one.values, left[0].values)]
        yield same
        left = [one for one in left if not any(one is other for other in same)]


def _tried(sweep: _Sweep, facts: ArmFacts, runs: Sequence[Trial], key: str, x: _KeyAxis) -> Tried:
    scores = _scores(runs)
    phases = dict.fromkeys(_PHASES[one.phase] for one in runs)
    phases |= dict.fromkeys(_PHASES["common"] for one in runs if one.common)
    ends = f", {min(scores):.4f} to {max(scores):.4f}" if len(scores) > 1 else ""
    tip = (
        f"{facts.arm.label}, {setting(runs[0].values)}: full budget, {' and '.join(phases)}; "
        f"{sweep.label} {fmean(scores):.4f}{ends}, n={len(scores)}"
    )
    place = x.place(settings(runs[0].values)[key])
    return Tried(place, fmean(scores), tip, ends=(min(scores), max(scores)))


def _scores(runs: Sequence[Trial]) -> list[float]:
    return [one.score for one in runs if one.scored and one.score is not None]


def _reach(sweep: _Sweep, facts: ArmFacts, key: str, x: _KeyAxis) -> Reach | None:
    window = facts.windows.get(key)
    if window is None or x.names:
        return None
    points = f"{len(window.points)} point{'s' if len(window.points) > 1 else ''}"
    tip = f"{facts.arm.label}: window {window.low:.4g} to {window.high:.4g}, {points}"
    low, high = x.place(window.low), x.place(window.high)
    return Reach(low, high, window.open_low, window.open_high, tip)


def _grown(tuned: Tuned, key: str, x: _KeyAxis) -> list[tuple[float, float]]:
    """Return the parts of the range by which it grew, as places on its axis."""
    ranges = [] if x.names else [one[key] for one in tuned.ranges if key in one]
    parts = []
    for old, new in pairwise(ranges):
        parts += [(new["low"], old["low"])] if new["low"] < old["low"] else []
        parts += [(old["high"], new["high"])] if new["high"] > old["high"] else []
    return [(x.place(low), x.place(high)) for low, high in parts]


def _key_axis(sweep: _Sweep, key: str) -> _KeyAxis:
    """Return an axis for all values of a key and its range."""
    values = _values(sweep, key)
    label = f"{_WORDS[key]} ({key})" if key in _WORDS else key
    leaf = sweep.tuned.config.leaves.get(key) or Leaf(values=list(values))
    if not all(map(_is_number, values)):
        names = [value_text(value) for value in leaf.values or ()]
        names += map(value_text, values)
        return _KeyAxis(axis_of_names(label, list(dict.fromkeys(names))), names=True)
    if not leaf.is_range and len(values) <= 2 * _HANDFUL:
        return _KeyAxis(axis_of_values(label, list(dict.fromkeys(map(value_text, values)))))
    numbers = [float(value) for value in values] + [*sweep.tuned.bounds.get(key, ())]
    if leaf.log:
        above = [number for number in numbers if number > 0]
        return _KeyAxis(log_axis(label, min(above), max(above), zero=min(numbers) <= 0))
    return _KeyAxis(axis(label, numbers))


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _score_axis(sweep: _Sweep) -> tuple[Axis, str]:
    """Return an axis for all scores without those that would flatten the others, and a note."""
    trials = _scores(sweep.trials)
    whole = _scores([one for one in sweep.tuned.trials if one.phase != "trial"])
    sign = -1 if sweep.upwards else 1
    limit = ceiling([sign * score for score in trials], _WAYS)
    scores = [score for score in (*trials, *whole) if sign * score <= limit]
    made = axis(sweep.label, scores)
    over = sum(sign * score > limit for score in (*trials, *whole))
    end = made.low if sweep.upwards else made.high
    side = "below" if sweep.upwards else "above"
    verb = "lies" if over == 1 else "lie"
    return made, f" {over} of the scores {verb} {side} {end:.3g}, drawn at the edge." * bool(over)


def _numbers(sweep: _Sweep) -> Table | None:
    """Return the trials and whole runs as a table; None if there are too many."""
    lines: list[tuple[str, ...]] = []
    for facts in sweep.results.arms:
        ended = [one for one in facts.trials if one.ended]
        for one in ended:
            number = NONE if one.number is None else str(one.number)
            what, n = f"trial {number}", "1" if one.scored else "0"
            lines.append(
                (one.arm, setting(one.values), what, sweep.score(one.score), n, one.status)
            )
        for runs in _confirmed(sweep.tuned, facts):
            scores = _scores(runs)
            what = " and ".join(dict.fromkeys(_PHASES[one.phase] for one in runs))
            shown = sweep.score(fmean(scores))
            lines.append(
                (facts.arm.label, setting(runs[0].values), what, shown, str(len(scores)), "ok")
            )
    heads = ("arm", "setting", "what", sweep.label, "n", "status")
    return table(heads, lines) if len(lines) <= _MOST_LINES else None


def _parallel(sweep: _Sweep, facts: ArmFacts, of_all: Mapping[str, _KeyAxis]) -> Plot | None:
    """Return the trials of an arm as lines through an axis for each key that it has; None of none.

    Two models may have other sizes, so that their shapes have other keys.
    """
    style = sweep.styles[facts.arm.label]
    ended = [
        one for one in facts.trials if one.ended and (one.scored or one.status != RunStatus.OK)
    ]
    own = {key for one in ended for key in settings(one.values)}
    axes = {key: one for key, one in of_all.items() if key in own}
    strands = [
        Strand(_places(one, axes), _tip(sweep, facts, one), _kind(sweep, facts, one))
        for one in ended
        if settings(one.values).keys() >= axes.keys()
    ]
    if not strands:
        return None
    number = 1 + [one.arm.label for one in sweep.results.arms].index(facts.arm.label)
    name = f"{sweep.prefix}-parallel-{number}"
    every = [*(one.axis for one in axes.values()), _score_axis(sweep)[0]]
    title = f"Trials of {facts.arm.label}"
    picture = Parallel(name, title, style.row, style.style, every, strands, sweep.upwards)
    failed = sum(not one.scored for one in ended)
    without = f" {failed} of {len(ended)} have no score." if failed else ""
    return Plot(picture, f"{ABOUT_PARALLEL}{without}", None)


def _places(one: Trial, axes: Mapping[str, _KeyAxis]) -> list[float | None]:
    own = settings(one.values)
    places = [each.place(own[key]) for key, each in axes.items()]
    return [*places, one.score if one.scored else None]


def _kind(sweep: _Sweep, facts: ArmFacts, one: Trial) -> str:
    if one is facts.first:
        return "best"
    if not one.scored or one.score is None or facts.first is None or facts.first.score is None:
        return one.status
    best = facts.first.score
    return "near" if abs(one.score - best) <= sweep.tuned.config.window * abs(best) else "far"


def _importance(sweep: _Sweep) -> tuple[list[Plot], str]:
    """Return how much each key decides, as bars for each arm, and the arms that have none."""
    tuned = sweep.tuned
    importances: dict[str, Importance] = {
        facts.arm.label: importance(
            facts.trials, Space.of(tuned.config, facts.arm), tuned.bounds, tuned.goal
        )
        for facts in sweep.results.arms
    }
    few = [
        f"{arm} ({one.trials} trials with a score)"
        for arm, one in importances.items()
        if one.trials < LEAST_TRIALS
    ]
    note = ""
    if few:
        note = (
            f"No importance of keys is given for {', '.join(few)}: fewer than {LEAST_TRIALS} "
            "scores tell too little."
        )
    keys = list(dict.fromkeys(key for one in importances.values() for key in one.shares))
    if not keys:
        return [], note
    groups = []
    for key in keys:
        of_key = []
        for arm, one in importances.items():
            if key in one.shares:
                style = sweep.styles[arm]
                of_key.append(Bar(style.row, arm, style.style, one.shares[key]))
        groups.append((key, of_key))
    x = Axis("share of the importance", 0.0, 1.12, own_ticks=_PERCENT)
    picture = Bars(f"{sweep.prefix}-importance", f"Importance of each key ({METHOD})", groups, x)
    of = ", ".join(f"{arm} {one.trials}" for arm, one in importances.items() if one.shares)
    caption = f"{ABOUT_IMPORTANCE} Trials with a score: {of}."
    lines = [
        (arm, *(_share(one, key) for key in keys), str(one.trials))
        for arm, one in importances.items()
    ]
    return [Plot(picture, caption, table(("arm", *keys, "trials"), lines))], note


_PERCENT = tuple((share / 100, f"{share} %") for share in range(0, 101, 20))


def _share(one: Importance, key: str) -> str:
    share = one.shares.get(key, math.nan)
    return NONE if math.isnan(share) else f"{share:.3f}"
