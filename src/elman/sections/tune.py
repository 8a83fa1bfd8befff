"""Group ``tune``: which settings of every model are tuned, and with how much care."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from elman.base.errors import UserError
from elman.sections.budget import KINDS, Budgets
from elman.sections.section import Count, NonNegative, Positive, Section, rounded

Number = int | float
Value = bool | int | float | str
"""What a setting is set to."""
Sampler = Literal["quasi_random", "tpe", "gp", "grid", "cma_es"]
SHAPE = "shape"
"""The key of a trial's shape, whose value names several settings: ``depth=12 dim=768``."""


class Leaf(Section):
    """The values that one setting may have: a range, or a list.

    Args:
        low: The smallest value.
        high: The largest one.
        log: Whether points are evenly spaced in the logarithm.
        step: The distance of two values, counted from ``low``; null is any value between.
        values: A list of values in place of a range.
    """

    low: Number | None = None
    high: Number | None = None
    log: bool = False
    step: Number | None = None
    values: list[Value] | None = None

    @property
    def is_range(self) -> bool:
        """Whether it is a range, which can grow."""
        return self.values is None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The smallest and the largest value; None of a list that has no order worth the name.

        Numbers of a list are ordered if there are at least three: two are a choice.
        """
        if self.low is not None and self.high is not None:
            return float(self.low), float(self.high)
        numbers = [one for one in self.values or () if not isinstance(one, bool | str)]
        if len(numbers) < 3 or len(numbers) != len(self.values or ()):
            return None
        return float(min(numbers)), float(max(numbers))

    def refuse(self, key: str) -> None:
        """Raise UserError if it holds no two values, or contradicts itself.

        Args:
            key: The setting's key in the space, for the error.
        """
        name = f"tune.space.{key}"
        if self.values is not None:
            _refuse_list(name, self)
            return
        if self.low is None or self.high is None:
            raise UserError(f"{name}: needs low and high, or values: [...]")
        if self.low >= self.high:
            what = "a space with one point" if self.low == self.high else "low is above high"
            raise UserError(
                f"{name}: low={self.low:g}, high={self.high:g}: {what}; type {name}.high=<a number "
                f"above {self.low:g}>"
            )
        if self.log and self.low <= 0:
            raise UserError(
                f"{name}: low={self.low:g} has no logarithm; type {name}.low=<a number above 0>, "
                f"or {name}.log=false"
            )
        if self.step is not None and (self.step <= 0 or self.log):
            what = "read only with log=false" if self.log else "must be above 0"
            raise UserError(f"{name}.step={self.step:g}: {what}; drop it")


def _refuse_list(name: str, leaf: Leaf) -> None:
    if leaf.low is not None or leaf.high is not None or leaf.step is not None:
        raise UserError(f"{name}: has a range and values; drop one of them")
    values = leaf.values or []
    if len(values) < 2:
        raise UserError(f"{name}: a space with one point; name at least two values")
    if len(set(map(repr, values))) < len(values):
        raise UserError(f"{name}: names a value twice; drop one")


class ShapeSpace(Section):
    """The shapes that ``tune=shape`` tries; each has the size of the model's own.

    Args:
        depth: The least and the most layers, as multiples of the model's own.
        multiple: ``model.dim`` is a multiple of this.
        options: Other sizes, each as multiples of the model's own; those that a model does not
            have are left out.
    """

    depth: Annotated[list[float], Field(min_length=2, max_length=2)]
    multiple: Annotated[int, rounded, Field(ge=128, multiple_of=128)] = 128
    options: dict[str, list[float]] = Field(default_factory=dict)


class LadderConfig(Section):
    """What makes a tuned sweep a ladder: families of models, each at several sizes.

    Args:
        bytes_per_param: Bytes that a model learns from, for each parameter of the size in its name.
        tuned_sizes: How many sizes of each family have trials, the smallest ones. A line through
            the logarithms of their best rates and widths gives the rates of the larger ones.
        check_trials: Trials at the next size, at the rate of the line and around it: they say how
            far that rate is from the best one.
    """

    bytes_per_param: Positive = 20.0
    tuned_sizes: Annotated[int, rounded, Field(ge=2)] = 2
    check_trials: Annotated[int, rounded, Field(ge=0, le=7)] = 5


RATE = "optim.lr"
"""The key of the learning rate, which a ladder tunes."""


class TuneConfig(Section):
    """Group ``tune``: the same space, trials, budget, first points and seed for every model.

    Args:
        space: The settings, nested as the configuration is. A leaf has ``low``, ``high``, ``log``
            and ``step``, or ``values``.
        shape: Shapes of one size, in addition to ``space``; null keeps each model's own.
        trials: Trials of each arm, its published setting included.
        minutes: Budget of one trial in minutes of training.
        steps: Budget of one trial in optimizer steps.
        bytes: Budget of one trial in bytes to learn from, as ``train.bytes``. With none of these,
            trials have the full budget.
        sampler: What chooses points after the first ones.
        quasi_random: Trials before the sampler starts: the published setting, then points that
            fill the space evenly and are the same for every arm.
        seed: ``train.seed`` of every trial, and seed of the sampler.
        score: What a trial is judged by: ``val_bpb``, bits per held-out byte (of a task: bits per
            answer), or of a task its ``accuracy``.
        grow: How often the range may grow, for all arms alike, if a best value is at its edge.
        grow_trials: Trials of each arm in each growth.
        second_seeds: Seeds with which each arm's second best setting is trained at full budget.
        common_seeds: Seeds with which each arm's published setting is; null is all of them.
        window: A value is inside an arm's window if its score is within this share of the best.
        trial_models: The model that is tuned in place of a model: 25M in place of 100M.
        hold_params: Of shapes: the size stays within this share of the model's own.
        ladder: The steps of ``tune=ladder``; null compares all arms with each other.
    """

    space: dict[str, Any] = Field(default_factory=dict)
    shape: ShapeSpace | None = None
    trials: Annotated[int, rounded, Field(ge=2)] = 8
    minutes: Annotated[float, Field(gt=0)] | None = None
    steps: Count | None = None
    bytes: Count | None = None
    sampler: Sampler = "tpe"
    quasi_random: Count = 4
    seed: Annotated[int, rounded, Field(ge=0, lt=2**32)] = 0
    score: Literal["val_bpb", "accuracy"] = "val_bpb"
    grow: Annotated[int, rounded, Field(ge=0)] = 2
    grow_trials: Count = 2
    second_seeds: Annotated[int, rounded, Field(ge=0)] = 1
    common_seeds: Annotated[int, rounded, Field(ge=0)] | None = None
    window: Annotated[float, Field(gt=0, lt=1)] = 0.01
    trial_models: dict[str, str] = Field(default_factory=dict)
    hold_params: NonNegative = 0.01
    ladder: LadderConfig | None = None

    @model_validator(mode="after")
    def _can_be_searched(self) -> Self:
        leaves = self.leaves
        if not leaves and self.shape is None:
            raise UserError("tune.space: names no setting; type tune=rates, or fill it")
        for key, leaf in leaves.items():
            leaf.refuse(key)
        if len(own := [*self.trial_limits]) > 1:
            raise UserError(
                f"tune.{own[1]}: not read together with tune.{own[0]}; drop one of them"
            )
        if self.trials < self.quasi_random and self.sampler not in ("grid", "quasi_random"):
            raise UserError(
                f"tune.trials={self.trials}: fewer than tune.quasi_random={self.quasi_random}, so "
                f"tune.sampler={self.sampler} would choose none; type "
                f"tune.quasi_random={self.trials}, or more trials"
            )
        if self.ladder is not None:
            self._refuse_beside_a_ladder()
        return self

    def _refuse_beside_a_ladder(self) -> None:
        """Raise UserError if a ladder cannot be tuned like this: it has one line, of rates."""
        if [*self.leaves] != [RATE] or self.shape is not None or self.leaves[RATE].bounds is None:
            raise UserError(
                f"tune.ladder: tunes a range of {RATE} and nothing else, because a line gives the "
                "rates of the larger sizes; type tune=ladder alone, or tune.ladder=null"
            )
        if self.score != "val_bpb" or self.trial_models:
            key = "trial_models" if self.trial_models else "score"
            raise UserError(f"tune.{key}: not read by a ladder, which fits val_bpb; drop it")

    @property
    def leaves(self) -> dict[str, Leaf]:
        """The settings by dotted key."""
        return dict(_leaves(self.space, ""))

    @property
    def goal(self) -> Literal["minimize", "maximize"]:
        """Whether a lower score is better, or a higher one."""
        return "maximize" if self.score == "accuracy" else "minimize"

    @property
    def trial_limits(self) -> dict[str, float]:
        """What limits a trial, by key; empty if it has the full budget."""
        own = {"minutes": self.minutes, "steps": self.steps, "bytes": self.bytes}
        return {key: limit for key, limit in own.items() if limit is not None}

    def budget_of_trial(self, full: Budgets) -> dict[str, float | None]:
        """Return every key of a trial's budget; the full budget if none is set for trials."""
        if not (own := self.trial_limits):
            return {kind.key: getattr(full, kind.key) for kind in KINDS}
        return {kind.key: own.get(kind.key) for kind in KINDS}


_PARTS = frozenset(Leaf.model_fields)


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Leaf]]:
    """Yield the leaves of a nested space, with their dotted keys.

    Raises:
        UserError: a key leads to no leaf.
    """
    for name, node in tree.items():
        key = f"{prefix}{name}"
        if not isinstance(node, Mapping):
            raise UserError(
                f"tune.space.{key}={node}: expected a range or a list, as in "
                f"{{low: 1.0e-4, high: 1.0e-2, log: true}}"
            )
        if node and not _PARTS & set(node):
            yield from _leaves(node, f"{key}.")
            continue
        try:
            yield key, Leaf.model_validate(dict(node))
        except ValidationError as error:
            problem = error.errors()[0]
            part = ".".join(["tune.space", key, *map(str, problem["loc"][:1])])
            wrong = problem["msg"].removeprefix("Input should be ")
            raise UserError(f"{part}: {wrong}; keys: {', '.join(Leaf.model_fields)}") from None
