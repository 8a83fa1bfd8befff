"""The tape engine's cluster kernels spill nothing: matrices without room lie in shared memory."""

from __future__ import annotations

import pytest

from elman.kernels.nvrtc import Unit
from elman.ops.tape.cuda import cluster
from elman.ops.tape.cuda.cluster_config import choose
from elman.ops.tape.recurrences import CELLS


# The sizes of the models, and those that leave a thread the fewest registers.
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("write", "channels", "slots"),
    [
        *(("full", channels, 8) for channels in (512, 1024)),
        *(("full", 512, slots) for slots in (1, 64)),
        ("full", 768, 64),
        ("identity", 768, 8),
        ("shared", 640, 8),
        ("shared", 768, 64),
        pytest.param("full", 768, 8, marks=pytest.mark.slow),  # docs/registers.md has it
        pytest.param("full", 512, 16, marks=pytest.mark.slow),
        pytest.param("identity", 1024, 8, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_spilled(write: str, channels: int, slots: int, back: bool) -> None:
    config = choose(CELLS[write], channels, slots, 32, back=back)
    assert config is not None
    (used,) = Unit(cluster.unit_text(config), write, "sm_90", fast=True).resources().values()
    assert used.spilled == 0
    assert used.registers * config.threads <= 65536
