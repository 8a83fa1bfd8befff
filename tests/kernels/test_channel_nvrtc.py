"""The channel engine's kernels compile for every architecture, and keep all in registers."""

from __future__ import annotations

import pytest
import torch

from elman.kernels.nvrtc import Unit
from elman.ops.channel.cuda import kernels
from elman.ops.channel.cuda.tile_config import Tuning
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS
from elman.ops.common.slices import row_blocks

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


# The steps that keep most, and a norm over a wide model's channels; docs/registers.md has all of
# them without resets, which need more, on sm_90 in bf16.
@pytest.mark.parametrize("step", ["e59b", "e62_decay", "minlstm"])
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("sm_80", "bf16"), ("sm_100", "bf16"), ("sm_120", "bf16"), ("sm_90", "fp32")],
)
@pytest.mark.parametrize(
    "resets",
    [pytest.param(False, marks=pytest.mark.slow, id="plain"), pytest.param(True, id="resets")],
)
def test_nothing_is_spilled(step, architecture, dtype, resets) -> None:
    places = row_blocks(dict.fromkeys(CELLS[step].inputs, 64))
    plan = Plan(step, tuple(places.items()), self_gate=True)
    io = DTYPES[dtype]
    channels = 4096 if io == torch.bfloat16 else 2048
    sizes = (Tuning(), 16, channels)
    tile_config = kernels.tile_config_for(plan, io, torch.float32, *sizes, resets=resets)
    text = kernels.unit_text(tile_config)
    used = Unit(text, step, architecture, dtype == "bf16").resources()
    assert {name: one.spilled for name, one in used.items()} == dict.fromkeys(used, 0)
    assert "channel_backward" in used
