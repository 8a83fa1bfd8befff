"""The tape engine's stepwise kernels compile, and keep all in registers."""

from __future__ import annotations

import pytest
import torch

from elman.kernels.nvrtc import Unit
from elman.ops.tape.cuda import stepwise
from elman.ops.tape.cuda.stepwise import StepConfig


# Blocks of 512 threads leave a thread the fewest registers, and resets need the most.
@pytest.mark.parametrize(
    "resets",
    [pytest.param(False, marks=pytest.mark.slow, id="plain"), pytest.param(True, id="resets")],
)
@pytest.mark.parametrize(
    ("write", "architecture", "dtype", "vector", "threads"),
    [
        *((write, "sm_90", torch.bfloat16, 2, 512) for write in ("full", "identity")),
        ("full", "sm_90", torch.float32, 2, 512),
        ("shared", "sm_80", torch.bfloat16, 1, 64),
    ],
)
def test_nothing_is_spilled(
    write: str, architecture: str, dtype: torch.dtype, vector: int, threads: int, resets: bool
) -> None:
    config = StepConfig(write, dtype, torch.float32, vector, threads, resets)
    text = stepwise.unit_text(config)
    used = Unit(text, f"tape {write}", architecture, dtype == torch.bfloat16).resources()
    assert {name: one.spilled for name, one in used.items()} == dict.fromkeys(used, 0)
    assert set(used) == {"tape_first", "tape_forward", "tape_backward", "tape_replay"}
