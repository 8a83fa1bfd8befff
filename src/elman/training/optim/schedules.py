"""Learning rates: pure functions of the step and of the share of the budget already used."""

from __future__ import annotations

import math

from elman.sections.optim import LegacyConfig, OptimConfig, ScheduledConfig, ScheduleFreeConfig

LEGACY_FINAL_LR = 1e-6


def learning_rate(config: OptimConfig, step: int, progress: float, warmup_progress: float) -> float:
    """Return the rate of optimizer step ``step`` (from 0) with any optimizer.

    Args:
        config: Group ``optim``.
        step: Optimizer steps done.
        progress: Share of the budget used, 0 to 1: of the budget that is used most.
        warmup_progress: That share at the end of the warm-up.
    """
    if isinstance(config, ScheduleFreeConfig):
        return schedule_free_lr(config, step)
    if isinstance(config, LegacyConfig):
        return legacy_lr(config, step)
    return scheduled_lr(config, step, progress, warmup_progress)


def scheduled_lr(
    config: ScheduledConfig, step: int, progress: float, warmup_progress: float
) -> float:
    """Return the rate of optimizer step ``step`` (from 0).

    Linear warm-up over ``warmup_steps``, or over ``warmup_share`` of the budget; then the cosine
    from there to the end of the real budget, or constant.

    Args:
        config: The optimizer's settings.
        step: Optimizer steps done.
        progress: Share of the budget used, 0 to 1: of the budget that is used most.
        warmup_progress: That share at the end of the warm-up.
    """
    if config.warmup_share is not None:
        warmup_progress = config.warmup_share
        if progress < warmup_progress:
            # The share at the end of this step; nobody knows that of the first one.
            done = progress * (step + 1) / step if step else 0.0
            return config.lr * min(1.0, done / warmup_progress)
    elif step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    rest = max(1.0 - warmup_progress, 1e-9)
    phase = min(max((progress - warmup_progress) / rest, 0.0), 1.0)
    floor = config.final_lr_ratio
    return config.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * phase)))


def legacy_lr(config: LegacyConfig, step: int) -> float:
    """Return the rate of the January 2026 runs: it oscillates with period ``2 * warmup_steps``.

    The phase of its cosine uses the warm-up length, not the total length (training specification
    2.2). It exists only because published figures depend on it.
    """
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    cosine = 0.5 * (1 + math.cos(math.pi * step / config.warmup_steps))
    return LEGACY_FINAL_LR + (config.lr - LEGACY_FINAL_LR) * cosine


def schedule_free_lr(config: ScheduleFreeConfig, step: int) -> float:
    """Return the rate that the library applies in step ``step`` (its own linear warm-up)."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    return config.lr
