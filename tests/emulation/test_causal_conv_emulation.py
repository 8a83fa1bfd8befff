"""The causal convolution's kernels, run on a CPU from their own source, against fp64.

Shape legend: b batch, t time, c channels, k taps, e channels of a projection.
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
from elman.ops.causal_conv import cuda, op
from elman.ops.causal_conv.op import Layout
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, rows

pytestmark = pytest.mark.compiler

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LIMITS = {BF16: 4e-3, FP16: 5e-4, FP32: 3e-6}
ALONE, INSIDE = Layout((), (8,), ()), Layout((5, 7), (8, 4, 12), (4, 4))
Library = Callable[[str], ctypes.CDLL]


def stretches(config: cuda.TileConfig, kernel: str, args: cuda.CausalConvArgs) -> list[Stretch]:
    """Return what a kernel may read and write."""
    c, k, size = config.channels, config.taps, config.dtype.itemsize
    steps = args.batch * args.steps
    taps, sums = 4 * c * k, 4 * args.shares * (k + 1) * c
    if kernel == "causal_conv_finish":
        return [
            rows("partial", args.partial, sums),
            rows("dweight", args.dweight, taps, writable=True),
            rows("dbias", args.dbias, 4 * c, writable=True),
        ]
    past = args.batch * (k - 1) * c * size
    found = [
        rows("x", args.x, c * size, (steps, 1), (args.x_stride * size, 0)),
        rows("weight", args.weight, taps),
        rows("bias", args.bias, 4 * c),
        rows("history", args.history, past),
        rows("resets", args.resets, steps),
    ]
    for n, width in enumerate(config.widths):
        found.append(rows("y", getattr(args, f"y{n}"), steps * width * size, writable=True))
        found.append(rows("dy", getattr(args, f"dy{n}"), steps * width * size))
    dx_stride = (args.dx_stride * size, 0)
    found += [
        rows("dx", args.dx, c * size, (steps, 1), dx_stride, writable=True),
        rows("dhistory", args.dhistory, past, writable=True),
        rows("partial", args.partial, sums, writable=True),
    ]
    return [one for one in found if one]


def emulate(
    library: Library, config: cuda.TileConfig, wanted: Sequence[Launch], args: cuda.CausalConvArgs
) -> None:
    """Run kernels one after another."""
    compiled = library(cuda.unit_text(config, emulator.HEADER))
    for one in wanted:
        declare(compiled, stretches(config, one.kernel, args))
        emulator.start(compiled, one, args, 1)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on CPU tensors, with NaN wherever nothing was written."""
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", lambda device: 2)
    emulator.stand_in(monkeypatch.setattr, cuda, emulate)


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int, shift: int = 0) -> Tensor:
    """Return numbers of both signs, ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(torch.Size(shape).numel() + shift, generator=generator)
    return flat.to(dtype)[shift:].view(shape).requires_grad_()


def leaves(
    steps: int,
    layout: Layout = INSIDE,
    taps: int = 4,
    dtype: torch.dtype = BF16,
    *,
    batch: int = 2,
    bias: bool = True,
    history: bool = True,
    shift: int = 0,
) -> list[Tensor | None]:
    """Return projection, taps, bias and history."""
    c = sum(layout.parts)
    return [
        draw((batch, steps, sum(sum(layout, ()))), dtype, 1, shift),
        draw((c, taps), FP32, 2),
        draw((c,), FP32, 3) if bias else None,
        draw((batch, taps - 1, c), dtype, 4) if history else None,
    ]


def everything(
    given: list[Tensor | None], layout: Layout, backend: str, resets_bt: Tensor | None = None
) -> list[Tensor]:
    """Return outputs and gradients; each output has a gradient of its own."""
    if resets_bt is None:
        outputs, history = op.split_conv(*given, layout, silu=True, backend=backend)
    else:
        y_btc, history = op.causal_conv(*given, resets_bt, backend=backend)
        outputs = [y_btc]
    outputs.append(history)
    # Quarters are exact in every dtype.
    pulls = [
        torch.arange(o.numel()).mul(7 + n).remainder(23).sub(11).div(4).view(o.shape).to(o.dtype)
        for n, o in enumerate(outputs)
    ]
    asked = [one for one in given if one is not None]
    return [one.detach() for one in (*outputs, *torch.autograd.grad(outputs, asked, pulls))]


def check(
    given: list[Tensor | None], layout: Layout = INSIDE, resets_bt: Tensor | None = None
) -> None:
    """Compare the kernels with fp64, every tensor by the precision of the sequences."""
    limit = LIMITS[given[0].dtype]
    found = everything(given, layout, "cuda", resets_bt)
    wide = [None if one is None else one.detach().double().requires_grad_() for one in given]
    exact = everything(wide, layout, "reference", resets_bt)
    for n, (one, right) in enumerate(zip(found, exact, strict=True)):
        error = (one.double() - right).norm()
        assert error <= limit * right.norm() + 1e-12, (n, float(error), float(right.norm()))


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 63, 64, 65, 130])
def test_outputs_and_gradients_are_those_of_fp64(steps) -> None:
    check(leaves(steps))


@pytest.mark.parametrize(("taps", "dtype"), [(2, BF16), (3, FP16), (5, FP32)])
def test_every_dtype_and_number_of_taps(taps, dtype) -> None:
    check(leaves(9, taps=taps, dtype=dtype))


@pytest.mark.parametrize(("bias", "history"), [(False, True), (True, False), (False, False)])
def test_without_bias_or_history(bias, history) -> None:
    check(leaves(7, bias=bias, history=history))


@pytest.mark.parametrize(
    "layout", [ALONE, Layout((), (1,), ()), Layout((3,), (5, 6), ()), Layout((), (520,), (8,))]
)
def test_every_layout(layout) -> None:
    check(leaves(6, layout), layout)


def test_rows_share_the_sums_of_the_taps() -> None:
    check(leaves(70, ALONE, batch=9), ALONE)


@pytest.mark.parametrize(("shift", "vector"), [(0, 4), (4, 4), (1, 1)])
def test_tensors_off_a_boundary_get_single_channels(monkeypatch, shift, vector) -> None:
    launches = emulator.note_launches(monkeypatch.setattr, cuda)
    layout = Layout((4,), (8, 8), (4,))
    check(leaves(5, layout, shift=shift), layout)
    assert {config.vector for config, _ in launches} == {vector}


@pytest.mark.parametrize("steps", [1, 2, 67])
def test_resets_cut_what_came_before(steps) -> None:
    generator = torch.Generator().manual_seed(steps)
    resets_bt = torch.rand(3, steps, generator=generator) < 0.3
    resets_bt[0, 0] = True
    resets_bt[1, -1] = True
    check(leaves(steps, ALONE, batch=3), ALONE, resets_bt)


def test_what_is_not_finite_stays_before_a_reset() -> None:
    given = leaves(6, ALONE, history=False)
    with torch.no_grad():
        given[0][:, 2] = torch.inf
    resets_bt = torch.tensor([[False, False, False, True, False, False]]).repeat(2, 1)
    y_btc, _ = op.causal_conv(*given, resets_bt, backend="cuda")
    assert y_btc[:, 3:].isfinite().all()
    (dx,) = torch.autograd.grad(y_btc[:, 3:].sum(), given[0])
    assert dx.isfinite().all()
    assert not dx[:, :3].any()


def test_a_piece_that_nothing_reads_has_no_gradient() -> None:
    given = leaves(5)
    pieces, _ = op.split_conv(*given, INSIDE, silu=True, backend="cuda")
    (found,) = torch.autograd.grad(pieces[0].sum(), given[0])
    assert torch.equal(found[..., :5], torch.ones(2, 5, 5, dtype=BF16))
    assert not found[..., 5:].any()


def test_an_input_that_is_not_contiguous() -> None:
    given = leaves(5)
    given[0] = given[0].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    check(given)


def test_no_rows_need_no_kernel() -> None:
    check(leaves(3, batch=0))


# ---- planted faults

FAULTS = {
    "one step too many": ("if (step >= lane.end) break;", "if (step > lane.end) break;"),
    "taps in the other order": (
        "fused(w[j][i], past[j][i], u[i])",
        "fused(w[K - 2 - j][i], past[j][i], u[i])",
    ),
    "inputs that do not move on": ("past[K - 2][i] = x[i];", "past[0][i] = x[i];"),
    "history of the row before": ("((row * (K - 1) + (K - 1 + step))", "((row * (K - 1) + step)"),
    "history left out": ("else if (a.history)", "else if (false)"),
    "the next part's rows": ("(column - G::W0)", "column"),
    "one chunk short": ("chunk < a.chunks", "chunk + 1 < a.chunks"),
    "sums of the next chunk, too": ("step < lane.end);", "true);"),
    "inputs of the chunk's end without the next one": (
        "reach = lane.end + (K - 1),",
        "reach = lane.end,",
    ),
    "one share too few": ("share < a.shares; share +=", "share + 1 < a.shares; share +="),
    "the steps at hand again": ("now = next;", ""),
    "the same steps ahead": ("next.read(lane, from + AHEAD, end)", "next.read(lane, from, end)"),
    "gradient of the step before": (
        "const long long at = step - (K - 1);",
        "const long long at = step - K;",
    ),
    "slope of the gate alone": ("gate + u[i] * gate * (1.0f - gate)", "gate"),
    "bias of a tap": ("if (tap < G::K)", "if (tap <= G::K)"),
    "no gradient of the history": ("at < 0 && a.dhistory", "false"),
}
RESET_FAULTS = {
    "inputs before a reset": ("if (lane.reset_at(step)) lane.forget();\n      float", "float"),
    "gradients before a reset": ("K - 1 - j > since", "false"),
    "a reset before the chunk": ("if (reset_at(step)) forget();", ""),
}


def noticed(folder: Path, monkeypatch, edit: tuple[str, str] | None, run: Callable) -> bool:
    """Return whether a run notices a fault in the source."""
    library = emulator.faulty(folder, "cuda/causal_conv/causal_conv.cuh", edit)
    monkeypatch.setattr(cuda, "LAUNCH", lambda *call: emulate(library, *call[:3]))
    return emulator.noticed(run)


@pytest.mark.parametrize(
    "fault", ["", *(pytest.param(one, marks=pytest.mark.slow) for one in FAULTS)]
)
def test_a_planted_fault_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    def run() -> None:
        check(leaves(66, Layout((4,), (8, 4, 12), (4,)), batch=20), Layout((4,), (8, 4, 12), (4,)))

    assert noticed(tmp_path, monkeypatch, FAULTS.get(fault), run) == bool(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", RESET_FAULTS)
def test_a_fault_of_resets_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    resets_bt = torch.zeros(2, 70, dtype=torch.bool)
    resets_bt[0, [1, 30, 63]] = resets_bt[1, [62, 65]] = True

    def run() -> None:
        check(leaves(70, ALONE), ALONE, resets_bt)

    assert noticed(tmp_path, monkeypatch, RESET_FAULTS[fault], run)


# ---- compiled by NVRTC


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    config = cuda.TileConfig(4, (8, 0, 0), 4, True, False, BF16)
    compiled, emulated_text = cuda.unit_text(config), cuda.unit_text(config, emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    engine = next(p for p in included_sources(compiled) if p.name == "causal_conv.cuh")
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_kernels_compile_without_spilling(architecture) -> None:
    for config in (
        cuda.TileConfig(4, (1792, 128, 128), 4, True, False, BF16),
        cuda.TileConfig(4, (768, 768, 1536), 4, True, True, FP32),
        cuda.TileConfig(3, (37, 0, 0), 1, False, True, FP16),
    ):
        fast = config.dtype != FP32
        used = Unit(
            cuda.unit_text(config), "causal convolution", architecture, fast=fast
        ).resources()
        assert set(used) == {f"causal_conv_{name}" for name in ("forward", "backward", "finish")}
        assert {kernel.spilled for kernel in used.values()} == {0}
