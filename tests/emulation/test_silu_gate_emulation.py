"""The silu-and-gate kernels, run on a CPU from their own source, against fp64.

Shape legend: b batch, t time, i channels of a branch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.kernels.nvrtc import Unit
from elman.kernels.sources import included_sources
from elman.layers import E1, E42
from elman.models.cells.common.mixer import Mixer
from elman.ops.silu_gate import cuda, op
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, rows

pytestmark = pytest.mark.compiler

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LIMITS = {BF16: 4e-3, FP16: 5e-4, FP32: 2e-6}
Library = Callable[[str], ctypes.CDLL]


def stretches(config: cuda.TileConfig, kernel: str, args: cuda.SiluGateArgs) -> list[Stretch]:
    """Return what a kernel may read and write."""
    h = config.width * config.state.itemsize
    z = config.width * config.branch.itemsize
    count, stride = (args.rows, 1), args.stride * config.branch.itemsize
    read = z + z if "swiglu" in kernel else z
    dz = 2 * z if "split" in kernel or "swiglu" in kernel else z
    found = [
        rows("h", args.h, args.rows * h),
        rows("z", args.z, read, count, (stride, 0)),
        rows("dout", args.dout, args.rows * z),
        rows("dsecond", args.dsecond, args.rows * z),
        rows("out", args.out, args.rows * z, writable=True),
        rows("dh", args.dh, args.rows * h, writable=True),
        rows("dz", args.dz, args.rows * dz, writable=True),
    ]
    return [one for one in found if one]


def emulate(
    library: Library, config: cuda.TileConfig, wanted: Sequence[Launch], args: cuda.SiluGateArgs
) -> None:
    """Run a kernel."""
    (one,) = wanted
    compiled = library(cuda.unit_text(config, emulator.HEADER))
    declare(compiled, stretches(config, one.kernel, args))
    emulator.start(compiled, one, args, 1)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on CPU tensors, with NaN wherever nothing was written."""
    emulator.stand_in(monkeypatch.setattr, cuda, emulate)


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, shift: int = 0) -> Tensor:
    """Return numbers of both signs, some far from 0, ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(seed)
    flat = 3 * torch.randn(torch.Size(shape).numel() + shift, generator=generator)
    return flat.to(dtype)[shift:].view(shape).requires_grad_()


def layer(projected: Tensor, h: Tensor, backend: str) -> tuple[Tensor, ...]:
    """Return all that the kernels compute, from a projection and a state."""
    u, z = op.split(projected, backend=backend)
    gated = op.gate(h, z, backend=backend)
    selfish = op.self_gate(h, projected.dtype, backend=backend)
    return u, gated, selfish, op.swiglu(projected, backend=backend)


def everything(leaves: list[Tensor], backend: str) -> list[Tensor]:
    """Return outputs and gradients; each output has a gradient of its own."""
    outputs = layer(*leaves, backend)
    # Quarters are exact in every dtype.
    pulls = [
        torch.arange(o.numel()).mul(7 + n).remainder(23).sub(11).div(4).view(o.shape).to(o.dtype)
        for n, o in enumerate(outputs)
    ]
    gradients = torch.autograd.grad(outputs, leaves, pulls)
    return [one.detach() for one in (*outputs, *gradients)]


def check(leaves: list[Tensor]) -> None:
    """Compare the kernels with fp64, every tensor by the precision of its dtype."""
    found = everything(leaves, "cuda")
    exact = everything([one.detach().double().requires_grad_() for one in leaves], "reference")
    for n, (one, right) in enumerate(zip(found, exact, strict=True)):
        error = (one.double() - right).norm()
        assert error <= LIMITS[one.dtype] * right.norm() + 1e-12, (n, float(error))


@pytest.mark.parametrize(
    "shape", [(2, 3, 1), (2, 4, 37), (3, 3, 8), (1, 1, 37), (5, 7, 40), (2, 3, 1000)]
)
def test_outputs_and_gradients_are_those_of_fp64(shape) -> None:
    *rest, i = shape
    check([draw((*rest, 2 * i), BF16), draw(shape, BF16, seed=1)])


@pytest.mark.parametrize("width", [40, 37])
@pytest.mark.parametrize(
    ("branch", "state"), [(BF16, BF16), (FP16, FP16), (FP32, FP32), (BF16, FP32), (FP16, FP32)]
)
def test_every_dtype(branch, state, width) -> None:
    check([draw((3, 5, 2 * width), branch), draw((3, 5, width), state, seed=1)])


def test_a_state_that_is_not_contiguous() -> None:
    state = draw((5, 3, 40), BF16, seed=1).detach().transpose(0, 1).requires_grad_()
    check([draw((3, 5, 80), BF16), state])


@pytest.mark.parametrize(("shift", "vector"), [(0, 8), (8, 8), (1, 1)])
def test_tensors_off_a_boundary_get_single_numbers(monkeypatch, shift, vector) -> None:
    launches = emulator.note_launches(monkeypatch.setattr, cuda)
    shifted = [draw((2, 3, 80), BF16, shift=shift), draw((2, 3, 40), BF16, 1, shift)]
    check(shifted)
    assert vector in {config.vector for config, _ in launches}


def test_a_gate_far_from_zero_stays_finite() -> None:
    projected = torch.tensor([-1e4, -90.0, -20.0, 0.0, 20.0, 90.0, 1e4, 1.0] * 2).view(1, 1, 16)
    check([projected.requires_grad_(), draw((1, 1, 8), FP32)])


def test_an_output_that_nothing_reads_has_no_gradient() -> None:
    projected = draw((2, 3, 80), BF16)
    u, z = op.split(projected, backend="cuda")
    (of_u,) = torch.autograd.grad(u.sum(), projected, retain_graph=True)
    (of_z,) = torch.autograd.grad(z.sum(), projected)
    assert torch.equal(of_u[..., 40:], torch.zeros_like(of_u[..., 40:]))
    assert torch.equal(of_z, torch.cat([torch.zeros(2, 3, 40), torch.ones(2, 3, 40)], -1))


def test_no_rows_need_no_kernel() -> None:
    leaves = [draw((0, 3, 80), BF16), draw((0, 3, 40), BF16)]
    assert [one.shape for one in everything(leaves, "cuda")[:4]] == 4 * [(0, 3, 40)]


def test_compilers_see_the_operators_of_pytorch() -> None:
    leaves = [draw((2, 3, 80), BF16), draw((2, 3, 40), BF16, 1)]
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    exact = layer(*(one.double() for one in leaves), "reference")
    for one, right in zip(compiled(*leaves, "cuda"), exact, strict=True):
        assert (one.double() - right).norm() <= 1e-2 * right.norm()


@pytest.mark.parametrize("cell", [E1, E42])
def test_a_layer_computes_the_same_with_the_kernels(monkeypatch, cell) -> None:
    torch.manual_seed(2)
    layer = cell(24)
    x = torch.randn(2, 5, 24)
    plain, _ = layer(x)
    launches = emulator.note_launches(monkeypatch.setattr, cuda)
    in_a_kernel = op.in_a_cuda_kernel
    monkeypatch.setattr(op, "in_a_cuda_kernel", lambda _, *given: in_a_kernel("cuda", *given))
    found, _ = layer(x)
    found.square().sum().backward()
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
    pairs = ["split", "gate"] if cell is E1 else ["self_gate"]
    expected = [f"silu_{one}_forward" for one in pairs]
    expected += [f"silu_{one}_backward" for one in reversed(pairs)]
    assert [kernel for _, kernel in launches] == expected
    assert issubclass(cell, Mixer)


# ---- planted faults

FAULTS = {
    "one row too few": ("there = row < a.rows;", "there = row + 1 < a.rows;"),
    "rows that are not there": ("there = row < a.rows;", "there = true;"),
    "next number": ("(int)(vector % G::VECTORS) * V;", "(int)(vector % G::VECTORS) * V + 1;"),
    "rows of z without a stride": (
        "at.template read<typename G::Z>(z, a.z, a.stride);",
        "at.template read<typename G::Z>(z, a.z);",
    ),
    "second half onto the first": ("(Z*)a.dz + G::W, dsecond", "(Z*)a.dz, dsecond"),
    "gradient rows of one half": ("dout, 2 * G::W);", "dout, G::W);"),
    "value of the gate's own half": ("v, (const Z*)a.z + G::W", "v, (const Z*)a.z"),
    "gate's gradient without the value": ("slope[i] *= v[i] * dout[i];", "slope[i] *= dout[i];"),
    "value's gradient where the gate's is": ("(Z*)a.dz + G::W, s,", "(Z*)a.dz, s,"),
    "slope without the gate": ("gate + s[i] * (1.0f - gate)", "gate + s[i]"),
}


# One fault of each kind, which are planted in every run.
QUICK = ("", "rows that are not there", "next number", "second half onto the first")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in ("", *FAULTS)],
)
def test_a_planted_fault_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    library = emulator.faulty(tmp_path, "cuda/silu_gate/silu_gate.cuh", FAULTS.get(fault))
    monkeypatch.setattr(cuda, "LAUNCH", lambda *call: emulate(library, *call[:3]))
    assert emulator.noticed(
        lambda: check([draw((3, 5, 80), BF16), draw((3, 5, 40), BF16, seed=1)])
    ) == bool(fault)


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    config = cuda.TileConfig(40, 8, BF16, BF16)
    compiled, emulated_text = cuda.unit_text(config), cuda.unit_text(config, emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    engine = next(p for p in included_sources(compiled) if p.name == "silu_gate.cuh")
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_kernels_compile_without_spilling(architecture) -> None:
    for config in (cuda.TileConfig(1280, 8, BF16, BF16), cuda.TileConfig(37, 1, FP32, FP16)):
        unit = Unit(cuda.unit_text(config), "silu and gate", architecture, fast=True)
        used = unit.resources()
        assert set(used) == set(cuda.KERNELS)
        assert {kernel.spilled for kernel in used.values()} == {0}
        # So many that eight blocks of a kernel fill a multiprocessor.
        assert max(kernel.registers for kernel in used.values()) <= 64
