"""What a run has spent of its budgets: steps, minutes, bytes and floating-point operations."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.training.flops import flops_per_byte


class Spent:
    """Bytes and operations of the applied steps, also where a resumed run changes its batch.

    Args:
        config: The run's configuration.

    Raises:
        UserError: ``train.flops`` is set, and the operations of the cell cannot be counted.
    """

    def __init__(self, config: RunConfig) -> None:
        train = config.train
        self._config = config
        self._bytes_per_step = train.batch_size * train.chunk_size * train.grad_accum
        # Steps, bytes and operations of earlier sessions; the last are None if nobody counted them.
        self._before: tuple[int, int, float | None] = (0, 0, 0.0)
        self._warmed: tuple[int, int, float] | None = None
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
            return flops_per_byte(self._config), ""
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
        """Return the used share of the budget that is used most, 1 once it is spent."""
        return min(max(used / limit for used, limit in self._limited(step, seconds).values()), 1.0)

    def steps_left(self, step: int) -> float:
        """Return how many steps the budgets but ``train.minutes`` leave, or infinity."""
        each = {"steps": 1.0, "bytes": self._bytes_per_step}
        if self._config.train.flops is not None:
            each["flops"] = self._bytes_per_step * (self.flops_per_byte or math.inf)
        limited = self._limited(step, 0.0)
        left = [
            (limited[name][1] - limited[name][0]) / each[name] for name in each.keys() & limited
        ]
        return max(0.0, min(left, default=math.inf))

    def told(self, step: int, seconds: float) -> dict[str, dict[str, float]]:
        """Return of each budget that was set its limit and what was spent, by key."""
        limited = self._limited(step, seconds)
        return {name: {"limit": limit, "spent": used} for name, (used, limit) in limited.items()}

    def _limited(self, step: int, seconds: float) -> dict[str, tuple[float, float]]:
        train = self._config.train
        known = {
            "minutes": (seconds / 60, train.budget_minutes),
            "steps": (step, train.steps),
            "bytes": (self.bytes_at(step), train.bytes),
        }
        if train.flops is not None:
            known["flops"] = (self.flops_at(step) or 0.0, train.flops)
        return {name: (used, limit) for name, (used, limit) in known.items() if limit is not None}

    def pass_warmup(self, step: int, seconds: float) -> None:
        """Note what was spent when the warm-up ended; later calls change nothing."""
        if self._warmed is None and step >= self._config.optim.warmup_steps:
            self._warmed = (step, self.bytes_at(step), seconds)

    def warmup_share(self) -> float | None:
        """Return the share of today's budgets that was used when the warm-up ended, if known."""
        if self._warmed is None:
            return None
        step, size, seconds = self._warmed
        train = self._config.train
        used = {"minutes": seconds / 60, "steps": step, "bytes": size}
        if train.flops is not None:
            used["flops"] = size * (self.flops_per_byte or 0.0)
        limits = {"minutes": train.budget_minutes, "steps": train.steps}
        limits |= {"bytes": train.bytes, "flops": train.flops}
        shares = [used[name] / limit for name, limit in limits.items() if limit is not None]
        return min(max(shares), 1.0)

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return what was spent up to a step, for a resumed run."""
        spent = {"step": step, "bytes": self.bytes_at(step), "flops": self.flops_at(step)}
        return spent | {"warmed": list(self._warmed) if self._warmed is not None else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what earlier sessions spent."""
        self._before = (state["step"], state["bytes"], state["flops"])
        warmed = state.get("warmed")  # missing in older checkpoints
        self._warmed = tuple(warmed) if warmed is not None else None
