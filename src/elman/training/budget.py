"""What a run has used of its budgets, also where a resumed run changes its batch."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from elman.base.errors import UserError
from elman.sections.budget import KINDS, Effort, used, used_share
from elman.sections.model import ModelConfig
from elman.sections.training import TrainConfig
from elman.training.flops import flops_per_byte


class Budget:
    """The limits of a run, and bytes and operations of its applied steps.

    Args:
        train: Group ``train``, with the limits and the sizes of a step.
        model: Group ``model``, whose operations are counted.
        warmup_steps: ``optim.warmup_steps``.

    Raises:
        UserError: ``train.flops`` is set, and the operations of the cell cannot be counted.
    """

    def __init__(self, train: TrainConfig, model: ModelConfig, warmup_steps: int) -> None:
        self._train, self._model, self._warmup_steps = train, model, warmup_steps
        self._limits = train.limits
        self._bytes_per_step = train.batch_size * train.chunk_size * train.grad_accum
        # Steps, bytes and operations of earlier sessions; the last are None if nobody counted them.
        self._before: tuple[int, int, float | None] = (0, 0, 0.0)
        self._warmed: Effort | None = None
        if train.flops is not None and self.flops_per_byte is None:
            raise UserError(f"train.flops={train.flops:g}: {self._count[1]}")

    @property
    def flops_per_byte(self) -> float | None:
        """The defined number; None if the cell's operations cannot be counted."""
        return self._count[0]

    @cached_property
    def _count(self) -> tuple[float | None, str]:
        """The operations of a byte, or why they cannot be counted."""
        try:
            return flops_per_byte(self._model, self._train), ""
        except UserError as error:
            return None, str(error)

    def bytes_at(self, step: int) -> int:
        """Return the bytes predicted in the first ``step`` steps, over all ranks."""
        steps, before, _ = self._before
        return before + (step - steps) * self._bytes_per_step

    def flops_at(self, step: int) -> float | None:
        """Return the operations of these steps; None if they cannot be counted."""
        if (each := self.flops_per_byte) is None:
            return None
        steps, size, before = self._before
        now = (step - steps) * self._bytes_per_step * each
        return now + (size * each if before is None else before)

    def share(self, step: int, seconds: float) -> float:
        """Return the used share of the budget that is used most, 1 once it is used up."""
        return used_share(self._limits, self._effort(step, seconds))

    def steps_left(self, step: int) -> float:
        """Return how many steps the budgets but ``train.minutes`` leave, or infinity."""
        so_far = used(self._limits, self._effort(step, 0.0))
        a_step = used(self._limits, self._counted(Effort(1, 0.0, self._bytes_per_step)))
        left = [
            (self._limits[key] - so_far[key]) / each for key, each in a_step.items() if each > 0
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
        so_far = {"step": step, "bytes": self.bytes_at(step), "flops": self.flops_at(step)}
        return so_far | {"warmed": None if self._warmed is None else asdict(self._warmed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what earlier sessions used."""
        self._before = (state["step"], state["bytes"], state["flops"])
        warmed = state.get("warmed")  # missing in the oldest checkpoints
        if isinstance(warmed, list):  # in older ones: step, bytes, seconds
            step, size, seconds = warmed
            warmed = {"steps": step, "seconds": seconds, "bytes": size}
        self._warmed = None if warmed is None else Effort(**warmed)

    def _effort(self, step: int, seconds: float) -> Effort:
        """Return what the first ``step`` steps took; operations only if they are limited."""
        flops = self.flops_at(step) if "flops" in self._limits else None
        return Effort(step, seconds, self.bytes_at(step), flops)

    def _counted(self, effort: Effort) -> Effort:
        """Return an effort with the operations of its bytes, if they are limited."""
        if "flops" not in self._limits:
            return effort
        return replace(effort, flops=effort.bytes * (self.flops_per_byte or 0.0))
