"""The totals of a run: its budget, and its rate over several sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elman.base.exit_status import RunStatus
from elman.base.signals import Interruption
from elman.config.compose import compose_config
from elman.distributed.team import ALONE
from elman.evaluation import metrics
from elman.evaluation.result import RunResult
from elman.training.display import Display
from elman.training.listeners.totals import Totals
from elman.training.moments import Step
from tests.training.budgets import budget_of


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a one-element list: the time that the clock reads."""
    time = [1000.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: time[0])
    return time


def session(*overrides: str, saved: dict | None = None) -> tuple[Totals, Any]:
    """Return the totals of a session that begins now, and its state, to count steps by hand."""
    config = compose_config(list(overrides))
    state: Any = SimpleNamespace(
        step=0,
        tokens=0,
        budget=budget_of(config),
        device=torch.device("cpu"),
        team=ALONE,
        model=SimpleNamespace(num_params=lambda: 1),
        micro_batches=SimpleNamespace(wait=0.0, bytes_per_token=1.0),
        synchronize=lambda: None,
    )
    totals = Totals(state, None, Interruption(), Display())
    if saved is not None:
        totals.load_state_dict(saved)
    totals.session_begins()
    return totals, state


@pytest.mark.parametrize(
    ("budget", "step", "seconds", "share"),
    [
        (["train.steps=10"], 5, 1e6, 0.5),
        (["train.steps=null", "train.minutes=2"], 10**6, 30.0, 0.25),
        (["train.steps=null", "train.minutes=null"], 10**6, 15.0, 0.25),  # one minute
        (["train.steps=10", "train.minutes=2"], 5, 1.2, 0.5),
        (["train.steps=10", "train.minutes=2"], 1, 60.0, 0.5),
        (["train.steps=10", "train.minutes=2"], 10, 0.0, 1.0),
        (["train.steps=10", "train.minutes=2"], 0, 120.0, 1.0),
        (["train.steps=10", "train.minutes=2"], 40, 1e6, 1.0),
    ],
)
def test_of_minutes_and_steps_whichever_comes_first_ends_a_run(
    now: list[float], budget: list[str], step: int, seconds: float, share: float
) -> None:
    totals, state = session(*budget)
    now[0] += seconds
    state.step = step
    assert totals.share() == pytest.approx(share)


def count(
    totals: Totals, state: Any, now: list[float], steps: int, seconds: float, tokens: int
) -> None:
    """Count equal steps of a session that begins at no bytes."""
    for step in range(1, steps + 1):
        now[0] += seconds
        state.tokens = step * tokens
        totals.step_ends(Step(step, torch.tensor(2.0), torch.tensor(1.0), 0.1))


def rate(totals: Totals) -> float | None:
    """Return the rate of a run."""
    result = RunResult(status=RunStatus.OK)
    totals.fill(result)
    return result.tok_s


def test_the_rate_of_a_resumed_run_is_over_all_its_sessions(now: list[float]) -> None:
    first, state = session("train.steps=100")
    count(first, state, now, 30, 1.0, 100)
    saved = first.state_dict()
    now[0] += 1000
    second, state = session("train.steps=100", saved=saved)
    count(second, state, now, 30, 0.5, 100)
    # Twenty steps of each count: 2,000 bytes in 20 seconds, and 2,000 in 10.
    assert rate(second) == pytest.approx(4000 / 30)
    # So do those of a session that ended before its first step.
    third, _ = session("train.steps=100", saved=second.state_dict())
    assert rate(third) == pytest.approx(4000 / 30)
