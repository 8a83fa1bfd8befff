"""The tile configs that are chosen for CUDA kernels: they fit the GPU, whatever the problem."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.kernels.driver import Limits
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import H200, choose, forward_of, natural_align
from elman.ops.matrix_state.cuda.tile_config import TileConfig, Types
from elman.ops.matrix_state.stacked import DELTA, E70, E75, stacked_plan
from tests.properties import examples

SM_86 = Limits(84, 99 * 1024, 100 * 1024, 8)  # the least shared memory of all
BF16, FP32 = Types("elman::bf16", "float", "elman::f16"), Types("float", "float", "float")
CELLS = {"delta": DELTA, "decayed": E70, "row_gated_delta": E75}
SIZES = (1, 3, 8, 13, 16, 20, 24, 32, 40, 48, 64, 96, 128, 200, 256)
HEADS = (1, 7, 32, 256, 1024, 5000)


def pair(
    cell: str, n: int, heads: int, device: Limits = H200, types: Types = BF16
) -> tuple[TileConfig, TileConfig]:
    """Return the tile configs of the forward and of the backward pass."""
    backward = choose(stacked_plan(cell, 1, n, n, **CELLS[cell]), types, heads, device)
    return forward_of(backward, heads, device), backward


def most_bytes(chosen: TileConfig, *, backward: bool) -> int:
    """Return the shared memory of the GPU's block, with sources that lie as unevenly as can be."""
    ways = [replace(chosen, align=align) for align in (4, 8, 16) if align <= natural_align(chosen)]
    most = max(one.backward_bytes if backward else one.forward_bytes for one in ways)
    return most if backward else most * chosen.shares


def fits_forward(chosen: TileConfig, device: Limits) -> bool:
    """Return whether a forward pass can run."""
    few = chosen.forward_threads * chosen.shares <= 640
    return few and most_bytes(chosen, backward=False) <= device.shared_bytes


def rounds(chosen: TileConfig, heads: int, device: Limits) -> int:
    """Return how many of a multiprocessor's blocks of the forward pass follow each other."""
    blocks = math.ceil(heads * chosen.row_tiles / chosen.shares / device.multiprocessors)
    at_once = device.shared_total // (chosen.forward_bytes * chosen.shares + 1024)
    return math.ceil(blocks / at_once)


@examples(max_examples=25)
@given(
    cell=st.sampled_from(list(CELLS)),
    heads=st.sampled_from(HEADS) | st.integers(1, 6000),
    device=st.sampled_from([H200, SM_86]),
    types=st.sampled_from([BF16, FP32]),
)
def test_every_size_fits_the_gpu_however_the_sources_lie(cell, heads, device, types) -> None:
    for n in range(1, 260):
        forward, backward = pair(cell, n, heads, device, types)
        for chosen in (forward, backward):
            columns, io = math.ceil(n / chosen.lanes), types.sizes[0]
            assert columns <= chosen.columns <= columns + 3, (n, chosen)
            assert chosen.rows * chosen.row_tiles >= n, (n, chosen)
            # Row tiles begin where the vectors do that are read.
            vector = 1 if chosen.align == 4 else min(4, chosen.align // io)
            assert chosen.rows % vector == n % vector == chosen.width % vector == 0, (n, chosen)
        assert most_bytes(forward, backward=False) <= device.shared_bytes, n
        assert most_bytes(backward, backward=True) <= device.shared_bytes, n
        assert forward.forward_threads * forward.shares <= 640, n
        assert backward.threads <= 512, n
        assert backward.backward_threads <= 640, n
        if n % 2 == 0:
            # Many columns of a lane are read in pairs.
            assert backward.columns % 2 == 0 or backward.columns < 7, n
            most = 11 if forward.tall == 4 else 7
            assert forward.columns % 2 == 0 or forward.columns <= most, n


@pytest.mark.parametrize("cell", CELLS)
def test_blocks_share_only_where_producers_are_and_all_multiprocessors_have_work(cell) -> None:
    shared = 0
    for n, heads in itertools.product(SIZES, HEADS):
        forward, _ = pair(cell, n, heads)
        assert forward.shares * forward.warps <= 4 or forward.shares == 1, (n, heads)
        if forward.shares > 1:
            shared += 1
            assert forward.producers, (n, heads)
            assert heads * forward.row_tiles >= 0.9 * forward.shares * H200.multiprocessors, (
                n,
                heads,
            )
    assert shared


@pytest.mark.parametrize("device", [H200, SM_86], ids=["h200", "sm_86"])
@pytest.mark.parametrize("cell", CELLS)
def test_forward_segments_are_the_longest_with_which_as_many_blocks_run_at_a_time(
    cell, device
) -> None:
    lengths = set()
    for n, heads in itertools.product(SIZES, HEADS):
        forward, _ = pair(cell, n, heads, device)
        short, middle, long = (replace(forward, steps=steps) for steps in (16, 24, 32))
        if forward.steps < 16 or not fits_forward(short, device):
            continue  # the backward pass's, since no other fits
        limit = rounds(short, heads, device)
        wanted = next(
            one
            for one in (long, middle, short)
            if fits_forward(one, device) and rounds(one, heads, device) <= limit
        )
        assert forward == wanted, (n, heads)
        lengths.add(forward.steps)
    assert lengths == {16, 24, 32}


def test_longer_segments_would_make_some_blocks_wait_for_others() -> None:
    # A multiprocessor has two of these blocks: at once with segments of 16 or 24 steps.
    forward, _ = pair("delta", 16, 1024)
    assert (forward.shares, forward.steps) == (4, 24)
    assert rounds(forward, 1024, H200) == 1
    assert rounds(replace(forward, steps=32), 1024, H200) == 2
    # And so few at 256 heads that nothing speaks against the longest.
    assert pair("delta", 16, 256)[0].steps == 32


@pytest.mark.parametrize("types", [BF16, FP32], ids=["bf16", "fp32"])
def test_producers_are_for_few_warps_and_blocks_without_company(types) -> None:
    crowded = 0
    schedulers = 4 * H200.multiprocessors
    for cell, n, heads in itertools.product(CELLS, SIZES, HEADS):
        forward, _ = pair(cell, n, heads, H200, types)
        bare = replace(forward, producers=False, shares=1, steps=16)
        # Where shared memory holds one block, nobody else works while that waits.
        alone = 2 * bare.forward_bytes > H200.shared_total
        warps = heads * forward.row_tiles * forward.warps
        if forward.producers:
            assert alone or warps <= 2 * schedulers, (cell, n, heads)
            crowded += warps > 2 * schedulers
        elif alone or warps <= schedulers:
            assert not fits_forward(replace(bare, producers=True), H200), (cell, n, heads)
    assert crowded


def test_time_and_a_batch_that_fills_the_gpu_anyway_change_nothing() -> None:
    assert pair("delta", 32, 4096) == pair("delta", 32, 8192)


def test_few_heads_are_cut_into_row_tiles() -> None:
    forward, backward = pair("decayed", 64, 32)
    assert (forward.row_tiles, backward.row_tiles) == (4, 4)
    assert pair("decayed", 64, 1024)[1].row_tiles == 1


def test_a_backward_block_of_many_warps_that_has_a_multiprocessor_alone_becomes_two() -> None:
    backward = pair("decayed", 64, 128)[1]
    assert (backward.row_tiles, backward.warps) == (2, 4)
    assert 2 * (backward.backward_bytes + 1024) <= H200.shared_total
    # Not with more heads than multiprocessors, nor where rows are read.
    assert pair("decayed", 64, 256)[1].row_tiles == 1
    assert pair("delta", 64, 128)[1].row_tiles == 1


@pytest.mark.parametrize(
    ("cell", "n", "heads", "expected"),
    [
        ("delta", 16, 32, (2, 1, 32)),
        ("delta", 32, 16, (2, 4, 32)),
        ("row_gated_delta", 32, 4, (2, 4, 32)),
        ("delta", 64, 8, (2, 8, 24)),
        ("delta", 128, 4, (1, 32, 24)),  # with two warps 16 steps would be left
        ("decayed", 64, 1, (1, 16, 32)),  # nothing is read
    ],
)
def test_a_backward_block_of_few_heads_that_read_has_two_warps_if_segments_stay_long(
    cell: str, n: int, heads: int, expected: tuple[int, int, int]
) -> None:
    backward = pair(cell, n, heads)[1]
    assert (backward.warps, backward.row_tiles, backward.steps) == expected


def test_others_recompute_than_walk_where_warps_have_little_company() -> None:
    # Warps of the backward pass that walk: one for each scheduler or fewer, then two.
    found = [pair("row_gated_delta", n, 128)[1] for n in (16, 32)]
    assert [(one.producers, one.steps) for one in found] == [(True, 32), (True, 16)]
    assert found[0].backward_threads == 2 * found[0].threads
    assert not pair("row_gated_delta", 16, 1024)[1].producers
    # Two blocks on a multiprocessor as before, with fewer steps; where they would not fit, none.
    two = pair("row_gated_delta", 24, 256)[1]
    assert two.producers
    assert 2 * (most_bytes(two, backward=True) + 1024) <= H200.shared_total
    # Rather producer warps than two blocks where a multiprocessor had one.
    whole = pair("decayed", 96, 32)[1]
    assert (whole.producers, whole.warps, whole.row_tiles, whole.steps) == (True, 6, 4, 8)


def test_states_are_kept_as_rarely_as_rounds_of_blocks_allow() -> None:
    # 16 steps would put three blocks of four on a multiprocessor at once, 12 steps all.
    assert pair("delta", 32, 512)[1].steps == 12
    assert pair("delta", 16, 1024)[1].steps == 16


def test_lanes_of_large_states_hold_several_rows() -> None:
    assert [pair("delta", n, 1024)[1].tall for n in (16, 24, 32, 64)] == [1, 3, 2, 4]


def test_warps_have_few_rows_that_no_head_has() -> None:
    # Of 24 rows three to a lane; where one row fills the warp, not two.
    for heads in (512, 768, 1024, 2048):
        assert [one.rows for one in pair("delta", 24, heads)] == [24, 24]
    assert pair("delta", 16, 2048)[0].rows == 16
    for cell, n in itertools.product(CELLS, (20, 24, 36, 48, 72, 80)):
        forward = pair(cell, n, 1024)[0]
        assert forward.rows * forward.row_tiles <= 1.34 * n, (cell, n)
    # A head of 64 numbers has a warp, whose lanes all have two; one of 16, half a warp.
    assert [(one.lanes, one.columns) for one in pair("delta", 8, 4096)] == [(4, 2), (4, 2)]
    assert [(one.lanes, one.columns) for one in pair("delta", 4, 4096)] == [(4, 1), (4, 1)]
    # Not where sources are read number by number.
    assert pair("delta", 22, 1024)[1].tall == 1


def test_lanes_with_many_columns_have_an_even_number_of_them() -> None:
    # Odd rows are kept number by number.
    assert [one.columns for one in pair("delta", 27, 256)] == [7, 7]
    # Twice as many columns of two rows rather than seven of four, but where rows are read.
    found = [pair(cell, 56, 1024)[1] for cell in ("decayed", "delta")]
    assert [(one.tall, one.columns) for one in found] == [(2, 14), (4, 8)]


def test_schedulers_share_the_warps_of_large_pieces_evenly() -> None:
    # Two warps for each scheduler, as many as have room; three, for which a third round is needed;
    # and six halves. Of 64 columns alike.
    assert [pair("delta", 32, heads)[0].tall for heads in (1024, 1536, 1792)] == [4, 2, 2]
    found = [pair("delta", 64, heads)[0] for heads in (512, 768, 1024)]
    assert [one.tall * one.columns for one in found] == [64, 32, 64]


def test_pieces_of_the_backward_pass_leave_room_for_three_warps_at_a_scheduler() -> None:
    found = [pair("delta", n, 512)[1] for n in (48, 56, 72)]
    assert [(one.tall, one.columns) for one in found] == [(3, 6), (4, 8), (3, 10)]
    # Gates take registers of their own.
    assert [pair(cell, 64, 512)[1].tall for cell in ("delta", "row_gated_delta")] == [4, 2]


def test_few_heads_have_small_pieces() -> None:
    forward, backward = pair("decayed", 32, 32)
    assert forward.columns * forward.tall == backward.columns * backward.tall == 4
    forward, backward = pair("delta", 32, 32)
    assert (forward.columns * forward.tall, backward.columns * backward.tall) == (8, 4)
    assert pair("decayed", 32, 128)[0].tall == 2


def test_blocks_share_one_only_where_no_multiprocessor_has_more_to_do_then() -> None:
    # 768 blocks by fours are 192, of which some of the 132 multiprocessors would have two.
    assert [pair("delta", 16, heads)[0].shares for heads in (768, 1024)] == [2, 4]


def test_blocks_that_share_are_launched_together_with_their_memory() -> None:
    forward, _ = pair("delta", 16, 1024)
    assert (forward.shares, forward.warps, forward.producers) == (4, 1, True)
    one = replace(forward, plan=replace(forward.plan, heads=3))
    # 9 blocks of one warp and its producer: three of the GPU's, the last with room to spare.
    wanted = ("matrix_forward", 3, 4 * 64, 4 * one.forward_bytes, False, 0, False)
    assert kernels.launches(one, 3, 512, backward=False) == [wanted]
    text = kernels.unit_text(one, backward=False)
    for line in ("ELMAN_SHARES 4", "ELMAN_SHARE_WARPS 1", f"ELMAN_SHARE_BYTES {one.forward_bytes}"):
        assert f"#define {line}\n" in text
    assert "ELMAN_SHARE" not in kernels.unit_text(replace(one, shares=1), backward=False)
