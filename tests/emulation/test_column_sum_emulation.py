"""The column-sum kernels, run on a CPU from their own source, against fp64.

Shape legend: b batch, t time, i input channels, o output channels, n rows, c columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from elman.kernels.launching import Launch
from elman.kernels.nvrtc import Unit
from elman.kernels.sources import included_sources
from elman.layers import E1, SLSTM
from elman.ops.column_sum import cuda, op
from tests.emulation import emulator
from tests.emulation.stretches import declare, rows

pytestmark = pytest.mark.compiler

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ALL = ["column_sum_parts", "column_sum_finish"]


def emulate(
    library: emulator.Library,
    config: cuda.TileConfig,
    wanted: Sequence[Launch],
    args: cuda.ColumnSumArgs,
    seed: int = 1,
) -> None:
    """Run both kernels, one after the other."""
    compiled = library(cuda.unit_text(config, emulator.HEADER))
    touched = [
        rows("x", args.x, args.rows * config.width * config.read.itemsize),
        rows("partial", args.partial, args.chunks * config.width * 4, writable=True),
        rows("out", args.out, config.width * 4, writable=True),
    ]
    declare(compiled, [one for one in touched if one])
    for one in wanted:
        emulator.start(compiled, one, args, seed)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on CPU tensors, with NaN wherever nothing was written."""
    emulator.stand_in(monkeypatch.setattr, cuda, emulate)


def draw(shape: tuple[int, ...], dtype: torch.dtype = FP32, shift: int = 0) -> Tensor:
    """Return numbers whose sums do not cancel, ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(sum(shape))
    flat = torch.rand(torch.Size(shape).numel() + shift, generator=generator) + 0.1
    return flat.to(dtype)[shift:].view(shape)


def check(x_nc: Tensor) -> None:
    """Compare a sum with that in fp64: fp32 sums, whatever the dtype of the numbers."""
    exact_c = x_nc.double().sum(0)
    error_c = (cuda.column_sum(x_nc).double() - exact_c).abs() / exact_c
    assert error_c.max() < 1e-6


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 1), BF16),
        ((7, 37), FP32),
        ((64, 8), FP16),
        ((65, 40), BF16),
        ((65, 40), FP32),
        ((500, 264), BF16),
    ],
)
def test_sums_are_those_of_fp64(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check(draw(shape, dtype))


def test_more_rows_than_the_most_chunks_have_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MOST_CHUNKS", 3)
    check(draw((64 * 5 + 1, 24), BF16))


def test_off_a_boundary_numbers_are_read_one_by_one() -> None:
    check(draw((70, 40), BF16, shift=1))


def leaves_of(dtype: torch.dtype) -> list[Tensor]:
    """Return input, matrix and bias."""
    return [(draw(shape, dtype) - 0.6).requires_grad_() for shape in ((3, 5, 16), (24, 16), (24,))]


def everything(leaves: list[Tensor], run: Callable[..., Tensor]) -> list[Tensor]:
    y_bto = run(*leaves)
    pull = torch.arange(y_bto.numel()).remainder(23).sub(11).div(4).view(y_bto.shape)
    return [y_bto.detach(), *torch.autograd.grad(y_bto, leaves, pull.to(y_bto.dtype))]


def test_output_and_gradients_are_those_of_fp64() -> None:
    leaves = leaves_of(FP32)
    exact = everything(
        [one.detach().double().requires_grad_() for one in leaves], functional.linear
    )
    for one, right in zip(
        everything(leaves, functools.partial(op.biased_linear, backend="cuda")), exact, strict=True
    ):
        assert (one.double() - right).norm() < 1e-6 * right.norm()


def test_under_autocast_all_but_the_bias_has_the_bits_of_pytorch() -> None:
    """The bias's gradient is a sum in fp32, which PyTorch rounds to bf16."""
    leaves = leaves_of(FP32)
    with torch.autocast("cpu", BF16):
        *plain, rounded = everything(leaves, functional.linear)
        *found, dbias = everything(leaves, functools.partial(op.biased_linear, backend="cuda"))
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)
    assert dbias.dtype == FP32
    assert (dbias - rounded).norm() < 4e-3 * dbias.norm()


@pytest.mark.parametrize(("frozen", "launched"), [(0, 1), (1, 1), (2, 0)])
def test_a_frozen_leaf_has_no_gradient(monkeypatch, frozen: int, launched: int) -> None:
    leaves, launches = leaves_of(FP32), emulator.note_launches(monkeypatch.setattr, cuda)
    leaves[frozen].requires_grad_(False)
    op.biased_linear(*leaves, backend="cuda").sum().backward()
    assert [one.grad is None for one in leaves] == [n == frozen for n in range(3)]
    assert [kernel for _, kernel in launches] == ALL * launched


def test_compilers_see_the_operators_of_pytorch() -> None:
    leaves = leaves_of(FP32)
    torch._dynamo.reset()
    compiled = torch.compile(op.biased_linear, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*leaves, backend="cuda"), functional.linear(*leaves))


@pytest.mark.parametrize(("kind", "sums"), [(E1, 1), (SLSTM, 2)])
def test_a_layer_computes_the_same_with_the_kernels(
    kind: Any, sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    layer, x_btd = kind(24), torch.randn(2, 5, 24)
    for one in layer.parameters():
        torch.nn.init.normal_(one, std=0.3)
    gradients, launches = {}, emulator.note_launches(monkeypatch.setattr, cuda)
    decide = op._in_a_kernel
    for backend in ("reference", "cuda"):
        monkeypatch.setattr(op, "_in_a_kernel", lambda *a, b=backend: decide(*a[:3], b))
        assert not launches
        outputs = layer(x_btd)[0]
        gradients[backend] = torch.autograd.grad(outputs.square().sum(), layer.parameters())
    assert [kernel for _, kernel in launches] == ALL * sums
    for one, other in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_the_bias_of_several_maps_is_summed_at_once() -> None:
    x_bti, weight_oi, bias_o = leaves_of(FP32)

    def run(bias_o: Tensor, *, backend: str) -> list[Tensor]:
        def maps(bias_o: Tensor) -> Tensor:
            pieces = zip(weight_oi.chunk(3), bias_o.chunk(3), strict=True)
            return torch.cat([functional.linear(x_bti, *piece) for piece in pieces], dim=-1)

        y_bto = op.bias_of_parts(x_bti, weight_oi, bias_o, maps, backend=backend)
        pull = torch.arange(y_bto.numel()).remainder(23).sub(11).div(4).view(y_bto.shape)
        return [y_bto, *torch.autograd.grad(y_bto, (x_bti, weight_oi, bias_o), pull)]

    for one, right in zip(run(bias_o, backend="cuda"), run(bias_o, backend="cpu"), strict=True):
        torch.testing.assert_close(one, right)


# ---- planted faults

FAULTS = {
    "the last row is left out": ("row < end;", "row + 1 < end;"),
    "a row of the next chunk": ("row < end;", "row <= end;"),
    "rows that are not there": (
        "(chunk + 1) * some < a.rows ? (chunk + 1) * some : a.rows",
        "(chunk + 1) * some",
    ),
    "columns that are not there": ("if (column < G::C) {", "{"),
    "one warp is left out": ("w < G::WARPS;", "w < G::WARPS - 1;"),
    "sums are read before they are there": ("  sync_block();\n", ""),
    "another chunk's place": ("(chunk * G::C + first + mine)", "(first + mine)"),
}


QUICK = ("", "rows that are not there", "sums are read before they are there")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in ("", *FAULTS)],
)
def test_a_planted_fault_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    library = emulator.faulty(tmp_path, "cuda/column_sum/column_sum.cuh", FAULTS.get(fault))
    monkeypatch.setattr(cuda, "LAUNCH", lambda *call: emulate(library, *call[:3], seed=2))
    assert emulator.noticed(lambda: check(draw((130, 264), BF16))) == bool(fault)


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    config = cuda.TileConfig(40, 8, BF16)
    compiled, emulated_text = cuda.unit_text(config), cuda.unit_text(config, emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    engine = next(p for p in included_sources(compiled) if p.name == "column_sum.cuh")
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_compile_without_spilling(architecture: str) -> None:
    for config in (cuda.TileConfig(1280, 8, BF16), cuda.TileConfig(37, 1, FP32)):
        used = Unit(cuda.unit_text(config), "column sum", architecture, fast=False).resources()
        assert {kernel.spilled for kernel in used.values()} == {0}
        # So many that eight blocks of a kernel fill a multiprocessor.
        assert used["column_sum_parts"].registers <= 64
