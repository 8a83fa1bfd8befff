"""The head-norm kernels, run on a CPU from their own source, against fp64.

Shape legend: b batch, t time, h heads, v width of a head, i = h v channels of the gate, c channels
of a projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.launching import Launch
from elman.kernels.nvrtc import Unit
from elman.kernels.sources import included_sources
from elman.layers import E88, M2RNN
from elman.models.cells.matrix_state import e88_layer, m2rnn_layer
from elman.ops.head_norm import cuda, op
from elman.ops.head_norm.custom_op import HEAD_NORM
from tests.emulation import emulator
from tests.emulation.stretches import declare, rows
from tests.emulation.test_add_norm_emulation import Names

pytestmark = pytest.mark.compiler

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LIMITS = {BF16: 4e-3, FP16: 5e-4, FP32: 2e-6}
ALL = [f"head_norm_{name}" for name in ("forward", "backward", "finish")]


def emulate(
    library: emulator.Library,
    config: cuda.TileConfig,
    wanted: Sequence[Launch],
    args: cuda.HeadNormArgs,
    seed: int = 1,
) -> None:
    """Run kernels one after the other."""
    compiled = library(cuda.unit_text(config, emulator.HEADER))
    g = config
    y, out, partial = (g.width * one.itemsize for one in (g.y, g.out, FP32))
    gate, steps = g.heads * g.width * g.gate.itemsize, (args.rows // g.heads, 1)
    touched = [
        rows("y", args.y, args.rows * y),
        rows("gain", args.gain, partial),
        rows("gate", args.gate, gate, steps, (args.stride * g.gate.itemsize, 0)),
        rows("dout", args.dout, args.rows * out),
        rows("out", args.out, args.rows * out, writable=True),
        rows("rstd", args.rstd, args.rows * 4, writable=True),
        rows("dy", args.dy, args.rows * y, writable=True),
        rows("dgate", args.dgate, steps[0] * gate, writable=True),
        rows("partial", args.partial, args.blocks * partial, writable=True),
        rows("dgain", args.dgain, partial, writable=True),
    ]
    declare(compiled, [one for one in touched if one])
    for one in wanted:
        emulator.start(compiled, one, args, seed)


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> list[tuple[cuda.TileConfig, str]]:
    """Let the kernels run on CPU tensors, with NaN wherever nothing was written; return them."""
    emulator.stand_in(monkeypatch.setattr, cuda, emulate)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", lambda device: 1)
    return emulator.note_launches(monkeypatch.setattr, cuda)


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, shift: int = 0) -> Tensor:
    """Return numbers of both signs, ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(torch.Size(shape).numel() + shift, generator=generator)
    return flat.to(dtype)[shift:].view(shape).requires_grad_()


def leaves_of(
    shape: tuple[int, ...],
    y: torch.dtype = BF16,
    gate: torch.dtype | None = BF16,
    *,
    before: int = 8,
    shift: int = 0,
) -> list[Tensor]:
    """Return reads, gain, and a projection whose last channels are the gate."""
    *steps, heads, width = shape
    leaves = [draw(shape, y, shift=shift), draw((width,), FP32, 1, shift)]
    if gate is None:
        return leaves
    return [*leaves, draw((*steps, before + heads * width), gate, 2, shift)]


def everything(
    leaves: list[Tensor], act: str, dtype: torch.dtype, backend: str
) -> dict[str, Tensor]:
    """Return the output and all gradients."""
    y, gain, *projected = leaves
    gate = projected[0][..., -y.shape[-2] * y.shape[-1] :] if projected else None
    out = op.head_norm(y, gain, gate, act, dtype=dtype, backend=backend)
    # Quarters are exact in every dtype.
    pull = torch.arange(out.numel()).mul(7).remainder(23).sub(11).div(4).view(out.shape)
    gradients = torch.autograd.grad(out, leaves, pull.to(out.dtype))
    named = dict(zip(("d y", "d gain", "d gate"), gradients, strict=False))
    return {"out": out.detach(), **named}


def check(leaves: list[Tensor], act: str = "silu", dtype: torch.dtype = BF16) -> None:
    """Compare the kernels with fp64, every tensor by the precision of its dtype."""
    found = everything(leaves, act, dtype, "cuda")
    wide = [one.detach().double().requires_grad_() for one in leaves]
    exact = everything(wide, act, torch.float64, "reference")
    least = LIMITS[leaves[2].dtype] if len(leaves) > 2 else 0  # the gate's factor is rounded
    for name, one in found.items():
        error = (one.double() - exact[name]).norm()
        limit = max(least, LIMITS[one.dtype])
        assert error <= limit * exact[name].norm() + 1e-12, (name, float(error))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 3),
        (2, 3, 2, 8),
        (1, 1, 4, 16),
        (2, 40, 3, 16),
        (2, 3, 2, 24),
        (3, 5, 3, 37),
        (1, 7, 2, 127),
        (1, 5, 2, 128),
    ],
)
@pytest.mark.parametrize("act", ["silu", "none"])
def test_outputs_and_gradients_are_those_of_fp64(shape, act, used) -> None:
    check(leaves_of(shape, gate=None if act == "none" else BF16), act)
    assert [kernel for _, kernel in used] == ALL


@pytest.mark.parametrize("width", [16, 13])
@pytest.mark.parametrize(
    ("y", "gate", "out"),
    [(BF16, BF16, FP32), (FP16, FP16, FP16), (FP32, FP32, FP32), (FP32, BF16, BF16)],
)
def test_every_dtype(y, gate, out, width) -> None:
    check(leaves_of((3, 5, 2, width), y, gate), "sigmoid", out)


@pytest.mark.parametrize("act", ["silu", "sigmoid", "none"])
@pytest.mark.parametrize(("y", "out"), [(BF16, BF16), (BF16, FP32), (FP32, BF16)])
def test_numbers_are_rounded_where_pytorch_rounds_them(act, y, out) -> None:
    """So the check before a run compares sums that nearly cancel with the same sums."""
    leaves = leaves_of((3, 23, 4, 16), y, None if act == "none" else BF16)
    found, plain = (everything(leaves, act, out, backend) for backend in ("cuda", "reference"))
    for name, one in found.items():
        apart = (one.double() - plain[name].double()).norm() / plain[name].double().norm()
        # A sum in fp32 in another order rounds few numbers to the other side.
        assert apart <= (2e-6 if one.dtype == FP32 else 2e-4), (name, float(apart))


def test_more_rows_than_blocks_hold_at_a_time(used) -> None:
    """The gain's gradient is a sum over the rows of each block, then over the blocks."""
    check(leaves_of((2, 200, 4, 8), FP32, FP32), dtype=FP32)
    config = used[0][0]
    assert config.blocks * config.rows < 2 * 200 * 4
    check(leaves_of((9, 2, 3, 128), FP32, FP32), dtype=FP32)
    check(leaves_of((5, 30, 1, 128), FP32, None), "none", FP32)


@pytest.mark.parametrize("width", [600, 1001, 1024])
def test_rows_as_long_as_those_of_all_heads_of_a_layer(width, used) -> None:
    check(leaves_of((1, 20, 1, width), gate=None), "none")
    assert len(used) == 3


def test_longer_rows_are_pytorchs(used) -> None:
    check(leaves_of((1, 2, 1, 1025), gate=None), "none", FP32)
    assert used == []


@pytest.mark.parametrize(
    ("before", "shift", "vector"), [(8, 0, 8), (4, 0, 4), (8, 8, 8), (2, 0, 2), (8, 1, 1)]
)
def test_what_lies_off_a_boundary_is_moved_in_smaller_vectors(before, shift, vector, used) -> None:
    check(leaves_of((2, 3, 2, 16), before=before, shift=shift))
    assert used[0][0].vector == vector


def test_reads_and_gradients_that_are_not_contiguous() -> None:
    y, gain, projected = leaves_of((3, 4, 2, 16))
    turned = y.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    check([turned, gain, projected])
    found = op.head_norm(y, gain, projected[..., 8:], "silu", dtype=FP32, backend="cuda")
    (of_sum,) = torch.autograd.grad(found.sum(-2).sum(), gain)
    assert of_sum.isfinite().all()


def test_rows_of_zeros_and_of_numbers_below_eps() -> None:
    y, gain, projected = leaves_of((2, 3, 2, 16), FP32, FP32)
    small = torch.cat([y.detach()[:1] * 2**-9, torch.zeros_like(y[:1])])
    check([small.requires_grad_(), gain, projected], dtype=FP32)


def test_a_gate_far_from_zero_stays_finite() -> None:
    y, gain = leaves_of((1, 1, 1, 8), FP32, None)
    gate = torch.tensor([-1e4, -90.0, -20.0, 0.0, 20.0, 90.0, 1e4, 1.0]).view(1, 1, 8)
    for act in ("silu", "sigmoid"):
        check([y, gain, gate.clone().requires_grad_()], act, FP32)


def test_another_eps() -> None:
    y, gain = leaves_of((2, 3, 2, 16), FP32, None)
    small = y.detach() * 2**-9
    found, plain = (
        op.head_norm(small, gain, dtype=FP32, backend=backend, eps=torch.finfo(FP32).eps)
        for backend in ("cuda", "reference")
    )
    torch.testing.assert_close(found, plain)
    usual = op.head_norm(small, gain, dtype=FP32, backend="cuda")
    assert (found - usual).norm() > 0.5 * found.norm()


def test_no_rows_need_no_kernel(used) -> None:
    leaves = leaves_of((0, 3, 2, 16))
    assert everything(leaves, "silu", BF16, "cuda")["out"].shape == (0, 3, 2, 16)
    assert used == []


def test_a_second_run_gives_the_same_bits() -> None:
    leaves = leaves_of((2, 60, 3, 16))
    first, second = (everything(leaves, "silu", BF16, "cuda") for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_step_at_a_time_gives_the_bits_of_all_at_once() -> None:
    """So a text is written with the values of training."""
    y, gain, projected = (one.detach() for one in leaves_of((2, 5, 3, 16)))
    how = {"dtype": BF16, "backend": "cuda"}
    whole = op.head_norm(y, gain, projected[..., 8:], "silu", **how)
    for t in range(5):
        step = slice(t, t + 1)
        one = op.head_norm(y[:, step], gain, projected[:, step, 8:], "silu", **how)
        assert torch.equal(one, whole[:, step])


# ---- what transforms get


def gated(y: Tensor, gain: Tensor, gate: Tensor) -> Tensor:
    return op.head_norm(y, gain, gate, "silu", dtype=FP32, backend="cuda")


def test_a_second_derivative_is_refused() -> None:
    y, gain, gate = leaves_of((2, 3, 2, 8), FP32, FP32, before=0)
    (dy,) = torch.autograd.grad(gated(y, gain, gate).square().sum(), y, create_graph=True)
    with pytest.raises(UserError, match="kernels have no second derivative"):
        torch.autograd.grad(dy.sum(), gain)


@pytest.mark.parametrize("act", ["silu", "none"])
def test_opcheck(act) -> None:
    y, gain, *gate = leaves_of((2, 3, 2, 8), gate=None if act == "none" else BF16, before=0)
    given = (y, gain, gate[0] if gate else None)
    torch.library.opcheck(HEAD_NORM.operator, (*given, act, 1e-5, BF16))
    out, rstd = (one.detach() for one in HEAD_NORM.operator(*given, act, 1e-5, BF16))
    saved = [None if one is None else one.detach() for one in given]
    torch.library.opcheck(HEAD_NORM.backward_operator, (out, *saved, rstd, act, 1e-5))


def test_transforms_see_the_operators_of_pytorch(used) -> None:
    leaves = [one.detach() for one in leaves_of((2, 3, 2, 8), FP32, FP32, before=0)]
    plain = op.head_norm(*leaves, "silu", dtype=FP32, backend="reference")
    y, gain, gate = leaves
    found = torch.func.vmap(gated, in_dims=(0, None, 0))(y, gain, gate)
    torch.testing.assert_close(found, plain)
    _, tangent = torch.func.jvp(lambda y: gated(y, gain, gate), (y,), (y,))
    assert tangent.shape == y.shape
    assert used == []


@pytest.mark.parametrize("act", ["silu", "none"])
def test_who_looks_sees_an_operator_with_the_same_bits(act) -> None:
    """So does the bench, which times the kernels of a step."""
    leaves = leaves_of((2, 3, 2, 16), gate=None if act == "none" else BF16)
    alone = everything(leaves, act, BF16, "cuda")
    with Names() as names:
        watched = everything(leaves, act, BF16, "cuda")
    assert {"elman::head_norm", "elman::head_norm_backward"} <= names.seen
    assert all(torch.equal(alone[name], watched[name]) for name in alone)


def test_one_graph_of_torch_compile_gives_the_same_bits() -> None:
    leaves = leaves_of((2, 3, 2, 8), FP32, FP32, before=0)
    torch._dynamo.reset()
    results = []
    for step in (gated, torch.compile(gated, fullgraph=True, backend="aot_eager")):
        out = step(*leaves)
        results.append([out, *torch.autograd.grad(out.sin().sum(), leaves)])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(("name", "at"), [("gain", 1), ("gate", 2)])
def test_another_shape_is_an_error(name, at) -> None:
    leaves = leaves_of((2, 3, 2, 8), before=0)
    leaves[at] = leaves[at][..., 1:]
    with pytest.raises(ValueError, match=f"{name} of head_norm: shape"):
        gated(*leaves)


# ---- in layers


NORMED: dict[str, tuple[Any, dict[str, Any], list[int]]] = {
    "e88": (E88, {"n_heads": 2, "n_state": 4}, [1]),
    "gated": (E88, {"n_heads": 2, "n_state": 4, "use_gate": True}, [2]),
    "sigmoid": (
        E88,
        {"n_heads": 2, "n_state": 4, "use_gate": True, "gate_activation": "sigmoid"},
        [2],
    ),
    "sum": (E88, {"n_heads": 2, "n_state": 4, "use_gate": True, "head_mix": "sum"}, [2]),
    "convolved": (E88, {"n_heads": 2, "n_state": 4, "use_gate": True, "use_conv": True}, [2]),
    "gate alone behind the convolution": (
        E88,
        {
            "n_heads": 2,
            "n_state": 4,
            "use_gate": True,
            "use_conv": True,
            "decay_mode": "constant",
        },
        [2],
    ),
    "m2rnn": (M2RNN, {"n_heads": 2, "n_state": 4}, [1]),
}


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("carried", [False, True])
def test_a_layer_computes_the_same_with_the_kernels(name, carried, monkeypatch, used) -> None:
    kind, options, heads = NORMED[name]
    torch.manual_seed(3)
    layer = kind(8, **options, use_output_norm=True, backend="reference")
    torch.nn.init.normal_(layer.norm_gain)
    x_btd = torch.randn(2, 5, 8, requires_grad=True)
    state = layer(torch.randn(2, 4, 8))[1] if carried else None
    state = None if state is None else {key: part.detach() for key, part in state.items()}
    found = []
    norm, module = op.head_norm, m2rnn_layer if kind is M2RNN else e88_layer
    for backend in ("reference", "cuda"):
        on_backend = lambda *a, n=backend, **k: norm(*a, **{**k, "backend": n})  # noqa: E731
        monkeypatch.setattr(module, "head_norm", on_backend)
        assert used == []
        y_btd = layer(x_btd, state)[0]
        gradients = torch.autograd.grad(y_btd.square().sum(), [x_btd, *layer.parameters()])
        found.append([y_btd, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert [kernel for _, kernel in used] == ALL
    assert [used[0][0].heads] == [1 if n == 1 else 2 for n in heads]


# ---- planted faults

FAULTS = {
    "rows that are not there": (
        "row < a.rows;\n  float y[N]",
        "true;\n  float y[N]",
    ),
    "rows of the backward pass that are not there": (
        "row < a.rows;\n    float n[N]",
        "true;\n    float n[N]",
    ),
    "columns that are not there": ("if (there && at < G::W) {", "if (there) {"),
    "next number": ("(chunk * G::LANES + lane) * V;", "(chunk * G::LANES + lane) * V + 1;"),
    "a gate without its stride": (
        "row / G::HEADS * a.stride + row % G::HEADS * G::W",
        "row * G::W",
    ),
    "the first head's gate for all": ("+ row % G::HEADS * G::W", "+ 0"),
    "half of a team": ("mask = 1; mask < G::LANES;", "mask = 2; mask < G::LANES;"),
    "no eps": ("team.mean(squares) + (float)a.eps", "team.mean(squares)"),
    "gradient without the mean": ("dn[i] - n[i] * mean", "dn[i]"),
    "gate's gradient without the gain": ("n[i] * team.gain[i])) * slope", "n[i])) * slope"),
    "slope without the gate": ("s + silu * (1.0f - s)", "s + silu"),
    "one team's gain": ("mask = G::LANES; mask < 32;", "mask = 32; mask < 32;"),
    "one warp is left out": ("w < G::WARPS;", "w < G::WARPS - 1;"),
    "sums are read before they are there": ("  sync_block();\n", ""),
    "another block's place": ("block_index() * G::W + at", "at"),
    "the first round of rows alone": ("first += a.blocks * G::ROWS", "first = a.rows"),
}

# One fault of each kind, which are planted in every run.
QUICK = ("", "rows that are not there", "the first head's gate for all", "one team's gain")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in ("", *FAULTS)],
)
def test_a_planted_fault_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    library = emulator.faulty(tmp_path, "cuda/head_norm/head_norm.cuh", FAULTS.get(fault))
    monkeypatch.setattr(cuda, "LAUNCH", lambda *call: emulate(library, *call[:3], seed=2))
    y, gain, projected = leaves_of((3, 67, 2, 24), FP32, FP32)
    leaves = [(y.detach() / 64).requires_grad_(), gain, projected]
    assert emulator.noticed(lambda: check(leaves, dtype=FP32)) == bool(fault)


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    config = cuda.TileConfig(16, 32, 8, "silu", BF16, BF16, BF16)
    compiled, emulated_text = cuda.unit_text(config), cuda.unit_text(config, emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    engine = next(p for p in included_sources(compiled) if p.name == "head_norm.cuh")
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_compile_without_spilling(architecture: str) -> None:
    for config in (
        cuda.TileConfig(16, 32, 8, "silu", BF16, BF16, BF16),
        cuda.TileConfig(128, 4, 8, "sigmoid", FP32, FP16, FP32),
        cuda.TileConfig(37, 3, 1, "silu", FP32, FP32, FP32),
        cuda.TileConfig(1024, 1, 8, "none", BF16, BF16, BF16),
    ):
        unit = Unit(cuda.unit_text(config), "head norm", architecture, fast=False)
        kernels = unit.resources()
        assert set(kernels) == set(ALL)
        assert {kernel.spilled for kernel in kernels.values()} == {0}
