"""The group kernels keep the matrix in registers, as many fragments as there is room for."""

from __future__ import annotations

import pytest

from elman.kernels.nvrtc import Unit
from elman.ops.dense.cuda import groups
from elman.ops.dense.cuda.group_config import SHARED_LIMITS, Machine, choose
from elman.ops.dense.recurrences import CELLS

A100 = ("sm_80", Machine(108, SHARED_LIMITS[8, 0]))
L40S = ("sm_89", Machine(142, SHARED_LIMITS[8, 9]))
H200 = ("sm_90", Machine(132, SHARED_LIMITS[9, 0]))


# The sizes of the suites, the largest, and those that leave the fewest registers.
@pytest.mark.parametrize(
    ("step", "channels", "back", "gpu"),
    [
        ("tanh", 1280, False, A100),
        ("tanh", 1280, True, A100),
        ("tanh", 3072, False, A100),
        ("lstm", 768, False, A100),
        ("lstm", 768, True, A100),
        ("tanh", 1024, False, L40S),
        ("tanh", 2048, True, L40S),
        ("two_gates_all", 1280, False, L40S),
        ("tanh", 2048, False, H200),
        ("tanh", 3584, False, H200),
        ("tanh", 3584, True, H200),
        ("mix", 2048, False, H200),
        ("lstm", 1024, True, H200),
        ("lstm", 1536, True, H200),
        ("two_gates_all", 1280, True, H200),
    ],
)
def test_nothing_is_spilled(step: str, channels: int, back: bool, gpu: tuple[str, Machine]) -> None:
    architecture, machine = gpu
    config = choose(CELLS[step], channels, 32, machine, back=back)
    assert config is not None
    unit = Unit(groups.unit_text(config), step, architecture, fast=True)
    (used,) = unit.resources().values()
    assert used.spilled == 0
    assert used.registers * config.threads <= 65536
