"""The schedule-free update's kernels, run on a CPU from their own source, against the library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn

from elman.config.compose import compose_config
from elman.kernels.launching import Launch
from elman.kernels.nvrtc import Unit
from elman.kernels.sources import included_sources
from elman.training.optim import fused, optimizers
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.optim.schedule_free import MaskedScheduleFree
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, rows

pytestmark = pytest.mark.compiler

NO, YES = torch.tensor(False), torch.tensor(True)
# Two groups: less than a vector, single numbers behind the last vector, and more than a block has.
SIZES = ([(2, 2053), (5, 7), (8, 4)], [(1,), (3,), (2048,), (37,)])
SETTINGS: dict[str, Any] = {"lr": 0.03, "betas": (0.9, 0.95), "eps": 1e-8, "warmup_steps": 3}


def stretches(args: ctypes.Structure) -> list[Stretch | None]:
    """Return what a launch may read and write."""
    blocked = rows("blocked", args.blocked, 1)
    if isinstance(args, fused.CountArgs):
        several = range(args.groups)
        counts = [rows("counts", args.counts[n], 24, writable=True) for n in several]
        scalars = [rows("scalars", args.scalars[n], 20, writable=True) for n in several]
        return [blocked, rows("norm", args.norm, 4), *counts, *scalars]
    assert isinstance(args, fused.UpdateArgs)
    tensors = [
        rows(name, getattr(args, name)[n], args.sizes[n] * 4, writable=name != "gradient")
        for name in fused.Moved._fields
        for n in range(args.tensors)
    ]
    return [blocked, rows("scalars", args.scalars, 20), *tensors]


class Emulator:
    """Runs the launches on CPU tensors.

    Args:
        library: Compiles and loads the translation unit.

    Attributes:
        launched: The launches, in order.
    """

    def __init__(self, library: emulator.Library = emulator.loaded) -> None:
        self._library, self.launched = library, list[Launch]()

    def __call__(
        self, text: str, wanted: Sequence[Launch], args: ctypes.Structure, device: object
    ) -> None:
        compiled = self._library(text.replace("cuda/common/device.cuh", emulator.HEADER))
        declare(compiled, stretches(args))
        for one in wanted:
            self.launched.append(one)
            emulator.start(compiled, one, args)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Let the kernels run on CPU tensors, with NaN wherever nothing was written."""
    launch = Emulator()
    monkeypatch.setattr(fused, "LAUNCH", launch)
    emulator.poison(monkeypatch.setattr)
    return launch


Weights = list[list[nn.Parameter]]


def weights_of(
    sizes: Sequence[Sequence[tuple[int, ...]]] = SIZES, shift: int = 0, dtype: Any = torch.float32
) -> Weights:
    """Return groups of weights at random, ``shift`` numbers away from a boundary."""
    generator = torch.Generator().manual_seed(1)

    def draw(shape: tuple[int, ...]) -> nn.Parameter:
        count = torch.Size(shape).numel()
        flat = torch.zeros(count + shift, dtype=dtype)[shift:]
        flat.copy_(torch.randn(count, generator=generator))
        return nn.Parameter(flat.view(shape))

    return [[draw(shape) for shape in group] for group in sizes]


def flat(weights: Weights) -> list[nn.Parameter]:
    return [weight for group in weights for weight in group]


def fill(weights: Weights, step: int, value: float | None = None) -> None:
    """Give every weight a gradient of its step, the same in every precision."""
    generator = torch.Generator().manual_seed(100 + step)
    for weight in flat(weights):
        drawn = torch.randn(weight.shape, generator=generator) * 10.0 ** (step % 5 - 3)
        # As far from a boundary as the weight is.
        room = torch.zeros(weight.numel() + weight.storage_offset(), dtype=weight.dtype)
        weight.grad = room[weight.storage_offset() :].view(weight.shape).copy_(drawn)
        if value is not None:
            weight.grad.fill_(value)


def groups_of(weights: Weights, decay: float = 0.1) -> list[dict[str, Any]]:
    """Return groups for an optimizer, of which every other one decays."""
    return [
        {"params": group, "weight_decay": decay * (n % 2 == 0)} for n, group in enumerate(weights)
    ]


def ours(weights: Weights, backend: str = "cuda", **settings: Any) -> MaskedScheduleFree:
    decay = settings.pop("decay", 0.1)
    given = {**SETTINGS, **settings, "backend": backend}
    optimizer = MaskedScheduleFree(groups_of(weights, decay), **given)
    optimizer.train()
    return optimizer


def everything(optimizer: MaskedScheduleFree) -> list[Tensor]:
    """Return a copy of the weights, of their moments and of the counts."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    moments = [m for p in weights for m in optimizer.state[p].values()]
    return [x.detach().clone() for x in (*weights, *moments, *optimizer._counts)]


def check(steps: int = 6, limit: float = 1.0, shift: int = 0, **settings: Any) -> None:
    """Compare with the library in fp64, step by step; a blocked step of NaN stands among them."""
    weights, exact = weights_of(shift=shift), weights_of(dtype=torch.float64)
    optimizer = ours(weights, **settings)
    decay = settings.pop("decay", 0.1)
    library = AdamWScheduleFree(groups_of(exact, decay), foreach=False, **{**SETTINGS, **settings})
    library.train()
    for step in range(steps):
        if step == 2:
            fill(weights, step, torch.nan)
            optimizer.clip(flat(weights), limit)
            optimizer.masked_step(YES)
        if step == 4:  # a checkpoint that goes on at another rate
            for group in (*optimizer.param_groups, *library.param_groups):
                group["lr"] /= 2
        fill(weights, step)
        fill(exact, step)
        norm = optimizer.clip(flat(weights), limit)
        wanted = nn.utils.clip_grad_norm_(flat(exact), limit)
        torch.testing.assert_close(norm.double(), wanted, rtol=1e-6, atol=0.0)
        optimizer.masked_step(NO)
        library.step()
        for one, right in zip(flat(weights), flat(exact), strict=True):
            for name in ("weight", "z", "exp_avg_sq"):
                found = one if name == "weight" else optimizer.state[one][name]
                asked = right if name == "weight" else library.state[right][name]
                error = (found.detach().double() - asked).norm() / asked.norm()
                assert error < 1e-6, (step, name, tuple(one.shape), error.item())
    saved, expected = optimizer.state_dict(), library.state_dict()
    for group, other in zip(saved["param_groups"], expected["param_groups"], strict=True):
        for count in ("k", "weight_sum", "lr_max"):
            assert group[count] == pytest.approx(other[count], rel=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warmup_steps": 0, "decay": 0.0},
        {"betas": (0.95, 0.999), "limit": float("inf")},
        {"limit": 1e9, "weight_lr_power": 1.0, "eps": 1e-3, "shift": 1},
    ],
    ids=["decay, warm-up, clipping", "no decay", "no limit", "addresses off a boundary"],
)
def test_updates_are_those_of_the_library_in_fp64(settings: dict[str, Any]) -> None:
    check(**settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_blocked_update_changes_nothing(value: float) -> None:
    weights = weights_of()
    optimizer = ours(weights)
    fill(weights, 0)
    optimizer.masked_step(NO)
    before = everything(optimizer)
    fill(weights, 1, value)
    optimizer.clip(flat(weights), 1.0)
    optimizer.masked_step(YES)
    assert all(map(torch.equal, before, everything(optimizer)))


def test_gradients_are_only_read() -> None:
    weights = weights_of()
    optimizer = ours(weights)
    fill(weights, 0)
    before = [weight.grad.clone() for weight in flat(weights) if weight.grad is not None]
    optimizer.clip(flat(weights), 1e-3)
    optimizer.masked_step(NO)
    after = [weight.grad for weight in flat(weights) if weight.grad is not None]
    assert all(map(torch.equal, before, after))


def test_vectors_and_single_numbers_give_the_same_bits() -> None:
    found = []
    for shift in (0, 1):
        weights = weights_of(shift=shift)
        optimizer = ours(weights)
        for step in range(2):
            fill(weights, step)
            optimizer.masked_step(NO)
        found.append(everything(optimizer))
    assert all(map(torch.equal, *found))


def test_more_tensors_and_groups_than_a_launch_has(emulated: Emulator) -> None:
    sizes = [[(3,)] * 170, *[[(2,), (0,)]] * 9]
    found = []
    for backend in ("cuda", "reference"):
        weights = weights_of(sizes)
        optimizer = ours(weights, backend)
        fill(weights, 0)
        optimizer.masked_step(NO)
        found.append(everything(optimizer))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    launched = [one.kernel.removeprefix("schedule_free_") for one in emulated.launched]
    assert launched == ["count"] * 2 + ["update"] * (3 + 9)


def test_weights_without_a_gradient_stay() -> None:
    weights = weights_of()
    fill(weights, 0)
    still = weights[0][1]
    still.grad, before = None, still.detach().clone()
    optimizer = ours(weights)
    optimizer.masked_step(NO)
    assert torch.equal(still, before)
    assert not optimizer.state[still]


@pytest.mark.parametrize("why", ["bf16", "transposed"])
def test_other_weights_take_pytorchs_operations(emulated: Emulator, why: str) -> None:
    weights = weights_of(dtype=torch.bfloat16 if why == "bf16" else torch.float32)
    if why == "transposed":
        weights[0][1] = nn.Parameter(weights[0][1].detach().T.contiguous().T)
    optimizer = ours(weights)
    fill(weights, 0)
    optimizer.masked_step(NO)
    updates = [one for one in emulated.launched if one.kernel == "schedule_free_update"]
    assert len(updates) == {"bf16": 0, "transposed": 1}[why]
    assert optimizer.state_dict()["param_groups"][0]["k"] == 1


def test_a_checkpoint_continues_in_the_other_form() -> None:
    found = []
    for first, second in (("cuda", "reference"), ("reference", "cuda"), ("reference",) * 2):
        weights = weights_of()
        optimizer = ours(weights, first)
        fill(weights, 0)
        optimizer.masked_step(NO)
        saved = optimizer.state_dict()
        optimizer = ours(weights, second)
        optimizer.load_state_dict(saved)
        fill(weights, 1)
        optimizer.masked_step(NO)
        found.append(everything(optimizer))
    for some in found[:2]:
        for one, other in zip(some, found[2], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_autograd_sees_that_weights_changed() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = ours([[weight]])
    saved = (weight * weight).sum()
    weight.grad = torch.ones(4)
    optimizer.masked_step(NO)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


def test_the_training_optimizer_takes_the_kernel_where_norms_have_theirs(
    monkeypatch: pytest.MonkeyPatch, emulated: Emulator
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(optimizers, "norm_backend", lambda *given: asked.append(given) or "cuda")
    model = nn.Linear(5, 3)
    config = compose_config(["optim=schedulefree"]).optim
    optimizer = TrainingOptimizer(config, model, "triton")
    assert asked == [("triton", "cpu")]
    assert optimizer.in_a_kernel
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(NO)
    kernels = ["schedule_free_count", "schedule_free_update", "schedule_free_update"]
    assert [one.kernel for one in emulated.launched] == kernels


# ---- planted faults

FAULTS = {
    "the wrong tensor": ("chunk < a.ends[middle]", "chunk <= a.ends[middle]"),
    "chunks of the tensor before": ("(tensor > 0 ? a.ends[tensor - 1] : 0)", "0"),
    "no single numbers": ("int at = 4 * vectors + thread_index()", "int at = chunk.numbers"),
    "vectors off a boundary": ("return bits % 16 == 0;", "return true;"),
    "numbers behind the tensor": ("left < CHUNK ? (int)left : CHUNK", "CHUNK"),
    "a blocked update": (
        "if (load_one((const unsigned char*)a.blocked)) return;\n  const ScheduleFreeUpdate",
        "const ScheduleFreeUpdate",
    ),
    "a blocked count": (" || load_one((const unsigned char*)a.blocked)", ""),
    "no clipping": ("factor * gradient", "gradient"),
    "a factor above 1": ("factor >= 1.0f ? 1.0f : factor", "factor"),
    "no warm-up": ("k < a.warmup_steps[group] ? k / a.warmup_steps[group] : 1.0", "1.0"),
    "no correction": ("square_root(square * inverse)", "square_root(square)"),
    "no decay": ("fused(decay, y, ", "fused(0.0f, y, "),
    "z before its step": ("z -= d;", "z += d;"),
    "the average of all steps": ("fused(share, z - y, y)", "y"),
    "the step without the average": ("a.beta1[group] * (1.0 - share)", "a.beta1[group]"),
    "the newest rate for the largest": (
        "largest = rate > before ? rate : before",
        "largest = rate",
    ),
}
QUICK = ("", "the wrong tensor", "vectors off a boundary", "a blocked update", "no clipping")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in ("", *FAULTS)],
)
def test_a_planted_fault_is_noticed(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = "cuda/schedule_free/schedule_free.cuh"
    library = emulator.faulty(tmp_path, file, FAULTS.get(fault))
    monkeypatch.setattr(fused, "LAUNCH", Emulator(library))

    def run() -> None:
        for limit, shift in ((1.0, 0), (1e9, 1)):
            check(5, limit, shift)
        test_a_blocked_update_changes_nothing(float("nan"))

    assert emulator.noticed(run) == bool(fault)


# ---- the text that a GPU runs


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    compiled, emulated_text = fused.unit_text(), fused.unit_text(emulator.HEADER)
    assert emulated_text == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    engine = next(p for p in included_sources(compiled) if p.name == "schedule_free.cuh")
    assert "#if" not in engine.read_text()


def test_every_driver_takes_the_arguments() -> None:
    assert max(map(ctypes.sizeof, (fused.CountArgs, fused.UpdateArgs))) <= 4096


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_compile_without_spilling(architecture: str) -> None:
    used = Unit(fused.unit_text(), "schedule-free update", architecture, fast=False).resources()
    assert {kernel.spilled for kernel in used.values()} == {0}
    # So many that four blocks of 256 threads fill a multiprocessor's registers.
    assert used["schedule_free_update"].registers <= 64
