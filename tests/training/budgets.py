"""The budget of a configuration."""

from __future__ import annotations

from elman.config.run_config import RunConfig
from elman.training.budget import Budget


def budget_of(config: RunConfig) -> Budget:
    """Return the budget of a run."""
    return Budget(config.train, config.model, config.optim.warmup_steps)
