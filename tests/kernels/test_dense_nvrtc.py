"""The dense engine's stepwise kernels compile, and keep all in registers."""

from __future__ import annotations

import pytest
import torch

from elman.kernels.nvrtc import Unit
from elman.ops.dense.cuda import stepwise
from elman.ops.dense.cuda.stepwise import StepConfig
from elman.ops.dense.recurrences import CELLS


# Every step on the machine that it is for; elsewhere those that keep most. docs/registers.md has
# all of them without resets, which need more.
@pytest.mark.parametrize(
    "resets",
    [pytest.param(False, marks=pytest.mark.slow, id="plain"), pytest.param(True, id="resets")],
)
@pytest.mark.parametrize(
    ("step", "architecture", "dtype", "vector"),
    [
        *((step, "sm_90", torch.bfloat16, 2) for step in CELLS),
        *((step, "sm_80", torch.bfloat16, 1) for step in ("lstm", "slstm", "gru", "normalized")),
        *((step, "sm_90", torch.float32, 2) for step in ("lstm", "slstm", "gru", "two_gates_all")),
        ("gru", "sm_120", torch.bfloat16, 2),
    ],
)
def test_nothing_is_spilled(
    step: str, architecture: str, dtype: torch.dtype, vector: int, resets: bool
) -> None:
    heads = step == "slstm"
    text = stepwise.unit_text(StepConfig(step, dtype, torch.float32, vector, resets, heads))
    used = Unit(text, step, architecture, dtype == torch.bfloat16).resources()
    assert {name: one.spilled for name, one in used.items()} == dict.fromkeys(used, 0)
    assert len(used) == (4 if CELLS[step].extra else 2)
