"""The cluster kernels keep the matrix in registers, as many fragments as there is room for."""

from __future__ import annotations

import pytest

from elman.kernels.nvrtc import Unit
from elman.ops.dense.cuda import cluster
from elman.ops.dense.cuda.cluster_config import choose
from elman.ops.dense.recurrences import CELLS


# The sizes of the suites, the largest of every number of blocks, and those of odd splits.
@pytest.mark.parametrize(
    ("step", "channels", "back"),
    [
        *(("tanh", channels, False) for channels in (512, 1280, 1536)),
        *(("tanh", channels, True) for channels in (640, 1280, 1536)),
        ("two_gates", 1280, True),
        ("mix_all", 1024, True),
        ("two_gates_all", 768, False),
        ("two_gates_all", 640, True),
        ("lstm", 768, False),
        ("lstm", 768, True),
        *(("gru", channels, back) for channels in (512, 640, 768) for back in (False, True)),
        *(("gru_reset_after", channels, back) for channels in (512, 768) for back in (False, True)),
        ("normalized_scalar", 1280, False),
        ("normalized_scalar", 1280, True),
        ("normalized", 1536, True),
    ],
)
def test_nothing_is_spilled(step: str, channels: int, back: bool) -> None:
    compiled_without_spills(step, channels, back, resets=False)


@pytest.mark.parametrize(
    ("step", "channels", "back"),
    [("tanh", 1280, False), ("lstm", 768, True), ("gru", 768, True), ("normalized", 1280, True)],
)
def test_nothing_is_spilled_with_resets(step: str, channels: int, back: bool) -> None:
    compiled_without_spills(step, channels, back, resets=True)


# model=slstm and slstm_384x4_e2.125; resets need the most registers.
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("own", [204, 288])
def test_nothing_is_spilled_of_heads(own: int, back: bool) -> None:
    compiled_without_spills("slstm", own, back, resets=True, heads=4)


def compiled_without_spills(
    step: str, channels: int, back: bool, resets: bool, heads: int = 1
) -> None:
    """Compile a pass as the engine chooses it for an H200."""
    config = choose(CELLS[step], channels, 32, back=back, resets=resets, heads=heads)
    assert config is not None
    (used,) = Unit(cluster.unit_text(config), step, "sm_90", fast=True).resources().values()
    assert used.spilled == 0
    assert used.registers * config.threads <= 65536
