"""The add-and-norm kernel, run on a CPU from its own source, against fp64.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from elman.base.errors import UserError
from elman.kernels.nvrtc import Unit
from elman.kernels.sources import included_sources, source_folder
from elman.layers import E1, Llama
from elman.models import backends
from elman.models.blocks import norm
from elman.models.language_model import LanguageModel
from elman.ops.add_norm import cuda, custom_op, op, reference
from tests.emulation import emulator
from tests.emulation.stretches import declare, of_add_norm

pytestmark = pytest.mark.compiler

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = {
    "bf16": (BF16, BF16),
    "fp16": (FP16, FP16),
    "fp32": (FP32, FP32),
    "fp32-to-bf16": (FP32, BF16),
    "alone": (None, BF16),
}
LIMITS = {BF16: 4e-3, FP16: 5e-4, FP32: 2e-6}
MULTIPROCESSORS = 2
Library = Callable[[str], ctypes.CDLL]


def emulate(
    library: Library,
    text: str,
    wanted: Sequence[cuda.Launch],
    args: cuda.AddNormArgs,
    seed: int = 1,
) -> None:
    """Run kernels one after the other."""
    kernels = library(text.replace("cuda/common/device.cuh", emulator.HEADER))
    declare(kernels, of_add_norm(text, [one.kernel for one in wanted], args))
    for one in wanted:
        emulator.start(kernels, one, args, seed)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operator run on CPU tensors, with NaN wherever nothing was written."""
    monkeypatch.setattr(
        cuda, "LAUNCH", lambda text, wanted, args, _: emulate(emulator.loaded, text, wanted, args)
    )
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", lambda device: MULTIPROCESSORS)
    for owner, make in ((Tensor, "new_empty"), (torch, "empty_like")):
        original = getattr(owner, make)
        monkeypatch.setattr(
            owner, make, lambda *a, original=original, **k: original(*a, **k).fill_(torch.nan)
        )


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the norms take the CPU for a GPU that runs kernels."""
    monkeypatch.setattr(norm, "norm_backend", lambda asked, _: backends.norm_backend(asked, "cuda"))
    monkeypatch.setattr("elman.kernels.driver.cuda_problem", lambda: None)


def draw(shape: tuple[int, ...], branch: torch.dtype | None, shift: int = 0) -> list[Tensor]:
    """Return stream, gain and branch, each ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(3)

    def normal(*size: int, dtype: torch.dtype) -> Tensor:
        flat = torch.randn(torch.Size(size).numel() + shift, generator=generator).to(dtype)
        return flat[shift:].view(size).requires_grad_()

    leaves = [normal(*shape, dtype=FP32), normal(shape[-1], dtype=FP32)]
    return leaves if branch is None else [*leaves, normal(*shape, dtype=branch)]


def everything(
    leaves: list[Tensor], dtype: torch.dtype, backend: str, reached: str = "sum and normed"
) -> dict[str, Tensor]:
    """Return outputs and gradients; the outputs named in ``reached`` have one."""
    stream, gain, *branch = leaves
    given = branch[0] if branch else None
    outputs = op.add_rms_norm(stream, given, gain, dtype, backend=backend)
    # Quarters are exact in every dtype.
    pull = torch.arange(stream.numel()).mul(7).remainder(23).sub(11).div(4).view(stream.shape)
    chosen = [out for out, name in zip(outputs, ("sum", "normed"), strict=True) if name in reached]
    pulls = [pull.to(out.dtype) for out in chosen]
    gradients = torch.autograd.grad(chosen, leaves, pulls, allow_unused=True)
    named = dict(zip(("d stream", "d gain", "d branch"), gradients, strict=False))
    named |= {"sum": outputs[0].detach(), "normed": outputs[1].detach()}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def check(found: dict[str, Tensor], leaves: list[Tensor], **how: str) -> None:
    """Compare with the reference in fp64, every tensor by the precision of its dtype."""
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = everything(wide, torch.float64, "reference", **how)
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        error = (tensor.double() - exact[name]).norm()
        assert error <= LIMITS[tensor.dtype] * exact[name].norm() + 1e-12, (name, error)


SHAPES = {
    "one-number": (2, 3, 1),
    "odd": (2, 4, 37),
    "one-vector": (3, 3, 8),
    "one-row": (1, 1, 37),
    "rows-no-multiple-of-the-blocks": (5, 7, 40),
    "several-warps": (2, 2, 1536),
    "several-warps-odd": (1, 3, 601),
    "too-long-for-registers": (1, 37, 4100),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_outputs_and_gradients_are_those_of_fp64(shape) -> None:
    leaves = draw(shape, BF16)
    found = everything(leaves, BF16, "cuda")
    assert (found["sum"].dtype, found["normed"].dtype) == (FP32, BF16)
    check(found, leaves)


@pytest.mark.parametrize(
    ("name", "width"), [*((name, 40) for name in DTYPES), ("fp16", 37), ("fp32", 37)]
)
def test_every_dtype(name, width) -> None:
    branch, dtype = DTYPES[name]
    leaves = draw((3, 11, width), branch)
    check(everything(leaves, dtype, "cuda"), leaves)


@pytest.mark.parametrize("reached", ["sum", "normed"])
@pytest.mark.parametrize(("branch", "dtype"), DTYPES.values(), ids=DTYPES)
def test_gradients_of_one_output_alone(reached, branch, dtype) -> None:
    leaves = draw((2, 5, 40), branch)
    check(everything(leaves, dtype, "cuda", reached), leaves, reached=reached)


@pytest.mark.parametrize(("shift", "vector"), [(0, 4), (4, 4), (1, 1)])
def test_tensors_off_a_boundary_get_single_numbers(monkeypatch, shift, vector) -> None:
    used: set[int] = set()
    text = cuda.unit_text
    monkeypatch.setattr(cuda, "unit_text", lambda g: used.add(g.vector) or text(g))
    leaves = draw((2, 5, 40), BF16, shift)
    check(everything(leaves, BF16, "cuda"), leaves)
    assert used == {vector}


def test_tensors_that_are_not_contiguous() -> None:
    turned = [
        leaf.detach().transpose(0, 1) if leaf.dim() > 1 else leaf for leaf in draw((4, 5, 40), BF16)
    ]
    leaves = [leaf.detach().requires_grad_() for leaf in turned]
    assert not leaves[0].is_contiguous()
    check(everything(leaves, BF16, "cuda"), leaves)


def test_no_rows() -> None:
    leaves = draw((0, 3, 40), BF16)
    found = everything(leaves, BF16, "cuda")
    assert torch.equal(found["d gain"], torch.zeros(40))
    assert found["normed"].shape == found["d branch"].shape == (0, 3, 40)


@pytest.mark.parametrize("size", [1e-6, 1e12])
def test_numbers_far_from_one(size) -> None:
    leaves = [(leaf.detach() * size).requires_grad_() for leaf in draw((2, 3, 40), FP32)]
    check(everything(leaves, FP32, "cuda", "normed"), leaves, reached="normed")


def test_gradients_of_an_fp32_branch_are_not_computed_twice() -> None:
    found = everything(draw((2, 3, 40), FP32), BF16, "cuda")
    assert found["d branch"].data_ptr() == found["d stream"].data_ptr()


# ---- operators


@pytest.mark.parametrize("branch", [BF16, FP32, None], ids=["bf16", "fp32", "alone"])
def test_opcheck(branch) -> None:
    stream, gain, *given = draw((2, 3, 8), branch)
    arguments = (stream, given[0] if given else None, gain, BF16, "cuda")
    torch.library.opcheck(custom_op.ADD_NORM.operator, arguments)
    total, normed, rstd = (out.detach() for out in custom_op.ADD_NORM.operator(*arguments))
    total = stream.detach() if branch is None else total
    for dsum in (None, total):
        torch.library.opcheck(
            custom_op.ADD_NORM.backward_operator,
            (dsum, normed, total, rstd, gain.detach(), branch, "cuda"),
        )


def test_a_second_derivative_is_an_error() -> None:
    stream, gain, branch = draw((2, 3, 40), BF16)
    normed = op.add_rms_norm(stream, branch, gain, BF16, backend="cuda")[1]
    (first,) = torch.autograd.grad(normed.float().square().sum(), stream, create_graph=True)
    with pytest.raises(UserError, match="kernels have no second derivative"):
        first.sum().backward()


class Names(TorchDispatchMode):
    """Notes the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("reached", ["sum", "normed", "sum and normed"])
@pytest.mark.parametrize(("branch", "dtype"), DTYPES.values(), ids=DTYPES)
def test_who_looks_sees_an_operator_with_the_same_bits(branch, dtype, reached) -> None:
    leaves = draw((2, 5, 40), branch)
    alone = everything(leaves, dtype, "cuda", reached)
    with Names() as names:
        watched = everything(leaves, dtype, "cuda", reached)
    assert "elman::add_rms_norm" in names.seen
    assert ("elman::add_rms_norm_backward" in names.seen) == ("normed" in reached)
    assert alone.keys() == watched.keys()
    assert all(torch.equal(alone[name], watched[name]) for name in alone)


@pytest.mark.parametrize("alone", [False, True], ids=["added", "alone"])
def test_one_graph_of_torch_compile_gives_the_same_bits(on_a_gpu, alone) -> None:
    stream, _, branch = draw((2, 3, 40), BF16)
    module = norm.RMSNorm(40)
    leaves = [stream, module.weight, *([] if alone else [branch])]
    torch._dynamo.reset()
    results = []
    for step in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        with torch.autocast("cpu", BF16):
            total, normed = step(stream, None if alone else branch)
        loss = (total.sin() + normed.cos()).sum()
        results.append([total, normed, *torch.autograd.grad(loss, leaves)])
    assert results[0][1].dtype == BF16
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    tile_config = cuda.TileConfig(40, 4, BF16, BF16)
    compiled = cuda.unit_text(tile_config)
    emulated_text = cuda.unit_text(tile_config, emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    shared = {p for p in included_sources(emulated_text) if p.parent.name != "emulation"}
    assert shared == {p for p in included_sources(compiled) if p.name != "device.cuh"}
    engine = next(path for path in shared if path.name == "add_norm.cuh")
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize(
    ("tile_config", "architecture"),
    [
        *((cuda.TileConfig(1536, 4, BF16, BF16), f"sm_{n}") for n in (80, 90, 100, 120)),
        (cuda.TileConfig(1537, 1, BF16, BF16), "sm_90"),
        (cuda.TileConfig(5000, 4, FP32, BF16), "sm_90"),
    ],
    ids=lambda part: part if isinstance(part, str) else f"{part.width}",
)
def test_the_kernel_compiles_without_spilling(tile_config, architecture) -> None:
    unit = Unit(cuda.unit_text(tile_config), "add and norm", architecture, fast=False)
    used = unit.resources()
    assert set(used) == {f"add_norm_{name}" for name in ("forward", "backward", "finish")}
    assert {kernel.spilled for kernel in used.values()} == {0}
    # So many that a multiprocessor has the blocks at a time that the grid counts on.
    most = 65536 // (tile_config.blocks * tile_config.warps * 32)
    assert max(kernel.registers for kernel in used.values()) <= most


# ---- planted faults

FAULTS = {
    "sums of the row before": ("turn ^= 1;", ""),
    "a number too far": (
        "const int at = column(tile, chunk);",
        "const int at = column(tile, chunk) + 1;",
    ),
    "one block too few": ("row < count;", "row < count - 1;"),
    "number beyond a row": ("if (at < G::D) {", "if (true) {"),
    "number written beyond a row": ("if (at < G::D) store", "store"),
    "column that is not there": ("  if (column < COLUMNS) {", "  {"),
    "column that is written": (
        "if (warp > 0 || column >= COLUMNS) return;",
        "if (warp > 0) return;",
    ),
    "one warp too few": ("warp < WARPS; warp++", "warp < WARPS - 1; warp++"),
}


SUMS = "cuda/common/sums.cuh"
SOURCES = ("cuda/add_norm/add_norm.cuh", SUMS)


def sources() -> dict[str, tuple[str, str]]:
    """Return a file of the kernel's source with each fault, and the name of the file."""
    whole = {name: (source_folder() / name).read_text() for name in SOURCES}
    sums = whole[SUMS]
    barriers = list(re.finditer(r"sync_block\(\);", sums))
    assert len(barriers) == 2
    found = {
        f"barrier {n} left out": (SUMS, sums[: m.start()] + sums[m.end() :])
        for n, m in enumerate(barriers, 1)
    }
    for what, (old, new) in FAULTS.items():
        (name,) = (name for name, text in whole.items() if old in text)
        found[what] = (name, whole[name].replace(old, new))
    return found


# One fault of each kind, which are planted in every run.
QUICK = (
    "",
    "barrier 1 left out",
    "sums of the row before",
    "number beyond a row",
    "one warp too few",
)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault or "none", marks=[pytest.mark.slow] * (fault not in QUICK))
        for fault in ["", *sources()]
    ],
)
def test_a_planted_fault_is_noticed(fault, monkeypatch, tmp_path: Path) -> None:
    root = tmp_path / "csrc"
    shutil.copytree(source_folder(), root)
    if fault:
        name, text = sources()[fault]
        (root / name).write_text(text)

    @functools.cache
    def planted(text: str) -> ctypes.CDLL:
        emulator.compile_unit(text, root, tmp_path / "unit.so")
        return ctypes.CDLL(str(tmp_path / "unit.so"))

    leaves = draw((5, 7, 600), BF16)
    noticed = False
    for seed in (1, 2, 3):
        monkeypatch.setattr(
            cuda,
            "LAUNCH",
            lambda text, wanted, args, _, seed=seed: emulate(planted, text, wanted, args, seed),
        )
        try:
            check(everything(leaves, BF16, "cuda"), leaves)
        except (emulator.FaultError, AssertionError):
            noticed = True
    assert noticed == bool(fault)


# ---- models


def model(backend: str) -> LanguageModel:
    """Return a model with a layer that has norms of its own between two that have none."""
    torch.manual_seed(5)
    plain = "torch" if backend == "reference" else backend
    llama = Llama(24, head_dim=8, mlp_width=16, backend=plain)
    layers = [E1(24), llama, E1(24)]
    made = LanguageModel(24, layers, backend=backend)
    with torch.no_grad():
        made.embedding.normal_()
        for gain in (*made.norms.parameters(), *made.final_norm.parameters()):
            gain.normal_()
    return made


def results(made: LanguageModel, tokens: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", BF16):
        loss, _ = made.loss(tokens)
    return [loss, *torch.autograd.grad(loss, list(made.parameters()))]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "recomputed"])
def test_a_language_model_computes_the_same_with_the_kernel(
    on_a_gpu, monkeypatch, checkpointing
) -> None:
    launches = emulator.note_launches(monkeypatch.setattr, cuda)
    tokens = torch.randint(0, 256, (2, 6))
    found, wanted = model("auto"), model("reference")
    assert found.state_dict().keys() == wanted.state_dict().keys()
    for made in (found, wanted):
        made.activation_checkpointing = checkpointing
    pairs = zip(results(found, tokens), results(wanted, tokens), strict=True)
    for one, other in pairs:
        assert (one - other).norm() <= 2e-2 * other.norm()
    # Two layers' norms, the final one, and both of the layer with its own, perhaps twice.
    launched = [kernel for _, kernel in launches]
    assert launched.count("add_norm_forward") == (7 if checkpointing else 5)
    assert launched.count("add_norm_backward") == 5


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_plain_pytorch_is_what_runs_by_name(on_a_gpu, monkeypatch, backend) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the kernel ran")

    monkeypatch.setattr(cuda, "LAUNCH", never)
    norm.RMSNorm(8, backend=backend)(torch.randn(2, 3, 8))


def test_fp64_is_plain_pytorch_unless_cuda_is_named(on_a_gpu) -> None:
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    gain = torch.ones(8, dtype=torch.float64)
    found = norm.RMSNorm(8, dtype=torch.float64)(x)[1]
    torch.testing.assert_close(found, reference.rms_norm(x, gain), rtol=0, atol=0)
    with pytest.raises(UserError) as refused:
        norm.RMSNorm(8, dtype=torch.float64, backend="cuda")(x)
    assert str(refused.value) == (
        "kernels.backend=cuda: norms have a float32 stream and bfloat16, float16 or float32 beside "
        "it, not torch.float64; use kernels.backend=reference"
    )
