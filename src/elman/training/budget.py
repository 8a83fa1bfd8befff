"""What a run has used of its budgets, also where a resumed run changes its batch."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

from elman.base.errors import UserError
from elman.sections.budget import KINDS, MINUTES, RATES, Effort, Rate, used, used_share
from elman.sections.model import ModelConfig
from elman.sections.training import TrainConfig

# Steps whose bytes are remembered: more than a device may be behind.
_NEWEST = 1000


class Budget:
    """The limits of a run, and what its applied steps have used of them.

    Args:
        train: Group ``train``, with the limits and the sizes of a step.
        model: Group ``model``, which rates may depend on.
        warmup_steps: ``optim.warmup_steps``.
        bytes_per_token: About how many bytes a token stands for, to foresee steps; None if it is a
            byte. The bytes of steps that were taken are counted, see :meth:`count_bytes`.

    Raises:
        UserError: a budget is set whose rate cannot be computed: ``train.flops``, and the
            operations of the cell cannot be counted.
    """

    def __init__(
        self,
        train: TrainConfig,
        model: ModelConfig,
        warmup_steps: int,
        bytes_per_token: float | None = None,
    ) -> None:
        self._train, self._model, self._warmup_steps = train, model, warmup_steps
        self._limits = train.limits
        self._bytes_per_token = bytes_per_token
        # What the tokens of the newest steps stand for, by step: an update may be blocked later.
        self._text_bytes: dict[int, int] = {}
        self._tokens_per_step = train.batch_size * train.chunk_size * train.grad_accum
        # Steps and tokens of earlier sessions, and what those tokens took at the rates of theirs;
        # None if nobody counted that.
        self._before: tuple[int, int, dict[str, float | None]] = (0, 0, {})
        self._warmed: Effort | None = None
        self._rates: dict[str, tuple[float | None, str]] = {}
        for rate in train.rates:
            value, problem = self._computed(rate)
            if value is None:
                raise UserError(f"train.{rate.key}={self._limits[rate.key]:g}: {problem}")

    @property
    def flops_per_byte(self) -> float | None:
        """The defined number; None if the cell's operations cannot be counted."""
        return self._rate("flops")

    def rates(self) -> dict[str, float]:
        """Return the rates that the limits of the run need, by name."""
        found = {rate.name: self._computed(rate)[0] for rate in self._train.rates}
        return {name: value for name, value in found.items() if value is not None}

    def _rate(self, key: str) -> float | None:
        return next(self._computed(rate)[0] for rate in RATES if rate.key == key)

    def _computed(self, rate: Rate) -> tuple[float | None, str]:
        """Return a rate, or None and why it cannot be computed."""
        if rate.key not in self._rates:
            compute = getattr(import_module(rate.module), rate.name)
            try:
                self._rates[rate.key] = compute(self._model, self._train), ""
            except UserError as error:
                self._rates[rate.key] = None, str(error)
        return self._rates[rate.key]

    @property
    def bytes_per_token(self) -> float:
        """Bytes that a predicted token stands for, the mean over all steps; 1 if it is a byte."""
        step = max(self._text_bytes, default=0)
        return self.bytes_at(step) / self.tokens_at(step) if step else self._bytes_per_token or 1.0

    def tokens_at(self, step: int) -> int:
        """Return the tokens predicted in the first ``step`` steps, over all ranks."""
        steps, before, _ = self._before
        return before + (step - steps) * self._tokens_per_step

    def bytes_at(self, step: int) -> int:
        """Return the bytes that these tokens stand for; about, for a step long ago."""
        if self._bytes_per_token is None:
            return self.tokens_at(step)
        if (known := self._text_bytes.get(step)) is not None:
            return known
        return round(self.tokens_at(step) * self.bytes_per_token)

    def count_bytes(self, step: int, size: int) -> None:
        """Note what the tokens of the first ``step`` steps stand for, over all ranks."""
        self._text_bytes[step] = size
        self._text_bytes.pop(step - _NEWEST, None)

    def flops_at(self, step: int) -> float | None:
        """Return the operations of these steps; None if they cannot be counted."""
        return self._by_bytes("flops", step)

    def _by_bytes(self, key: str, step: int) -> float | None:
        """Return how much these steps took of a kind whose rate is that of a byte."""
        if (each := self._rate(key)) is None:
            return None
        steps, size, measured = self._before
        now = (step - steps) * self._tokens_per_step * each
        before = measured.get(key, 0.0)
        return now + (size * each if before is None else before)

    def share(self, step: int, seconds: float) -> float:
        """Return the used share of the budget that is used most, 1 once it is used up."""
        return used_share(self._limits, self._effort(step, seconds))

    def steps_left(self, step: int, seconds: float = 0.0, step_seconds: float = 0.0) -> float:
        """Return how many steps the budgets but ``train.minutes`` leave, or infinity.

        Args:
            step: Steps that were done.
            seconds: Seconds that they took.
            step_seconds: Seconds of one more.
        """
        so_far = used(self._limits, self._effort(step, seconds))
        tokens = self._tokens_per_step
        each = self._counted(Effort(1, step_seconds, tokens * self.bytes_per_token, tokens))
        left = [
            (self._limits[key] - so_far[key]) / size
            for key, size in used(self._limits, each).items()
            if size > 0 and key != MINUTES.key
        ]
        return max(0.0, min(left, default=math.inf))

    def report(self, step: int, seconds: float) -> dict[str, dict[str, float]]:
        """Return of each budget that was set its limit and what was spent, by key."""
        so_far = used(self._limits, self._effort(step, seconds))
        return {key: {"limit": self._limits[key], "spent": size} for key, size in so_far.items()}

    def keys(self) -> list[str]:
        """Return the keys of the budgets that were set, as they are typed."""
        return [f"train.{kind.key}" for kind in KINDS if kind.key in self._limits]

    def pass_warmup(self, step: int, seconds: float) -> None:
        """Note what was used when the warm-up ended; later calls change nothing."""
        if self._warmed is None and step >= self._warmup_steps:
            self._warmed = self._effort(step, seconds)

    def warmup_share(self) -> float | None:
        """Return the share of today's budgets that was used when the warm-up ended, if known."""
        if self._warmed is None:
            return None
        return used_share(self._limits, self._counted(self._warmed))

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return what was used up to a step, for a resumed run."""
        so_far = {"step": step, "bytes": self.tokens_at(step)}
        if self._bytes_per_token is not None:
            so_far["text_bytes"] = self.bytes_at(step)
        of_bytes = [rate.key for rate in RATES if rate.of == "bytes"]
        measured = {key: self._by_bytes(key, step) for key in of_bytes}
        warmed = None if self._warmed is None else self._warmed.state_dict()
        return {**so_far, **measured, "warmed": warmed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what earlier sessions used.

        Raises:
            UserError: ``train.bytes`` limits the run, and an old version did not count them.
        """
        measured = {rate.key: state.get(rate.key) for rate in RATES}
        self._before = (state["step"], state["bytes"], measured)
        self._load_bytes(state)
        warmed = state.get("warmed")  # missing in the oldest checkpoints
        if isinstance(warmed, list):  # in older ones: step, bytes, seconds
            step, size, seconds = warmed
            warmed = {"steps": step, "seconds": seconds, "bytes": size}
        self._warmed = None if warmed is None else Effort.from_state_dict(warmed)

    def _load_bytes(self, state: dict[str, Any]) -> None:
        """Take over what the tokens of earlier sessions stand for."""
        if self._bytes_per_token is None:
            return
        size = state.get("text_bytes")
        if size is None and "bytes" in self._limits:
            raise UserError(
                "train.bytes: the version that saved the checkpoint did not count the bytes of "
                "its tokens; drop it, or start a new run"
            )
        self._text_bytes = {}
        self.count_bytes(state["step"], self.bytes_at(state["step"]) if size is None else size)

    def _effort(self, step: int, seconds: float) -> Effort:
        """Return what the first ``step`` steps took, and of the kinds with a rate what limits."""
        tokens = None if self._bytes_per_token is None else self.tokens_at(step)
        effort = self._counted(Effort(step, seconds, self.bytes_at(step), tokens))
        of_bytes = [rate.key for rate in self._train.rates if rate.of == "bytes"]
        measured = {key: self._by_bytes(key, step) for key in of_bytes}  # earlier rates, too
        return replace(effort, measured={**effort.measured, **measured})

    def _counted(self, effort: Effort) -> Effort:
        """Return an effort with what it takes at the rates of this session, where they limit."""
        return effort.rated(self.rates())
