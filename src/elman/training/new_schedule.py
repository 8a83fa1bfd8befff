"""What a resume with other budgets or rates does to the learning rate, and what is said of it.

The rule: the rate of a step is that of a run which had the new settings from its first step.
"""

from __future__ import annotations

from typing import Any

from elman.config.run_config import RunConfig
from elman.sections.budget import BUDGETS
from elman.training.budget import Budget
from elman.training.listeners.totals import Totals
from elman.training.optim.schedules import learning_rate
from elman.training.training_state import TrainingState

# A smaller change of the next rate is not worth a line.
_NOTABLE = 1e-3
_SIZES = ("batch_size", "chunk_size", "grad_accum")


def change_schedule(
    before: RunConfig, now: RunConfig, state: TrainingState, totals: Totals
) -> str | None:
    """Let the schedule span the new budget; return a line if the next rate is another one.

    Args:
        before: The configuration under which the loaded state was saved.
        now: That of this session.
        state: As loaded.
        totals: As loaded; their clock is that of the whole run.
    """
    step, seconds = state.step, totals.clock.seconds()
    changed = _changed(before, now)
    if step == 0 or not changed:
        return None
    optimizer = state.optimizer
    each = state.batches.bytes_per_token
    earlier = Budget(before.train, before.model, before.optim.warmup_steps, each)
    earlier.load_state_dict(state.budget.state_dict(step))
    old = learning_rate(
        before.optim, step, earlier.share(step, seconds), optimizer.warmup_progress or 0.0
    )
    if step < now.optim.warmup_steps:
        optimizer.warmup_progress = None
    elif (share := state.budget.warmup_share()) is not None:
        optimizer.warmup_progress = share
    share_now = totals.share()
    new = learning_rate(now.optim, step, share_now, optimizer.warmup_progress or 0.0)
    if share_now >= 1.0 or abs(new - old) <= _NOTABLE * max(new, old):
        return None
    line = f"learning rate: {old:.2e} where the run stopped, {new:.2e} from here on, as "
    line += f"the schedule now follows {' '.join(changed)}"
    if new > old and "schedule" in type(now.optim).model_fields:
        line += f"; optim.schedule=constant optim.lr={old:.2e} keeps the lower rate"
    return line


def _changed(before: RunConfig, now: RunConfig) -> list[str]:
    """Return the settings that a schedule follows and that are not as before, as typed."""
    pairs: list[tuple[str, Any, Any]] = [
        (f"train.{key}", getattr(before.train, key), getattr(now.train, key))
        for key in (*BUDGETS, *_SIZES)
    ]
    pairs += [
        (f"optim.{key}", getattr(before.optim, key, None), getattr(now.optim, key))
        for key in type(now.optim).model_fields
    ]
    return [f"{key}={'null' if new is None else new}" for key, old, new in pairs if old != new]
