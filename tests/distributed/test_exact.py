"""Losses and weights have the same bits on any number of ranks, also after a resumption."""

from __future__ import annotations

from typing import Any

import pytest
import torch

EXACT = ("parallel.exact=true", "train.grad_accum=2")


def same(left: Any, right: Any) -> None:
    """Assert that two runs took the same steps to the same weights, bit for bit."""
    steps = left.records("step")
    assert steps == right.records("step")[-len(steps) :]
    mine, others = left.weights(), right.weights()
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)
    assert left.result["val_bpb"] == right.result["val_bpb"]


@pytest.mark.required
def test_one_two_and_four_ranks_give_the_same_bits(ranks) -> None:
    one = ranks(1, *EXACT, folder="one")
    two, four = ranks(2, *EXACT, folder="two"), ranks(4, *EXACT, folder="four")
    same(one, two)
    same(one, four)
    assert len(one.records("step")) == 6
    shared = {"hosts": 1, "shard": "none", "exact": True, "virtual_shards": 8, "average_every": 0}
    assert one.result["parallel"] == {"ranks": 1, **shared}
    assert four.result["parallel"] == {"ranks": 4, **shared}
    assert four.result["tokens"] == one.result["tokens"] == 6 * 2 * 8 * 16


@pytest.mark.required
def test_a_run_goes_on_with_the_same_bits_at_another_number_of_ranks(ranks) -> None:
    carried = ("parallel.exact=true", "train.tbptt=true", "model.dropout=0.1")
    whole = ranks(1, *carried, "train.steps=6", folder="whole")
    # A schedule over steps would depend on where the first part was to end.
    parts = ranks(2, *carried, "train.steps=2", "optim.schedule=constant", folder="parts")
    for count, steps in ((4, 4), (1, 6)):
        parts = ranks(count, f"train.resume={parts.folder}", f"train.steps={steps}", folder="parts")
    constant = ranks(1, *carried, "optim.schedule=constant", folder="constant")
    assert [r["loss"] for r in parts.records("step")] == [
        r["loss"] for r in constant.records("step")
    ]
    assert all(
        torch.equal(weight, parts.weights()[name]) for name, weight in constant.weights().items()
    )
    assert whole.records("step")[0]["loss"] == constant.records("step")[0]["loss"]


def test_without_exactness_ranks_share_the_same_rows(ranks) -> None:
    one, two = ranks(1, folder="one"), ranks(2, folder="two")
    losses = [[r["loss"] for r in run.records("step")] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-2)
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-6)
    assert (one.result["parallel"]["exact"], two.result["parallel"]["exact"]) == (False, False)


def test_as_many_ranks_as_virtual_shards_are_exact_by_themselves(ranks) -> None:
    two = ranks(2, "parallel.virtual_shards=2", folder="two")
    one = ranks(1, "parallel.virtual_shards=2", "parallel.exact=true", folder="one")
    same(one, two)
    assert two.result["parallel"]["exact"] is True


def test_a_sharded_run_follows_a_whole_one_and_its_checkpoint_is_whole(ranks) -> None:
    recipe = ("optim=adamw", "optim.schedule=constant")
    one = ranks(1, *recipe, folder="one")
    cut = ranks(2, *recipe, "parallel.shard=full", "train.steps=4", folder="cut")
    assert {name: w.shape for name, w in cut.weights().items()} == {
        name: w.shape for name, w in one.weights().items()
    }
    alone = ("parallel.shard=none", "train.steps=6")
    cut = ranks(1, f"train.resume={cut.folder}", *alone, folder="cut")
    losses = [[r["loss"] for r in run.records("step")] for run in (one, cut)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    again = ranks(2, f"train.resume={cut.folder}", "parallel.shard=full", "train.steps=8")
    assert again.said.count("resuming after step 6") == 1


def test_ranks_that_average_their_weights_end_with_one_set(ranks) -> None:
    run = ranks(2, "parallel.average_every=2", "optim=adamw", "train.steps=30", "optim.lr=0.01")
    losses = [r["loss"] for r in run.records("step")]
    assert losses[-1] < losses[0] - 0.5
    assert run.result["parallel"]["average_every"] == 2
