"""The channel engine's CUDA kernels, run on a CPU from their own sources, against the reference."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch

from elman.kernels.sources import included_sources
from elman.ops.channel import cuda, custom
from elman.ops.channel.plan import parse
from tests.emulation import emulator
from tests.ops.test_channel_kernels import PLANS, call, check, draw, everything, wanted

SIZE = (2, 19, 5)  # two whole segments and a rest; channels of two sequences share a warp


def emulate(text: str, pass_: cuda.Pass, call_: cuda._Call) -> None:
    """Run the kernels of a pass."""
    kernels = emulator.loaded(text.replace("cuda/device.cuh", emulator.HEADER))
    for name, threads in zip(pass_.kernels, pass_.threads, strict=True):
        kernel = kernels[name]
        kernel.restype = ctypes.c_char_p
        blocks = ctypes.c_int64(math.ceil(threads / 128))
        said = kernel(ctypes.byref(call_.args), blocks, ctypes.c_int(0), 1)
        if said:
            raise emulator.FaultError(f"{name}: {said.decode()}")


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    monkeypatch.setattr(cuda, "LAUNCH", emulate)
    # The operator is registered by device; here the CPU's tensors take the GPU's way.
    monkeypatch.setattr(custom, "cpu", cuda)
    for make in ("new_empty", "empty"):
        owner = torch.Tensor if make == "new_empty" else torch
        original = getattr(owner, make)
        monkeypatch.setattr(
            owner, make, lambda *a, original=original, **k: original(*a, **k).fill_(torch.nan)
        )


@pytest.mark.parametrize("name", PLANS)
def test_outputs_and_gradients_are_those_of_the_fp64_reference(name) -> None:
    plan = PLANS[name](SIZE[2])
    check(everything(plan, draw(plan, SIZE), "cpu"), wanted(name, SIZE), 1e-11)


@pytest.mark.parametrize("name", ["e65", "e68_inverse", "minlstm", "e74-tied-kvq"])
def test_bf16_in_and_out(name) -> None:
    plan = PLANS[name](8)
    leaves = draw(plan, (2, 19, 8), torch.float32)
    leaves["source"] = leaves["source"].detach().to(torch.bfloat16).requires_grad_()
    found = everything(plan, leaves, "cuda")
    wide = {n: leaf.detach().double().requires_grad_() for n, leaf in leaves.items()}
    assert found["y"].dtype == torch.bfloat16
    y, last = call(plan, wide, "reference")
    generator = torch.Generator().manual_seed(2)
    pulls = [
        torch.randn(t.shape, dtype=torch.float64, generator=generator).to(dtype).double()
        for t, dtype in ((y, torch.bfloat16), (last, torch.float32))
    ]
    gradients = torch.autograd.grad([y, last], list(wide.values()), pulls)
    exact = {"y": y, "last": last} | {f"d {n}": g for n, g in zip(wide, gradients, strict=True)}
    check(found, exact, 6e-3)


@pytest.mark.parametrize("steps", [1, 8], ids=["one-step", "one-segment"])
@pytest.mark.parametrize("reached", ["output", "last"])
def test_short_sequences(steps, reached) -> None:
    size = (2, steps, 5)
    plan = PLANS["e68"](5)
    check(everything(plan, draw(plan, size), "cpu", reached), wanted("e68", size, reached), 1e-11)


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    """Same text, same sources: but for the one header that says what the machine answers."""
    plan = parse(PLANS["e74-key-alone"](4).text)
    compiled = cuda.unit_text(plan, torch.bfloat16, torch.float32)
    emulated = cuda.unit_text(plan, torch.bfloat16, torch.float32, emulator.HEADER)
    assert emulated == compiled.replace("cuda/device.cuh", emulator.HEADER)
    assert "channel_norms_backward" in compiled
    shared = {path for path in included_sources(emulated) if path.parent.name != "emulation"}
    assert shared == {path for path in included_sources(compiled) if path.name != "device.cuh"}
    engine = next(path for path in shared if path.name == "channel.cuh")
    assert "#if" not in engine.read_text()
