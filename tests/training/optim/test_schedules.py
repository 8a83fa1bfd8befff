"""Learning rates against figures worked out by hand and read off the published logs."""

from __future__ import annotations

import pytest

from elman.sections.optim import AdamWConfig, LegacyConfig
from elman.training.optim.schedules import legacy_lr, scheduled_lr


def adamw(schedule: str, warmup_steps: int = 10) -> AdamWConfig:
    return AdamWConfig.model_validate(
        {
            "name": "adamw",
            "lr": 1.0,
            "warmup_steps": warmup_steps,
            "schedule": schedule,
            "final_lr_ratio": 0.1,
            "weight_decay": 0.0,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
        }
    )


def test_warmup_is_linear_and_never_zero() -> None:
    rates = [scheduled_lr(adamw("cosine"), step, step / 100, 0.0) for step in range(10)]
    assert rates == pytest.approx([0.1 * (step + 1) for step in range(10)])


def test_a_share_of_the_budget_is_the_same_warm_up_for_few_and_many_steps() -> None:
    """Whatever the steps, the rate at a moment is the same but for the step that it lies in."""
    config = adamw("cosine", 100).model_copy(update={"warmup_share": 0.2})

    def rates(steps: int) -> list[float]:
        return [scheduled_lr(config, step, step / steps, 0.0) for step in range(steps)]

    few, many = rates(26), rates(2600)
    assert few[1:5] == pytest.approx([(step + 1) / 26 / 0.2 for step in range(1, 5)])
    assert max(few) == pytest.approx(1.0)
    assert few[6:] == pytest.approx(many[600::100])  # after it both have the rate of their place
    assert few[-1] < 0.12


def test_cosine_falls_from_the_end_of_warmup_to_the_end_of_the_budget() -> None:
    config = adamw("cosine")
    assert scheduled_lr(config, 10, 0.2, 0.2) == pytest.approx(1.0)
    assert scheduled_lr(config, 50, 0.6, 0.2) == pytest.approx(0.55)
    assert scheduled_lr(config, 99, 1.0, 0.2) == pytest.approx(0.1)


def test_cosine_never_rises_again_after_the_budget() -> None:
    assert scheduled_lr(adamw("cosine"), 200, 1.7, 0.2) == pytest.approx(0.1)


def test_constant_stays() -> None:
    assert scheduled_lr(adamw("constant"), 99, 0.9, 0.1) == 1.0


# Read off a log of January 2026 (W = 100, lr 3e-4); it numbers steps from 1.
@pytest.mark.parametrize(
    ("logged_step", "lr"), [(100, 2.97e-4), (110, 6.9e-6), (200, 3.0e-4), (300, 1.07e-6)]
)
def test_legacy_rate_is_the_one_in_the_logs(logged_step: int, lr: float) -> None:
    config = LegacyConfig.model_validate(
        {
            "name": "legacy",
            "lr": 3e-4,
            "warmup_steps": 100,
            "weight_decay": 0.01,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
        }
    )
    assert legacy_lr(config, logged_step - 1) == pytest.approx(lr, rel=0.01)
