"""Losses and weights have the same bits on any number of ranks, also after a resumption."""

from __future__ import annotations

from typing import Any

import pytest
import torch

EXACT = (
    "parallel.exact=true",
    "train.grad_accum=2",
    "train.tbptt=true",
    "model.dropout=0.1",
    "optim.schedule=constant",  # another one would depend on where a part was to end
)


def losses(run: Any) -> list[float]:
    return [record["loss"] for record in run.records("step")]


def same(left: Any, right: Any) -> None:
    """Assert that two runs took the same steps to the same weights, bit for bit."""
    assert losses(left) == losses(right)
    mine, others = left.weights(), right.weights()
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)
    assert left.result["val_bpb"] == right.result["val_bpb"]


@pytest.mark.required
def test_one_two_and_four_ranks_give_the_same_bits_also_when_they_change(ranks) -> None:
    one = ranks(1, *EXACT, folder="one")
    four = ranks(4, *EXACT, folder="four")
    same(one, four)
    parts = ranks(2, *EXACT, "train.steps=2", folder="parts")
    assert losses(parts) == losses(one)[:2]
    for count, steps in ((4, 4), (1, 6)):
        parts = ranks(count, f"train.resume={parts.folder}", f"train.steps={steps}", folder="parts")
    same(one, parts)
    assert len(losses(one)) == 6
    shared = {"hosts": 1, "shard": "none", "exact": True, "virtual_shards": 8, "average_every": 0}
    assert one.result["parallel"] == {"ranks": 1, **shared}
    assert four.result["parallel"] == {"ranks": 4, **shared}
    assert four.result["tokens"] == one.result["tokens"] == 6 * 2 * 8 * 16


def test_a_loss_in_chunks_has_the_same_bits_on_one_two_and_four_ranks(ranks) -> None:
    short, few = ("train.steps=2", "train.val_every=null"), {"most_logits": 256 * 3}
    one, two, four = (ranks(n, *EXACT, *short, folder=f"{n}", fault=few) for n in (1, 2, 4))
    assert [run.result["loss_chunk"] for run in (one, two, four)] == [3, 3, 3]
    same(one, two)
    same(one, four)


def test_ranks_count_the_bytes_of_the_tokens_of_all(ranks, tmp_path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "text.txt").write_text("def add(left, right):\n    return left + right\n" * 99)
    tokens = (f"data.path={tmp_path / 'text.txt'}", "data.tokenizer=bpe:280")
    budget = ("train.steps=null", "train.bytes=600", "train.val_every=null")
    one, two = (ranks(n, *EXACT[:2], *tokens, *budget, folder=f"{n}") for n in (1, 2))
    same(one, two)
    assert one.result["budget"] == two.result["budget"]
    assert one.result["bpb"] == two.result["bpb"]


def test_tokens_have_the_same_bits_when_the_number_of_ranks_changes(ranks, tmp_path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "text.txt").write_text("def add(left, right):\n    return left + right\n" * 99)
    tokens = (
        *EXACT,
        "train.tbptt=false",
        f"data.path={tmp_path / 'text.txt'}",
        "data.tokenizer=bpe:280",
    )
    one = ranks(1, *tokens, "train.steps=3", folder="one")
    parts = ranks(2, *tokens, "train.steps=1", folder="parts")
    for count, steps in ((1, 2), (2, 3)):
        parts = ranks(count, f"train.resume={parts.folder}", f"train.steps={steps}", folder="parts")
    same(one, parts)


def test_a_mixed_stack_has_the_same_bits_on_one_and_two_ranks_also_when_they_change(ranks) -> None:
    stack = ("model.layers=[e88,{cell:llama,context:8},gru]", "model.depth=3")
    one = ranks(1, *EXACT, *stack, "train.val_every=null", "train.steps=2", folder="one")
    parts = ranks(2, *EXACT, *stack, "train.val_every=null", "train.steps=1", folder="parts")
    same(one, ranks(1, f"train.resume={parts.folder}", "train.steps=2", folder="parts"))


@pytest.mark.slow
def test_without_exactness_ranks_share_the_same_rows(ranks) -> None:
    one, two = ranks(1, folder="one"), ranks(2, folder="two")
    assert losses(one) == pytest.approx(losses(two), abs=1e-2)
    assert losses(one)[0] == pytest.approx(losses(two)[0], abs=1e-6)
    assert (one.result["parallel"]["exact"], two.result["parallel"]["exact"]) == (False, False)


@pytest.mark.slow
def test_as_many_ranks_as_virtual_shards_are_exact_by_themselves(ranks) -> None:
    two = ranks(2, "parallel.virtual_shards=2", folder="two")
    one = ranks(1, "parallel.virtual_shards=2", "parallel.exact=true", folder="one")
    same(one, two)
    assert two.result["parallel"]["exact"] is True


@pytest.mark.slow
def test_a_sharded_run_follows_a_whole_one_and_its_checkpoint_is_whole(ranks) -> None:
    recipe = ("optim=adamw", "optim.schedule=constant")
    one = ranks(1, *recipe, folder="one")
    cut = ranks(2, *recipe, "parallel.shard=full", "train.steps=4", folder="cut")
    assert {name: w.shape for name, w in cut.weights().items()} == {
        name: w.shape for name, w in one.weights().items()
    }
    alone = ("parallel.shard=none", "train.steps=6")
    cut = ranks(1, f"train.resume={cut.folder}", *alone, folder="cut")
    assert losses(one) == pytest.approx(losses(cut), abs=1e-4)
    cut = ranks(
        2, f"train.resume={cut.folder}", "parallel.shard=full", "train.steps=8", folder="cut"
    )
    assert "resuming after step 6" in cut.said
    assert len(losses(cut)) == 8


@pytest.mark.slow
def test_ranks_that_average_their_weights_end_with_one_set(ranks) -> None:
    run = ranks(2, "parallel.average_every=2", "optim=adamw", "train.steps=30", "optim.lr=0.01")
    assert losses(run)[-1] < losses(run)[0] - 0.5
    assert run.result["parallel"]["average_every"] == 2
