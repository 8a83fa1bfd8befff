"""Whoever reads budgets knows each kind that ``elman.sections.budget`` declares."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from elman.config.compose import compose_config
from elman.config.newer_settings import NEWER
from elman.config.suites import Suite
from elman.evaluation.result import RunResult
from elman.report.comparison.conditions import conditions
from elman.report.comparison.deciding import LOSS, VAL_BPB
from elman.report.comparison.page import page_text
from elman.report.comparison.progress import progress_of
from elman.report.comparison.report_data import make_report
from elman.report.comparison.sources import load_sources
from elman.report.tables.suites import bound
from elman.runs.folder import RunLock
from elman.sections.budget import KINDS, BudgetKind, Effort, used
from tests.training.budgets import budget_of

from .fake_sweep import BATCH, CHUNK, FakeSweep

RATE = 3e6
STEPS = 40
SIZES = {"steps": STEPS, "seconds": 120.0, "bytes": STEPS * BATCH * CHUNK}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.key)
def kind(request: pytest.FixtureRequest) -> BudgetKind:
    """Return each kind."""
    return request.param


def test_a_kind_is_a_setting_that_is_off(kind: BudgetKind) -> None:
    assert getattr(compose_config([]).train, kind.key) is None
    config = compose_config([f"train.{kind.key}=1000"])
    assert config.train.limits == {kind.key: 1000}


def test_a_run_is_measured_in_every_kind(kind: BudgetKind) -> None:
    typed = "model=e1", "train.batch_size=4", "train.chunk_size=16"
    budget = budget_of(compose_config([*typed, f"train.{kind.key}=1e15"]))
    assert 0 < budget.share(1000, 100.0) < budget.share(2000, 200.0) < 1
    assert budget.report(0, 0.0) == {kind.key: {"limit": 1e15, "spent": 0.0}}


def test_a_run_that_goes_on_has_used_what_it_had_used(kind: BudgetKind) -> None:
    config = compose_config(["model=e1", f"train.{kind.key}=1e15"])
    before, after = budget_of(config), budget_of(config)
    before.pass_warmup(10**6, 50.0)
    after.load_state_dict(json.loads(json.dumps(before.state_dict(10**6))))
    assert after.report(10**6, 50.0) == before.report(10**6, 50.0)
    assert after.warmup_share() == before.warmup_share()


def test_a_rate_is_computed_where_its_kind_says(kind: BudgetKind) -> None:
    if kind.rate is not None:
        config = compose_config(["model=e1"])
        compute = getattr(import_module(kind.rate.module), kind.rate.name)
        assert compute(config.model, config.train) > 0
        effort = Effort(2, 3.0, 5).rated({kind.rate.name: 7.0})
        assert used({kind.key: 1.0}, effort) == {kind.key: 7.0 * getattr(effort, kind.rate.of)}


def test_older_runs_lack_the_kinds_that_came_later(kind: BudgetKind) -> None:
    newer = [one for one in NEWER if (one.section, one.key) == ("train", kind.key)]
    assert [(one.before, one.since) for one in newer] == (
        [(None, kind.since)] if kind.since is not None else []
    )


def test_a_suite_says_how_long_its_runs_are(kind: BudgetKind) -> None:
    def suite(runs: list[tuple[str, ...]], **budgets: float) -> Suite:
        return Suite(
            name="one",
            title="",
            description="",
            citation="",
            runs=tuple(runs),
            budgets=budgets,
            shared=(),
            claims_equal_size=False,
        )

    assert bound(suite([("model=e1",)], **{kind.key: 7})) == f"7 {kind.unit}"
    own = [("model=e1", f"train.{kind.key}=3"), ("model=e42",)]
    assert bound(suite(own, **{kind.key: 7})) == f"3 to 7 {kind.unit}"
    assert bound(suite(own)) == "1 min"


def spent(kind: BudgetKind) -> float:
    """Return how much of a kind the runs below spend."""
    if kind.rate is not None:
        return RATE * SIZES[kind.rate.of]
    return SIZES[kind.of] / kind.size


def sweep_of(kind: BudgetKind, folder: Path) -> FakeSweep:
    """Return a sweep of two models that had equally much of a kind."""
    sweep = FakeSweep(folder)
    amount = spent(kind)
    result = {
        "steps": STEPS,
        "tokens": SIZES["bytes"],
        "seconds": {"train": SIZES["seconds"]},
        "budget": {kind.key: {"limit": amount, "spent": amount}},
    }
    if kind.rate is not None:
        known = {kind.key: amount, kind.rate.name: RATE}
        result |= {key: value for key, value in known.items() if key in RunResult.model_fields}
    budgets = ["train.steps=null", f"train.{kind.key}={amount:.12g}"]
    for model, start in (("e1", 5.0), ("e42", 5.1)):
        losses = [start - 0.05 * n for n in range(STEPS)]
        run = sweep.job(f"model={model}", *budgets, losses=losses, result=result)
        record_rate(kind, run)
    return sweep


def record_rate(kind: BudgetKind, run: Path) -> None:
    """Let a run have recorded the rate of a kind, if it has one."""
    if kind.rate is not None:
        metrics = run / "metrics.jsonl"
        first, *others = metrics.read_text().splitlines(keepends=True)
        first = json.dumps(json.loads(first) | {kind.rate.name: RATE}) + "\n"
        metrics.write_text("".join([first, *others]))


def test_a_report_compares_at_equal_parts_of_every_kind(kind: BudgetKind, tmp_path: Path) -> None:
    report = make_report([sweep_of(kind, tmp_path / "sweep").folder])
    (group,) = report.wins.groups
    assert group.axis == kind.axis
    for number in (LOSS, VAL_BPB):
        line = group.challengers[0].line(number, kind.axis)
        assert (line.effort, line.earlier) == (pytest.approx(spent(kind)), False)
    assert f"at equal {kind.axis}" in page_text(report)
    run = report.rows[0].runs[0]
    assert kind.unit in conditions(run)["duration"]


def test_a_running_sweep_knows_how_far_it_is(kind: BudgetKind, tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep", ended=None)
    budget = f"train.{kind.key}={2 * spent(kind):.12g}"
    losses = [2.0] * STEPS
    run = sweep.job(
        "model=e1", "train.steps=null", budget, status="running", losses=losses, no_result=True
    )
    record_rate(kind, run)
    with RunLock(sweep.folder), RunLock(run):
        (source,) = load_sources([sweep.folder])
    (job,) = progress_of(source).jobs
    assert job.share == pytest.approx(0.5)
