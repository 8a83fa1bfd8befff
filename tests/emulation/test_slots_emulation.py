"""E63m's CUDA kernels, run on a CPU from their own sources, against the reference."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.kernels.nvrtc import Unit
from elman.ops.matrix_state.slots import cuda, custom_op
from elman.ops.matrix_state.slots.abi import SlotsArgs
from tests.emulation import emulator
from tests.emulation.faults import in_process, noticed
from tests.emulation.stretches import declare, of_slots
from tests.ops.matrix_state.test_slots import NAMES, check, draw, everything, mask, nothing_passes

pytestmark = pytest.mark.compiler
SIZES = {"odd": (2, 19, 5, 70), "one-step": (1, 1, 3, 33), "many-slots": (1, 3, 70, 5)}
Library = Callable[[str], ctypes.CDLL]


def emulate(library: Library, args: SlotsArgs, like: Tensor, backward: bool) -> None:
    """Run a pass."""
    warps, resets = cuda.warps_of(args.channels), bool(args.resets)
    text = cuda.unit_text(like.dtype, warps, emulator.HEADER, resets=resets)
    compiled = library(text)
    declare(compiled, of_slots(args, like.element_size(), backward=backward))
    emulator.start(compiled, cuda.launch_of(args, like.dtype, backward=backward), args)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    monkeypatch.setattr(cuda, "LAUNCH", functools.partial(emulate, emulator.loaded))
    make = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: make(*a, **k).fill_(torch.nan))


@pytest.mark.parametrize("reached", ["both", "output", "last"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_outputs_and_gradients_are_those_of_the_fp64_reference(size, reached) -> None:
    leaves = draw(size)
    check(everything(leaves, "cuda", reached), everything(leaves, "reference", reached), 1e-10)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_resets(size) -> None:
    found = everything(draw(size), "cuda", resets_bt=mask(size))
    check(found, everything(draw(size), "reference", resets_bt=mask(size)), 1e-10)


def test_nothing_passes_a_reset() -> None:
    nothing_passes("cuda")


def test_fp32() -> None:
    size = SIZES["odd"]
    exact = everything(draw(size), "reference")
    check(everything(draw(size, torch.float32), "cuda"), exact, 1e-4)


# Old and new text of slots.cuh.
EDITS = {
    "first barrier left out": ("begin();\n    sync_block();", "begin();"),
    "barrier of a step left out": ("step(t, j, kept);\n      sync_block();", "step(t, j, kept);"),
    "reads in one place": ("(int)(t % 2) * slots", "0 * slots"),
    "barrier behind a segment left out": (
        "recompute(segment, steps, i);\n      sync_block();",
        "recompute(segment, steps, i);",
    ),
    "barrier before mix left out": (
        "over_channels(bt, s, j);\n    sync_block();",
        "over_channels(bt, s, j);",
    ),
    "barrier behind mix left out": (
        "through_mix(bt, n);\n    sync_block();",
        "through_mix(bt, n);",
    ),
    "last barrier left out": ("over_slots(bt, s, i);\n    sync_block();", "over_slots(bt, s, i);"),
    "half of the lanes": ("mask < 32", "mask < 16"),
    "read of a step that is not there": ("if (lane || t == a.steps) return;", "if (lane) return;"),
    "first step not reset": ("unless(zero, sum(seen))", "sum(seen)"),
    "reads across a reset": (
        "leave(t + 1, j, unless(next_zero, sum(seen)))",
        "leave(t + 1, j, sum(seen))",
    ),
    "state across a reset": ("unless(zero, old) * keep", "old * keep"),
    "recomputed across a reset": ("s = unless(starts(bt), s) * keep", "s = s * keep"),
    "gradient of a across a reset": (
        "e * unless(zero, load_one(s + at));",
        "e * load_one(s + at);",
    ),
    "gradient of k across a reset": (
        "du * unless(zero, load_one(s + at));",
        "du * load_one(s + at);",
    ),
    "gradient of the state across a reset": (
        "unless(zero, keep * e + du * k)",
        "keep * e + du * k",
    ),
}
QUICK = (
    "recomputed across a reset",
    "barrier of a step left out",
    "barrier before mix left out",
    "last barrier left out",
)


def _results(library: Library) -> list[Tensor]:
    cuda.LAUNCH = functools.partial(emulate, library)
    size = (1, 17, 5, 70)
    whole = everything(draw(size), "cuda")
    parted = everything(draw(size), "cuda", resets_bt=mask(size))
    return [*whole.values(), *parted.values()]


def _run(folder: Path, what: str) -> str:
    """Run a mutated source and compare with the one that is whole."""
    wanted, (old, new) = _results(emulator.loaded), EDITS[what]

    def edit(source: str) -> str:
        assert old in source, what
        return source.replace(old, new, 1)

    def planted(text: str) -> ctypes.CDLL:
        return emulator.planted(folder, "cuda/matrix_state/slots.cuh", edit, text)

    try:
        found = _results(planted)
    except emulator.FaultError as fault:
        return str(fault)
    same = all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    return "-" if same else "wrong numbers"


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] * (what not in QUICK)) for what in EDITS]
)
def test_a_planted_fault_is_noticed(what, tmp_path: Path) -> None:
    said = in_process(_run, tmp_path, what)
    assert noticed(said), said
    assert said != "crash"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("resets", [False, True], ids=["whole", "resets"])
def test_nothing_is_spilled(architecture, resets) -> None:
    text = cuda.unit_text(torch.float32, 16, resets=resets)
    used = Unit(text, "e63m", architecture, False).resources()
    assert {name: one.spilled for name, one in used.items()} == dict.fromkeys(used, 0)
    assert set(used) == {"slots_forward", "slots_backward"}


def test_autocast_keeps_it_in_fp32() -> None:
    leaves = draw((1, 2, 3, 5), torch.float32)
    tensors = [leaves[name].squeeze(2) for name in NAMES]
    given = [*tensors, leaves["mix"], leaves["state"].squeeze(1)]
    with torch.autocast("cpu", torch.bfloat16):
        narrow = custom_op.SLOTS.operator("cpu", given[0].bfloat16(), *given[1:], None)
    assert {one.dtype for one in narrow} == {torch.float32}
