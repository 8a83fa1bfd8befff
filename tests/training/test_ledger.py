"""The books of a run: its budget, and its rate over several sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elman.base.exit_status import RunStatus
from elman.config.compose import compose_config
from elman.evaluation import metrics
from elman.evaluation.result import RunResult
from elman.training.display import Display
from elman.training.ledger import Ledger
from elman.training.recorder import Recorder
from elman.training.stepper import Step
from tests.training.budgets import budget_of


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a one-element list: the time that the clock reads."""
    time = [1000.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: time[0])
    return time


def session(folder: Path, *overrides: str, state: dict | None = None) -> Ledger:
    """Return the books of a session that begins now."""
    config = compose_config(["log.tensorboard=false", *overrides])
    ledger = Ledger(config, Display(), torch.device("cpu"), budget_of(config))
    if state is not None:
        ledger.load_state_dict(state)
    ledger.begin(Recorder(folder, config), 0, 0)
    return ledger


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
    tmp_path: Path, now: list[float], budget: list[str], step: int, seconds: float, share: float
) -> None:
    ledger = session(tmp_path, *budget)
    now[0] += seconds
    assert ledger.share(step) == pytest.approx(share)


def book(ledger: Ledger, now: list[float], steps: int, seconds: float, tokens: int) -> None:
    """Book equal steps of a session that begins at no bytes."""
    for step in range(1, steps + 1):
        now[0] += seconds
        ledger.book(Step(step, torch.tensor(2.0), torch.tensor(1.0), 0.1), step * tokens)


def rate(ledger: Ledger) -> float | None:
    """Return the rate of a run after 60 steps."""
    result = RunResult(status=RunStatus.OK)
    ledger.fill(result, 1, 60, 6000, 0.0)
    return result.tok_s


def test_the_rate_of_a_resumed_run_is_over_all_its_sessions(
    tmp_path: Path, now: list[float]
) -> None:
    first = session(tmp_path, "train.steps=100")
    book(first, now, 30, 1.0, 100)
    state = first.state_dict()
    now[0] += 1000
    second = session(tmp_path, "train.steps=100", state=state)
    book(second, now, 30, 0.5, 100)
    # Twenty steps of each count: 2,000 bytes in 20 seconds, and 2,000 in 10.
    assert rate(second) == pytest.approx(4000 / 30)
    # So do those of a session that ended before its first step.
    third = session(tmp_path, "train.steps=100", state=second.state_dict())
    assert rate(third) == pytest.approx(4000 / 30)
