"""The trials and confirmed runs of a tuned sweep, as its folder records them.

``sweep.json`` says which job is what, and each job's ``result.json`` how it ended. Nothing here
reads Optuna's journal: it holds no more than these files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elman.base import run_files
from elman.base.exit_status import RunStatus
from elman.evaluation.result import RunResult
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED, read_run_result
from elman.sections.tune import TuneConfig, Value

Goal = Literal["minimize", "maximize"]
Phase = Literal["trial", "best", "second", "common"]
"""What a job is for. ``trial`` finds a setting; the others are at full budget, with fresh seeds:
``best``, an arm's best setting; ``second``, its second best; ``common``, its published one."""
State = Literal["trials", "growing", "confirming", "done"]

AGAIN = (NOT_STARTED, RUNNING, UNFINISHED, RunStatus.INTERRUPTED)
"""Statuses of a job that has not ended: it runs, or a resumed sweep runs it again."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a model with the settings that distinguish it.

    Args:
        label: What it is called: its model, and other swept settings.
        model: Its model.
        trial_model: The model of its trials.
        published: Its own values of the keys of the space, before tuning.
        params: Parameters of its model; None if they are not recorded.
        seeds: The seeds of its confirmation.
        overrides: Its overrides, without ``train.seed``.
        shapes: The shapes of its trials, if those are searched.
        family: Of a ladder: the name of its model without the size.
        size: Of a ladder: the size in the name of its model, in parameters.
        width: Of a ladder: ``model.dim``.
    """

    label: str
    model: str
    trial_model: str
    published: Mapping[str, Value]
    params: int | None = None
    seeds: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    family: str = ""
    size: int | None = None
    width: int | None = None

    def record(self) -> dict[str, Any]:
        """Return what ``sweep.json`` says of it."""
        of_ladder = {"family": self.family, "size": self.size, "width": self.width}
        return {
            "arm": self.label,
            "model": self.model,
            "trial_model": self.trial_model,
            "published": dict(self.published),
            "params": self.params,
            "seeds": list(self.seeds),
            "overrides": list(self.overrides),
            "shapes": list(self.shapes),
            **(of_ladder if self.family else {}),
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Arm:
        """Return the arm that ``sweep.json`` describes."""
        return cls(
            label=str(record["arm"]),
            model=str(record["model"]),
            trial_model=str(record.get("trial_model") or record["model"]),
            published=dict(record.get("published") or {}),
            params=record.get("params"),
            seeds=tuple(record.get("seeds") or ()),
            overrides=tuple(record.get("overrides") or ()),
            shapes=tuple(record.get("shapes") or ()),
            family=str(record.get("family") or ""),
            size=record.get("size"),
            width=record.get("width"),
        )


@dataclass(frozen=True)
class Trial:
    """One job of a tuned sweep: a trial, or a confirmed run.

    Args:
        arm: Label of its arm.
        number: Its number among the trials of its arm, from 1; None of a confirmed run.
        phase: What it is for.
        values: The values of the space that it had.
        status: How it ended, as in ``result.json``, or that it has not.
        score: Its score if it ended well, else None.
        seed: Its ``train.seed``.
        job: Its number in the sweep.
        folder: Its run folder.
        common: Whether it has the arm's published setting, so that it counts as ``common`` too.
        growth: In which growth of the range it was tried; 0 before the first one.
    """

    arm: str
    number: int | None
    phase: Phase
    values: Mapping[str, Value]
    status: str
    score: float | None
    seed: int
    job: int
    folder: Path | None = None
    common: bool = False
    growth: int = 0

    @property
    def scored(self) -> bool:
        """Whether it ended well and has a score."""
        return self.status == RunStatus.OK and self.score is not None

    @property
    def diverged(self) -> bool:
        """Whether its loss or gradient was not finite."""
        return self.status == RunStatus.NAN

    @property
    def ended(self) -> bool:
        """Whether it has ended, well or not, and is not run again."""
        return self.status not in AGAIN


@dataclass(frozen=True)
class WholeRun:
    """A run of the confirmation, at full budget.

    Args:
        arm: Its arm.
        phase: What it is for.
        values: Its values of the space.
        seed: Its ``train.seed``, which no trial had.
        common: Whether these are the arm's published values.
    """

    arm: Arm
    phase: Phase
    values: Mapping[str, Value]
    seed: int
    common: bool


@dataclass(frozen=True)
class Line:
    """The learning rate of a family over its width: a line in the logarithms of both.

    Args:
        points: The widths of the sizes that have trials, each with its best rate.
        slope: How many times the logarithm of the rate changes as that of the width does.
        at: When it was drawn.
    """

    points: tuple[tuple[int, float], ...]
    slope: float
    at: str

    def rate(self, width: int) -> float:
        """Return the rate at a width, where the line ends at no bound."""
        logs = [(math.log(x), math.log(y)) for x, y in self.points]
        x_mean = sum(x for x, _ in logs) / len(logs)
        y_mean = sum(y for _, y in logs) / len(logs)
        return math.exp(y_mean + self.slope * (math.log(width) - x_mean))

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Line:
        """Return the line that ``sweep.json`` describes."""
        points = tuple((int(width), float(rate)) for width, rate in record["points"])
        return cls(points, float(record["slope"]), str(record["at"]))


@dataclass(frozen=True)
class Prediction:
    """What was said of a size before it was trained.

    Args:
        score: The score that was predicted; None if too few smaller sizes had one.
        low: Lower end of its interval.
        high: Upper end.
        sizes: The sizes that it is made from: parameters and mean score.
        at: When it was recorded.
        is_open: Whether two sizes left the limit of the law open.
    """

    score: float | None
    low: float | None
    high: float | None
    sizes: tuple[tuple[int, float], ...]
    at: str
    is_open: bool = False

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Prediction:
        """Return the prediction that ``sweep.json`` describes."""
        sizes = tuple((int(params), float(score)) for params, score in record["sizes"])
        return cls(**{**record, "sizes": sizes})


@dataclass(frozen=True)
class Tuned:
    """What is known of a tuned sweep.

    Args:
        config: Group ``tune``.
        score: Field of ``result.json`` by which trials are judged.
        goal: Whether a lower score is better.
        arms: Its arms.
        ranges: The bounds of each key at first and after each growth.
        trials: Its jobs, trials and confirmed runs, in their order.
        state: How far it is.
        choice: The choice of group ``tune``.
        lines: Of a ladder: the line of rates of each family, by its name.
        predictions: Of a ladder: what was predicted of a largest size before it was trained, by
            the label of its arm.
    """

    config: TuneConfig
    score: str
    goal: Goal
    arms: tuple[Arm, ...]
    ranges: tuple[Mapping[str, Mapping[str, float]], ...] = ()
    trials: tuple[Trial, ...] = field(default=())
    state: State = "trials"
    choice: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)
    predictions: Mapping[str, Prediction] = field(default_factory=dict)

    @property
    def searched(self) -> tuple[Arm, ...]:
        """The arms whose setting is searched: of a ladder only the smallest sizes of a family."""
        if self.config.ladder is None:
            return self.arms
        number = self.config.ladder.tuned_sizes
        return tuple(arm for own in self.families.values() for arm in own[:number])

    @property
    def families(self) -> dict[str, list[Arm]]:
        """Of a ladder: the arms of each family, by size; the largest of several is held out."""
        found: dict[str, list[Arm]] = {}
        for arm in sorted(self.arms, key=lambda arm: (arm.size or 0, arm.params or 0)):
            found.setdefault(arm.family, []).append(arm)
        return {name: found[name] for name in dict.fromkeys(arm.family for arm in self.arms)}

    def of(self, arm: str, *phases: Phase) -> list[Trial]:
        """Return the jobs of an arm in some phases, or all its trials if none is named."""
        wanted = phases or ("trial",)
        return [
            one
            for one in self.trials
            if one.arm == arm and (one.phase in wanted or (one.common and "common" in wanted))
        ]

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The bounds of each key that has an order, after the last growth."""
        newest = self.ranges[-1] if self.ranges else {}
        return {key: (float(ends["low"]), float(ends["high"])) for key, ends in newest.items()}


def trials_of(folder: Path) -> Tuned | None:
    """Return what a sweep's folder says of its tuning; None if it is no tuned sweep.

    Args:
        folder: The sweep's folder. Jobs that run now are part of the answer.
    """
    try:
        content = json.loads((folder / run_files.SWEEP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return tuned_in(content, folder) if isinstance(content, dict) else None


def tuned_in(content: Mapping[str, Any], folder: Path) -> Tuned | None:
    """Return what the content of a ``sweep.json`` says; as :func:`trials_of`."""
    head = content.get("tune")
    if not isinstance(head, Mapping):
        return None
    config = TuneConfig.model_validate(head["config"])
    score = str(head["score"])
    return Tuned(
        config=config,
        score=score,
        goal=head["goal"],
        arms=tuple(Arm.read(one) for one in head["arms"]),
        ranges=tuple(head["ranges"]),
        trials=tuple(
            _trial(job, folder, score) for job in content.get("jobs") or () if job.get("tuning")
        ),
        state=head["state"],
        choice=str(head.get("choice") or ""),
        lines={name: Line.read(one) for name, one in (head.get("lines") or {}).items()},
        predictions={
            label: Prediction.read(one) for label, one in (head.get("predictions") or {}).items()
        },
    )


def score_of(result: RunResult | None, score: str) -> float | None:
    """Return the score of a run that ended well; None if it did not, or has none."""
    if result is None or result.status != RunStatus.OK:
        return None
    value = getattr(result, score)
    return None if value is None else float(value)


def _trial(job: Mapping[str, Any], folder: Path, score: str) -> Trial:
    tuning, place = job["tuning"], job.get("folder")
    own = folder / str(place) if place else None
    result = read_run_result(own) if own is not None else None
    return Trial(
        arm=str(tuning["arm"]),
        number=tuning.get("trial"),
        phase=tuning["phase"],
        values=dict(tuning.get("values") or {}),
        status=str(result.status if result is not None else job.get("status") or NOT_STARTED),
        score=score_of(result, score),
        seed=int(job["seed"]),
        job=int(job["number"]),
        folder=own,
        common=bool(tuning.get("common")),
        growth=int(tuning.get("growth") or 0),
    )


def same_values(one: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
    """Whether two settings are the same; numbers are, if they agree in 9 digits."""
    return one.keys() == other.keys() and all(
        _same(value, other[key]) for key, value in one.items()
    )


def _same(one: Value, other: Value) -> bool:
    numbers = [x for x in (one, other) if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) == 2:
        return abs(numbers[0] - numbers[1]) <= 1e-9 * max(abs(numbers[0]), abs(numbers[1]))
    return type(one) is type(other) and one == other


def numbers_of(trials: Sequence[Trial], key: str) -> list[tuple[float, Trial]]:
    """Return the trials that have a number for a key, in the order of that number."""
    found = [
        (float(value), one)
        for one in trials
        if isinstance(value := one.values.get(key), int | float) and not isinstance(value, bool)
    ]
    return sorted(found, key=lambda pair: pair[0])
