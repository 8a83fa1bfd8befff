"""Resets in the matrix-state CUDA kernels, run on a CPU from their own sources.

Segments have four steps, so that the mask of :mod:`test_matrix_resets` has resets on their
boundaries and beside them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.kernels.nvrtc import Unit
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import H200
from elman.ops.matrix_state.custom_op import KERNELS
from tests.emulation import emulator
from tests.emulation.test_matrix_emulation import TILE_CONFIGS, _poisoned  # noqa: F401
from tests.ops.matrix_state.test_matrix_kernels import LAYERS, assert_equal
from tests.ops.matrix_state.test_matrix_resets import (
    STEPS,
    double,
    draw,
    gradients,
    mask,
    nothing_passes,
    plan_of,
    run,
)

pytestmark = pytest.mark.compiler
# Every way to hold, to keep and to copy states: alone and with producers, in global memory, with
# checkpoints that are copied while others work and with those that are not; the other ways are slow.
WAYS: dict[str, dict[str, Any]] = TILE_CONFIGS | {
    "e88-n16": {**TILE_CONFIGS["e88-n16"], "producers": True},
    "e74-residual-n10": {},
    "e73-delta-n6": {"producers": False},
}
QUICK = ("e14-rectangle", "e72-n7", "e73-full-n28", "e74-state-n24", "e74-ntm-n18", "e75-n32")
QUICK += ("e88-n16", "e74-residual-n10", "e73-delta-n6")
SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param(n, marks=[SLOW] * (n not in QUICK)) for n in LAYERS])
def test_outputs_and_gradients_are_those_of_the_reference(name, monkeypatch) -> None:
    monkeypatch.setitem(KERNELS, "cpu", emulator.backend(**WAYS.get(name, {})))
    plan = plan_of(name)
    leaves = draw(plan, (3, STEPS))
    found = gradients(run(plan, leaves, "cpu", mask()), leaves)
    wanted = gradients(run(plan, leaves, "reference", mask()), leaves)
    assert_equal(found, wanted, 1e-11)


@pytest.mark.parametrize("reached", ["output", "last"])
@pytest.mark.parametrize("producers", [False, True], ids=["alone", "producers"])
def test_gradients_of_one_output_alone(producers, reached, monkeypatch) -> None:
    monkeypatch.setitem(KERNELS, "cpu", emulator.backend(4, 1, producers=producers))
    plan = plan_of("e75-n32")
    leaves = draw(plan, (3, STEPS))
    if reached == "output":
        leaves.pop("first")
    found = gradients(run(plan, leaves, "cpu", mask()), leaves, reached)
    wanted = gradients(run(plan, leaves, "reference", mask()), leaves, reached)
    assert_equal(found, wanted, 1e-11)


@pytest.mark.parametrize("case", [("e88-n16", 512), ("e74-state-n24", 1500)], ids=lambda c: c[0])
def test_the_tile_configs_that_the_engine_chooses(case, monkeypatch) -> None:
    """Segments of up to 32 steps: every lane has a step of its own in the mask."""
    name, heads = case
    monkeypatch.setitem(KERNELS, "cpu", emulator.engine(heads))
    plan, steps = plan_of(name), 71
    leaves = draw(plan, (2, steps))
    resets_bt = mask(((0, 15, 16, 31, 32, 70), (1, 17, 33, 48, 64)), steps)
    found = gradients(run(plan, leaves, "cpu", resets_bt), leaves)
    wanted = gradients(run(plan, leaves, "reference", resets_bt), leaves)
    assert_equal(found, wanted, 1e-11)


def test_narrow_numbers(monkeypatch) -> None:
    monkeypatch.setitem(KERNELS, "cuda", emulator.backend(**TILE_CONFIGS["e75-n32"]))
    plan = plan_of("e75-n32")
    leaves = draw(plan, (3, STEPS), torch.float32)
    with torch.no_grad():
        narrow = {n: leaf.bfloat16() if "source" in n else leaf for n, leaf in leaves.items()}
    narrow = {name: leaf.detach().requires_grad_() for name, leaf in narrow.items()}
    found = gradients(run(plan, narrow, "cuda", mask()), narrow)
    wide = double(narrow)
    assert_equal(found, gradients(run(plan, wide, "reference", mask()), wide), 6e-3)


@pytest.mark.parametrize("producers", [False, True], ids=["alone", "producers"])
def test_nothing_passes_a_reset(producers, monkeypatch) -> None:
    monkeypatch.setitem(KERNELS, "cpu", emulator.backend(4, 1, tall=2, producers=producers))
    plan = plan_of("e88-n16")
    nothing_passes(plan, draw(plan, (3, STEPS)), "cpu")


@pytest.mark.parametrize("name", ["e88-n16", "e75-n32"])
def test_nothing_is_spilled(name) -> None:
    plan = plan_of(name)
    chosen = kernels.choose(plan, kernels.types(plan, torch.bfloat16), 512, H200)
    for backward in (False, True):
        way = chosen if backward else kernels.forward_of(chosen, 512, H200)
        text = kernels.unit_text(kernels.replace(way, resets=True), backward)
        used = Unit(text, "resets", "sm_90", True).resources()
        assert {name: one.spilled for name, one in used.items()} == dict.fromkeys(used, 0)
