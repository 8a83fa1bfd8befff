"""A resume with another budget: the rates are those of a run that had it from its first step."""

from __future__ import annotations

import pytest

from elman.config.compose import compose_config
from tests.training.budgets import budget_of

ONE_STEP = 4 * 16  # bytes, in the tiny run
LONGER = {
    "steps": (["train.steps=6"], ["train.steps=12"]),
    "bytes": (
        ["train.steps=null", f"train.bytes={6 * ONE_STEP}"],
        ["train.steps=null", f"train.bytes={12 * ONE_STEP}"],
    ),
    "muon": (["optim=muon", "train.steps=6"], ["optim=muon", "train.steps=12"]),
    "another rate": (["train.steps=6"], ["train.steps=12", "optim.lr=1e-4"]),
    "a longer warm-up": (["train.steps=6"], ["train.steps=12", "optim.warmup_steps=9"]),
}


def rates(run, after: int = 0) -> list[float]:
    return [record["lr"] for record in run.records("step") if record["step"] > after]


@pytest.mark.parametrize(("before", "now"), LONGER.values(), ids=LONGER)
def test_a_longer_budget_gives_the_rates_of_a_run_that_always_had_it(
    train, capfd: pytest.CaptureFixture[str], before: list[str], now: list[str]
) -> None:
    whole = train(*now, folder="whole")
    first = train(*before, folder="run")
    capfd.readouterr()
    resumed = train(*now, f"train.resume={first.folder}", folder="run")
    assert rates(resumed)[6:] == pytest.approx(rates(whole, after=6), rel=1e-12)
    (line,) = [
        line for line in "".join(capfd.readouterr()).splitlines() if "learning rate:" in line
    ]
    assert f" {rates(whole, after=6)[0]:.2e} from here on" in line
    typed = next(text for text in now if text.startswith(("train.steps=1", "train.bytes=")))
    assert typed in line


@pytest.mark.parametrize(
    "overrides", [["optim.schedule=constant"], ["optim=schedulefree"]], ids=["constant", "free"]
)
def test_a_rate_that_stays_is_not_talked_about(
    train, capfd: pytest.CaptureFixture[str], overrides: list[str]
) -> None:
    first = train("train.steps=6", *overrides)
    again = train("train.steps=8", *overrides, f"train.resume={first.folder}")
    assert "resuming after step 6" in (said := "".join(capfd.readouterr()))
    assert "learning rate:" not in said
    assert len(set(rates(again, after=2))) == 1


def test_a_constant_rate_keeps_the_low_one_as_the_line_advises(
    train, capfd: pytest.CaptureFixture[str]
) -> None:
    first = train("train.steps=6")
    train("train.steps=8", f"train.resume={first.folder}")
    (line,) = [
        line for line in "".join(capfd.readouterr()).splitlines() if "learning rate:" in line
    ]
    advised = line.split("; ")[1].split(" keeps ")[0].split()
    second = train("train.steps=6", folder="second")
    kept = train("train.steps=8", *advised, f"train.resume={second.folder}", folder="second")
    assert rates(kept, after=6) == [float(advised[1].split("=")[1])] * 2
    assert "learning rate:" not in "".join(capfd.readouterr())


def test_minutes_count_for_the_warm_up_too() -> None:
    config = compose_config(["train.minutes=10", "optim.warmup_steps=5"])
    budget = budget_of(config)
    budget.pass_warmup(4, 50.0)
    assert budget.warmup_share() is None
    budget.pass_warmup(5, 60.0)
    budget.pass_warmup(6, 72.0)
    assert budget.warmup_share() == pytest.approx(0.1)
    longer = budget_of(compose_config(["train.minutes=40", "optim.warmup_steps=5"]))
    longer.load_state_dict(budget.state_dict(6))
    assert longer.warmup_share() == pytest.approx(0.025)
