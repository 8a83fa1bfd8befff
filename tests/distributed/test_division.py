"""Who computes which rows, in which order sums are made, and what ranks cannot share."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.base.errors import UserError
from elman.base.rank_place import RankPlace, rank_place
from elman.distributed.division import divide
from elman.distributed.team import ordered
from elman.distributed.tree import RunningTree, summed
from elman.sections.parallel import ParallelConfig
from tests.properties import examples

EXACT = ParallelConfig(exact=True)


@examples(max_examples=60)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 9), st.sampled_from([True, "auto"]))
def test_every_row_belongs_to_one_rank_and_parts_do_not_depend_on_the_ranks(
    log_shards, log_size, rows, exact
) -> None:
    shards, size = 2**log_shards, 2 ** min(log_size, log_shards)
    batch = shards * rows
    settings = ParallelConfig(exact=exact, virtual_shards=shards)
    shares = [divide(settings, batch, RankPlace(rank, size)) for rank in range(size)]
    assert [row for one in shares for row in range(batch)[one.own_rows]] == list(range(batch))
    (parts,) = {(one.parts, one.rows, one.exact) for one in shares}
    assert parts == ((shards, rows, True) if parts[2] else (size, batch // size, False))
    assert parts[2] or exact == "auto"
    assert [one.first_part for one in shares] == [r * parts[0] // size for r in range(size)]


def test_one_process_computes_a_batch_whole_unless_it_is_exact() -> None:
    assert divide(ParallelConfig(), 16, RankPlace()).whole
    assert not divide(EXACT, 16, RankPlace()).whole
    assert not divide(ParallelConfig(), 16, RankPlace(0, 2)).exact
    assert divide(ParallelConfig(), 16, RankPlace(0, 8)).exact
    assert not divide(ParallelConfig(shard="full"), 16, RankPlace(0, 8)).exact


@pytest.mark.parametrize(
    ("settings", "rows", "size", "said"),
    [
        ({}, 7, 2, "train.batch_size=7: 2 ranks cannot share its rows equally; use 6 or 8"),
        ({"exact": True}, 24, 3, "3 ranks cannot share 8 virtual shards equally; start 2 ranks"),
        ({"exact": True}, 12, 1, "use parallel.virtual_shards=4 or train.batch_size=16"),
        ({"data": 4}, 8, 2, "parallel.data=4: the run has 2 ranks"),
        ({"shard": "full"}, 8, 1, "parallel.shard=full: needs several ranks"),
        ({"average_every": 3}, 8, 1, "parallel.average_every=3: needs several ranks"),
    ],
)
def test_what_ranks_cannot_share_is_refused(settings, rows, size, said) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        divide(ParallelConfig(**settings), rows, RankPlace(0, size))


@pytest.mark.parametrize("count", [1, 2, 4, 8, 32])
def test_a_branch_for_each_rank_gives_the_bits_of_the_whole_tree(count) -> None:
    leaves = [torch.randn(1000) * 10.0 ** (n % 8) for n in range(count)]
    whole = summed([leaf.clone() for leaf in leaves])
    in_a_row = sum(leaf.clone() for leaf in leaves)
    assert torch.equal(whole, in_a_row) == (count < 4)  # the order matters for these numbers
    for size in (2**n for n in range(count.bit_length())):
        each, branches = count // size, []
        for rank in range(size):
            tree = RunningTree([torch.empty(1000) for _ in range(each.bit_length())])
            for leaf in leaves[rank * each : (rank + 1) * each]:
                memory = tree.leaf()
                memory.copy_(leaf)
                tree.add(memory)
            branches.append(tree.take())
        assert torch.equal(summed(branches), whole)


def test_what_was_dealt_out_comes_back_in_order() -> None:
    assert ordered([[0.0, 3.0], [1.0, 4.0], [2.0, math.nan]], 5) == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR: not set, but WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two: expected a whole number"),
        ({"RANK": None}, "RANK: not set"),
        ({"RANK": "2"}, "RANK=2: not below WORLD_SIZE=2"),
    ],
)
def test_a_half_made_environment_is_refused(given, said) -> None:
    names = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    whole = names | {"MASTER_ADDR": "here", "MASTER_PORT": "1"}
    assert rank_place(whole) == RankPlace(1, 2, 1)
    assert rank_place({}) == rank_place(whole | {"WORLD_SIZE": "1"}) == RankPlace()
    base = whole if "RANK" in given else {}
    with pytest.raises(UserError, match=said):
        rank_place({k: v for k, v in (base | given).items() if v is not None})
