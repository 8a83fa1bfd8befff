"""The spectral-norm kernels, run on a CPU from their own source, against fp64.

Shape legend: r rows and c columns of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.kernels.nvrtc import Unit
from elman.kernels.sources import included_sources
from elman.layers import E0, E1
from elman.models.blocks import spectral_norm
from elman.models.blocks.spectral_norm import SpectralNorm
from elman.ops.spectral_norm import cuda, op
from tests.emulation import emulator
from tests.emulation.stretches import declare, rows

pytestmark = pytest.mark.compiler

LIMIT = 2e-6


def emulate(
    library: emulator.Library,
    config: cuda.TileConfig,
    wanted: Sequence[Launch],
    args: cuda.SpectralNormArgs,
    seed: int = 1,
) -> None:
    """Run both kernels of a pass, one after the other."""
    compiled = library(cuda.unit_text(config, emulator.HEADER))
    matrix, backward = args.rows * config.width * 4, bool(args.dnormed)
    touched = [
        rows("weight", args.weight, matrix),
        rows("u", args.u, args.rows * 4),
        rows("v", args.v, config.width * 4),
        rows("dnormed", args.dnormed, matrix),
        rows("parts", args.parts, args.blocks * 4, writable=not backward),
        rows("dparts", args.dparts, args.blocks * 4, writable=True),
        rows("out", args.out, matrix, writable=True),
    ]
    declare(compiled, [one for one in touched if one])
    for one in wanted:
        emulator.start(compiled, one, args, seed)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on CPU tensors, with NaN wherever nothing was written."""
    emulator.stand_in(monkeypatch.setattr, cuda, emulate)


def build(shape: tuple[int, int]) -> tuple[SpectralNorm, Tensor]:
    """Return a norm after one power iteration, and a matrix that is not symmetric, fp32."""
    torch.manual_seed(4)
    weight_rc = torch.randn(shape, requires_grad=True)
    norm = SpectralNorm(shape[0], 0.9, columns=shape[1])
    norm.reset(weight_rc)
    return norm, weight_rc


def check(norm: SpectralNorm, weight_rc: Tensor) -> None:
    """Compare the result and the gradient of a call with autograd's in fp64."""
    wide_rc = weight_rc.detach().double().requires_grad_()
    pull_rc = torch.randn(weight_rc.shape)
    found_rc = norm(weight_rc, "cuda")
    exact = SpectralNorm(*norm.u.shape, norm.radius, columns=len(norm.v), dtype=torch.float64)
    exact.load_state_dict(norm.state_dict())
    wanted_rc = exact(wide_rc)
    (found_gradient,) = torch.autograd.grad(found_rc, weight_rc, pull_rc)
    (wanted_gradient,) = torch.autograd.grad(wanted_rc, wide_rc, pull_rc.double())
    for one, right in ((found_rc, wanted_rc), (found_gradient, wanted_gradient)):
        assert one.dtype == torch.float32
        assert (one.double() - right).norm() < LIMIT * right.norm()


@pytest.mark.parametrize("shape", [(1, 3), (6, 6), (7, 5), (24, 24), (40, 100), (300, 130)])
def test_result_and_gradient_are_those_of_fp64(shape: tuple[int, int]) -> None:
    check(*build(shape))


def test_more_vectors_than_the_threads_of_the_most_blocks(monkeypatch) -> None:
    monkeypatch.setattr(cuda, "_MOST_BLOCKS", 3)
    check(*build((70, 64)))


def test_the_size_may_be_below_zero() -> None:
    norm, weight_rc = build((12, 16))
    norm.u.neg_()
    check(norm, weight_rc)


def test_a_matrix_of_zeros_has_the_gradient_of_pytorch() -> None:
    norm, weight_rc = build((8, 8))
    zeros_rc = torch.zeros_like(weight_rc, requires_grad=True)
    pull_rc = torch.randn(8, 8)
    gradients = [
        torch.autograd.grad(norm(zeros_rc, backend), zeros_rc, pull_rc)[0]
        for backend in ("reference", "cuda")
    ]
    torch.testing.assert_close(*gradients)


def test_a_matrix_off_a_boundary_or_transposed() -> None:
    norm, _ = build((8, 8))
    shifted = torch.randn(65)[1:].view(8, 8).requires_grad_()
    check(norm, shifted)
    check(norm, torch.randn(8, 8).T.requires_grad_())


def test_another_dtype_has_no_kernel() -> None:
    norm, weight_rc = build((8, 8))
    assert op.in_a_kernel(weight_rc, norm.u, norm.v, "cuda")
    assert not op.in_a_kernel(weight_rc, norm.u, norm.v, "triton")
    assert not op.in_a_kernel(weight_rc.bfloat16(), norm.u, norm.v, "cuda")


def test_compilers_see_the_operators_of_pytorch() -> None:
    norm, weight_rc = build((8, 8))
    torch._dynamo.reset()
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(weight_rc, "cuda"), norm(weight_rc))


@pytest.mark.parametrize("cell", [E0, E1])
def test_a_layer_computes_the_same_with_the_kernels(monkeypatch, cell) -> None:
    torch.manual_seed(2)
    layer, x_btd = cell(24, recurrent_norm="spectral"), torch.randn(2, 5, 24)
    found, decide = [], op.in_a_kernel
    launches = emulator.note_launches(monkeypatch.setattr, cuda)
    for backend in ("reference", "cuda"):
        monkeypatch.setattr(spectral_norm, "in_a_kernel", lambda *a, b=backend: decide(*a[:3], b))
        layer.zero_grad()
        layer(x_btd)[0].square().sum().backward()
        found.append(layer.recurrent.grad.clone())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    ways = ("size", "forward", "along", "backward")
    assert [kernel for _, kernel in launches] == [f"spectral_norm_{way}" for way in ways]


# ---- planted faults

KERNELS, SUMS = "cuda/spectral_norm/spectral_norm.cuh", "cuda/common/sums.cuh"
FAULTS = {
    "vectors that are not there": (KERNELS, "i < vectors;", "i <= vectors;"),
    "the last vector is left out": (KERNELS, "i < vectors;", "i < vectors - 1;"),
    "the next number": (
        KERNELS,
        "(int)(i % G::VECTORS) * V, i * V",
        "(int)(i % G::VECTORS), i * V",
    ),
    "a block's part is left out": (KERNELS, "thread_index() < a.blocks;", "thread_index() > 0;"),
    "both sums in one place": (KERNELS, "sums + turn * G::WARPS", "sums"),
    "half of the lanes": (SUMS, "mask < 32", "mask < 16"),
    "one warp is left out": (SUMS, "warp < WARPS;", "warp < WARPS - 1;"),
    "sums are read before they are there": (SUMS, "    sync_block();\n", ""),
    "the factor has no gradient": (KERNELS, "g[i] - u * v[i]", "g[i]"),
    "the size has no sign": (KERNELS, "size < 0.0f ? -along :", "size < 0.0f ? along :"),
    "the size below zero": (KERNELS, "(size < 0.0f ? -size : size)", "size"),
}


QUICK = ("", "vectors that are not there", "both sums in one place", "the size has no sign")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in ("", *FAULTS)],
)
def test_a_planted_fault_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    file, *edit = FAULTS.get(fault, (KERNELS,))
    library = emulator.faulty(tmp_path, file, tuple(edit) or None)
    norm, weight_rc = build((70, 64))
    norm.u.neg_()

    def launch(seed: int) -> Callable[..., None]:
        return lambda *call: emulate(library, *call[:3], seed=seed)

    def run() -> None:
        for seed in (1, 2, 3):
            monkeypatch.setattr(cuda, "LAUNCH", launch(seed))
            check(norm, weight_rc)

    assert emulator.noticed(run) == bool(fault)


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    config = cuda.TileConfig(40, 4)
    compiled, emulated_text = cuda.unit_text(config), cuda.unit_text(config, emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    engine = next(p for p in included_sources(compiled) if p.name == "spectral_norm.cuh")
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_compile_without_spilling(architecture: str) -> None:
    for config in (cuda.TileConfig(1280, 4), cuda.TileConfig(37, 1)):
        used = Unit(cuda.unit_text(config), "spectral norm", architecture, fast=False).resources()
        assert {kernel.spilled for kernel in used.values()} == {0}
        # So many that eight blocks of a kernel fill a multiprocessor.
        assert max(kernel.registers for kernel in used.values()) <= 64
