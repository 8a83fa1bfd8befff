"""Budgets of bytes and of floating-point operations: when runs end, and what they say of it."""

from __future__ import annotations

import pytest

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.training import flops
from tests.training.budgets import budget_of

STEP = 4 * 16
"""Bytes of a step of the tiny run."""


def rates(run) -> list[float]:
    """Return the learning rate of every step."""
    return [record["lr"] for record in run.records("step")]


def test_bytes_end_a_run_and_its_learning_rate_falls_to_the_end(train) -> None:
    budget = ["train.steps=null", f"train.bytes={6 * STEP}"]
    run, steps = train(*budget), train("train.steps=6", folder="steps")
    assert (run.status, run.result["steps"]) == (ExitStatus.OK, 6)
    assert run.result["budget"] == {"bytes": {"limit": 6 * STEP, "spent": 6 * STEP}}
    assert rates(run) == rates(steps)
    assert run.records("step") == steps.records("step")


def test_a_step_is_not_cut_short(train) -> None:
    run = train("train.steps=null", f"train.bytes={2 * STEP + 1}")
    assert (run.result["steps"], run.result["tokens"]) == (3, 3 * STEP)


def test_operations_end_a_run_and_stand_in_its_result(train) -> None:
    run = train("train.steps=null", "train.flops=2.5e8")
    result = run.result
    each = result["flops_per_byte"]
    # Forward and twice back; a weight is 2, and norms and biases are little of the weights.
    assert each == pytest.approx(3 * 2 * result["params"], rel=0.05)
    assert result["flops"] == each * result["tokens"]
    assert result["flops"] >= 2.5e8 > each * (result["tokens"] - STEP)
    assert result["budget"] == {"flops": {"limit": 2.5e8, "spent": result["flops"]}}
    assert run.records("session")[0]["flops_per_byte"] == each


def test_the_first_budget_that_is_spent_ends_a_run(train) -> None:
    run = train("train.steps=50", f"train.bytes={2 * STEP}", "train.flops=1e15")
    assert (run.status, run.result["steps"]) == (ExitStatus.OK, 2)
    assert [*run.result["budget"]] == ["steps", "bytes", "flops"]


def test_a_resumed_run_adds_to_what_was_spent_also_with_another_batch(train) -> None:
    run = train("train.steps=null", f"train.bytes={4 * STEP}")
    with pytest.raises(UserError, match=r"its budget is used up .* set a larger train\.bytes"):
        train(f"train.resume={run.folder}", "train.steps=null", f"train.bytes={4 * STEP}")
    more = train(
        f"train.resume={run.folder}",
        "train.steps=null",
        "train.batch_size=2",
        f"train.bytes={5 * STEP}",
    )
    assert (more.result["steps"], more.result["tokens"]) == (6, 5 * STEP)
    assert more.result["flops"] == more.result["tokens"] * more.result["flops_per_byte"]


def test_operations_of_a_task(train) -> None:
    run = train(
        "data=parity",
        "data.lengths=[16]",
        "data.val_rows=4",
        "data.test_rows=4",
        "train.steps=null",
        "train.flops=1e7",
        "train.val_every=null",
    )
    assert run.result["status"] == "ok"
    assert run.result["budget"]["flops"]["spent"] >= 1e7


def test_large_counts_may_be_typed_short() -> None:
    config = compose_config(["train.bytes=1e9", "train.flops=1e18"])
    assert (config.train.bytes, config.train.flops) == (10**9, 1e18)
    assert config.train.budget_minutes is None
    for typed, why in (
        ("train.bytes=1.5", "expected a whole number"),
        ("train.bytes=0", "must be at least 1"),
        ("train.flops=0", "must be greater than 0"),
    ):
        with pytest.raises(UserError, match=rf"{typed}: {why}"):
            compose_config([typed])


def test_a_cell_without_a_count_refuses_the_budget_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flops, "_counted", {})  # what was counted before
    monkeypatch.setattr(flops, "_COUNTED", ())  # as if its operators were somebody else's
    with pytest.raises(UserError, match=r"train\.flops=1e\+12: cell e88: its plain form runs aten"):
        budget_of(compose_config(["train.flops=1e12"]))
    budget = budget_of(compose_config(["train.bytes=1e6"]))
    assert (budget.flops_per_byte, budget.flops_at(3)) == (None, None)
    assert budget.share(0, 1e9) == 0.0


def test_a_budget_leaves_so_many_steps() -> None:
    config = compose_config(["train.bytes=1e6", "train.batch_size=10", "train.chunk_size=100"])
    budget = budget_of(config)
    assert (budget.steps_left(0), budget.steps_left(400), budget.steps_left(2000)) == (1000, 600, 0)
    assert budget_of(compose_config(["train.minutes=3"])).steps_left(5) == float("inf")
