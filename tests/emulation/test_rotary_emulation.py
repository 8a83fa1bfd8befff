"""The rotary kernels, run on a CPU from their own source, against fp64.

Shape legend: b batch, t time, h heads, c channels of a head, k three times all of them.
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
from elman.ops.attention import rotate
from elman.ops.rotary import cuda, op
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, rows

pytestmark = pytest.mark.compiler

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LIMITS = {BF16: 3e-3, FP16: 4e-4, FP32: 1e-6}
THETA = 100.0
Library = Callable[[str], ctypes.CDLL]


def stretches(config: cuda.TileConfig, args: cuda.RotaryArgs) -> list[Stretch]:
    """Return what a kernel may read and write."""
    size, head = config.dtype.itemsize, config.channels * config.dtype.itemsize
    steps, whole = args.steps, config.inner * size
    found = [
        rows("qkv", args.qkv, 3 * whole, (args.rows, 1), (args.stride * size, 0)),
        rows("turns", args.turns, 4 * steps * config.channels),
        rows("q", args.q, args.rows * whole, writable=True),
        rows("k", args.k, args.rows * whole, writable=True),
        rows("dqkv", args.dqkv, args.rows * 3 * whole, writable=True),
    ]
    for name in ("dq", "dk", "dv"):
        if place := getattr(args, name):
            b, t, h = (getattr(args, f"{name}_{axis}") * size for axis in "bth")
            found += [
                rows(name, place + row * b, head, (steps, config.inner // config.channels), (t, h))
                for row in range(args.rows // steps)
            ]
    return [one for one in found if one]


def emulate(
    library: Library, config: cuda.TileConfig, wanted: Sequence[Launch], args: cuda.RotaryArgs
) -> None:
    """Run a kernel."""
    (one,) = wanted
    compiled = library(cuda.unit_text(config, emulator.HEADER))
    declare(compiled, stretches(config, args))
    emulator.start(compiled, one, args, 1)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on CPU tensors, with NaN wherever nothing was written."""
    emulator.stand_in(monkeypatch.setattr, cuda, emulate)


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, shift: int = 0) -> Tensor:
    """Return numbers of both signs, ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(torch.Size(shape).numel() + shift, generator=generator)
    return flat.to(dtype)[shift:].view(shape)


def plain(qkv_btk: Tensor, channels: int) -> tuple[Tensor, ...]:
    """Return what the kernels compute, by PyTorch."""
    q, k, v = (one.unflatten(-1, (-1, channels)) for one in qkv_btk.chunk(3, dim=-1))
    return rotate(q, 0, THETA), rotate(k, 0, THETA), v


def check(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype = BF16,
    *,
    turned: bool = False,
    shift: int = 0,
) -> None:
    """Compare outputs and gradients with fp64; ``turned`` gradients have heads before time."""
    b, t, h, c = shape
    leaf = draw((b, t, 3 * h * c), dtype, shift=shift).requires_grad_()
    pulls = [draw(shape, dtype, seed, shift) for seed in (1, 2, 3)]
    if turned:
        pulls = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in pulls]
    found = op.turned(leaf, c, THETA)
    wide = leaf.detach().double().requires_grad_()
    exact = plain(wide, c)
    (gradient,) = torch.autograd.grad(found, leaf, pulls)
    (right,) = torch.autograd.grad(exact, wide, [one.double() for one in pulls])
    for one, wanted in zip((*found, gradient), (*exact, right), strict=True):
        error = (one.double() - wanted).norm()
        assert error <= LIMITS[dtype] * wanted.norm() + 1e-12, error.detach()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 5, 3, 6), (1, 3, 20, 64)])
def test_outputs_and_gradients_are_those_of_fp64(shape, turned) -> None:
    check(shape, turned=turned)


@pytest.mark.parametrize("dtype", [FP16, FP32])
def test_every_dtype(dtype) -> None:
    check((2, 5, 2, 8), dtype)


def test_far_positions_keep_their_angles() -> None:
    leaf = torch.ones(1, 1000, 6, dtype=FP32)
    q, _, _ = op.turned(leaf, 2, THETA)
    angle = torch.arange(1000, dtype=torch.float64)
    exact = torch.stack([angle.cos() - angle.sin(), angle.sin() + angle.cos()], -1)
    torch.testing.assert_close(q[0, :, 0].double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("shift", "vector"), [(0, 8), (2, 2), (1, 8)])
def test_tensors_off_a_boundary_get_pairs(monkeypatch, shift, vector) -> None:
    launches = emulator.note_launches(monkeypatch.setattr, cuda)
    check((2, 3, 2, 8), shift=shift)
    assert vector in {config.vector for config, _ in launches}


def test_a_table_serves_every_shorter_text() -> None:
    device = torch.device("cpu")
    assert op.table(3, 4, THETA, device) is op.table(512, 4, THETA, device)
    assert op.table(513, 4, THETA, device).shape == (1024, 2, 2)


def test_compilers_see_the_operators_of_pytorch() -> None:
    class Own(Tensor):
        pass

    qkv = draw((1, 2, 12), BF16)
    assert op.can_turn(qkv, "cuda")
    assert not op.can_turn(qkv, "torch")
    assert not op.can_turn(qkv.as_subclass(Own), "cuda")
    assert not op.can_turn(qkv.double(), "cuda")
    assert not op.can_turn(qkv[:0], "cuda")


# ---- planted faults

FAULTS = {
    "angles of the row, not of the step": ("step = row % a.steps;", "step = row;"),
    "the other way round": ("x[i + 1] = even * sine + odd", "x[i + 1] = -even * sine + odd"),
    "backward as forward": ("channel, -1.0f)", "channel, 1.0f)"),
    "values turned": ("if (part < 2) turn", "if (part < 3) turn"),
    "angles of the first channels": ("step, column % G::C, 1.0f)", "step, 0, 1.0f)"),
    "keys over the queries": ("(key ? a.k : a.q)", "a.q"),
    "no stride of heads": ("(k_row + head * a.dk_h)", "(k_row + head * G::C)"),
    "one vector too many": ("vector < 3 * G::VECTORS", "vector <= 3 * G::VECTORS"),
    "first vectors alone": ("vector < 2 * G::VECTORS", "vector < G::VECTORS"),
}


@pytest.mark.parametrize(
    "fault", ["", *(pytest.param(one, marks=pytest.mark.slow) for one in FAULTS)]
)
def test_a_planted_fault_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    library = emulator.faulty(tmp_path, "cuda/rotary/rotary.cuh", FAULTS.get(fault))
    monkeypatch.setattr(cuda, "LAUNCH", lambda *call: emulate(library, *call[:3]))
    assert emulator.noticed(lambda: check((2, 5, 3, 16), turned=True)) == bool(fault)


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    config = cuda.TileConfig(128, 64, 8, BF16)
    compiled, emulated_text = cuda.unit_text(config), cuda.unit_text(config, emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    engine = next(p for p in included_sources(compiled) if p.name == "rotary.cuh")
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_kernels_compile_without_spilling(architecture) -> None:
    for config in (cuda.TileConfig(768, 64, 8, BF16), cuda.TileConfig(18, 6, 2, FP32)):
        used = Unit(cuda.unit_text(config), "rotary", architecture, fast=False).resources()
        assert set(used) == {"rotary_forward", "rotary_backward"}
        assert {kernel.spilled for kernel in used.values()} == {0}
        # So many that eight blocks of a kernel fill a multiprocessor.
        assert max(kernel.registers for kernel in used.values()) <= 64
