"""The kernel of whole steps keeps its numbers in registers, and fits a multiprocessor."""

from __future__ import annotations

from typing import Any

import pytest

from elman.kernels.nvrtc import Unit
from elman.layers import E88
from elman.ops.decode import step
from elman.ops.decode.step import MOST_ROWS, Sizes
from elman.ops.matrix_state.cuda.heuristics import H200


def sizes_of(width: int) -> Sizes:
    """Return what an E88 of 20 layers is."""
    layer: Any = E88(width, n_heads=32, n_state=16, device="meta").text_layer()
    channels, width = layer.in_proj.shape
    return Sizes(
        layer.plan,
        layers=20,
        width=width,
        channels=channels,
        inner=0,
        activated=False,
        convolved=0,
        taps=0,
        hidden=0,
        values=256,
    )


@pytest.mark.parametrize("texts", [1, MOST_ROWS])
def test_nothing_is_spilled(texts: int) -> None:
    config = step.choose_config(sizes_of(1536), texts, H200)
    assert config is not None
    (used,) = Unit(step.unit_text(config), "text", "sm_90", fast=True).resources().values()
    assert used.spilled == 0
    assert used.registers * config.threads <= 65536


@pytest.mark.parametrize(("width", "slots"), [(1536, 3), (2432, 2)])
def test_no_copy_is_of_the_pass_behind_which_it_begins(width: int, slots: int) -> None:
    config = step.choose_config(sizes_of(width), 1, H200)
    assert config is not None
    assert not config.in_step
    assert config.slots == slots
