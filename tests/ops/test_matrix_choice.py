"""The geometries that are chosen for CUDA kernels: they fit the GPU, whatever the problem."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from elman.kernels.nvrtc import Limits
from elman.ops.matrix_state import cuda
from elman.ops.matrix_state.choice import H200, LEAST_ALIGN, choose, forward_of
from elman.ops.matrix_state.geometry import Geometry, Types
from elman.ops.matrix_state.stacked import DELTA, E70, E75, stacked_plan

SM_86 = Limits(84, 99 * 1024, 100 * 1024)  # the least shared memory of all
TYPES = Types("elman::bf16", "float", "elman::f16")
CELLS = {"delta": DELTA, "decayed": E70, "row_gated_delta": E75}
SIZES = (1, 3, 8, 13, 16, 20, 24, 32, 40, 48, 64, 96, 128, 200, 256)
HEADS = (1, 7, 32, 256, 1024, 5000)


def pair(cell: str, n: int, heads: int, device: Limits = H200) -> tuple[Geometry, Geometry]:
    """Return the geometries of the forward and of the backward pass."""
    backward = choose(stacked_plan(cell, 1, n, n, **CELLS[cell]), TYPES, heads, device)
    return forward_of(backward, heads, device), backward


@pytest.mark.parametrize("device", [H200, SM_86], ids=["h200", "sm_86"])
@pytest.mark.parametrize("cell", CELLS)
def test_every_size_fits_the_gpu_even_with_sources_that_lie_unevenly(cell, device) -> None:
    for n, heads in itertools.product(SIZES, HEADS):
        forward, backward = pair(cell, n, heads, device)
        for chosen in (forward, backward):
            assert chosen.lanes * chosen.columns >= n, (n, heads, chosen)
            assert chosen.rows * chosen.slabs >= n, (n, heads, chosen)
        uneven = [replace(chosen, align=LEAST_ALIGN) for chosen in (forward, backward)]
        assert uneven[0].forward_bytes * forward.shares <= device.shared_bytes, (n, heads)
        assert uneven[1].backward_bytes <= device.shared_bytes, (n, heads)
        assert forward.forward_threads * forward.shares <= 640, (n, heads)
        assert backward.threads <= 512, (n, heads)
        assert not backward.helped, (n, heads)


@pytest.mark.parametrize("cell", CELLS)
def test_blocks_share_only_where_helpers_are_and_all_multiprocessors_have_work(cell) -> None:
    shared = 0
    for n, heads in itertools.product(SIZES, HEADS):
        forward, _ = pair(cell, n, heads)
        assert forward.shares * forward.warps <= 4 or forward.shares == 1, (n, heads)
        if forward.shares > 1:
            shared += 1
            assert forward.helped, (n, heads)
            assert heads * forward.slabs >= 0.9 * forward.shares * H200.multiprocessors, (n, heads)
    assert shared


def test_time_and_a_batch_that_fills_the_gpu_anyway_change_nothing() -> None:
    assert pair("delta", 32, 4096) == pair("delta", 32, 8192)


def test_few_heads_are_cut_into_slabs() -> None:
    forward, backward = pair("decayed", 64, 32)
    assert (forward.slabs, backward.slabs) == (4, 4)
    assert pair("decayed", 64, 1024)[1].slabs == 1


def test_states_are_kept_as_rarely_as_rounds_of_blocks_allow() -> None:
    # 16 steps would put three blocks of four on a multiprocessor at once, 12 steps all.
    assert pair("delta", 32, 512)[1].steps == 12
    assert pair("delta", 16, 1024)[1].steps == 16


def test_lanes_of_large_states_hold_several_rows() -> None:
    assert [pair("delta", n, 1024)[1].tall for n in (16, 32, 64)] == [1, 2, 4]


def test_blocks_that_share_are_launched_together_with_their_memory() -> None:
    forward, _ = pair("delta", 16, 1024)
    assert (forward.shares, forward.warps, forward.helped) == (4, 1, True)
    one = replace(forward, plan=replace(forward.plan, heads=3))
    # 9 blocks of one warp and its helper: three of the GPU's, the last with room to spare.
    wanted = ("matrix_forward", 3, 4 * 64, 4 * one.forward_bytes)
    assert cuda.launches(one, 3, 512, backward=False) == [wanted]
    text = cuda.unit_text(one, backward=False)
    for line in ("ELMAN_SHARES 4", "ELMAN_SHARE_WARPS 1", f"ELMAN_SHARE_BYTES {one.forward_bytes}"):
        assert f"#define {line}\n" in text
    assert "ELMAN_SHARE" not in cuda.unit_text(replace(one, shares=1), backward=False)
