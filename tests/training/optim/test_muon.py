"""Muon: the precision of its products, and what each of the two computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elman.config.compose import compose_config
from elman.devices import cpu
from elman.modes import train_description
from elman.training.optim import muon, muon_kernel, optimizers
from elman.training.optim.muon import Muon
from elman.training.optim.optimizers import TrainingOptimizer

SHAPES = ((24, 40), (40, 24), (16, 16), (12, 60), (60, 12), (24, 40))


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)


def machine(monkeypatch: pytest.MonkeyPatch, capability: str, *flags: str) -> None:
    """Let this process believe that it runs on another CPU."""
    monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset(flags))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("capability", "flags", "expected"),
    [
        ("AVX2", ("avx2",), False),
        ("AVX512", ("avx2", "avx512f"), False),
        ("AVX512", ("avx2", "avx512f", "avx512_bf16"), True),
        ("AVX512", ("avx512f", "amx_bf16"), True),
        ("AVX2", ("avx512f", "avx512_bf16"), False),
        ("DEFAULT", ("asimd",), False),
        ("DEFAULT", ("asimd", "bf16"), True),
        ("DEFAULT", (), False),
    ],
)
def test_a_cpu_has_bf16_only_with_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, capability: str, flags: tuple[str, ...], expected: bool
) -> None:
    machine(monkeypatch, capability, *flags)
    assert cpu.multiplies_bf16() is expected


def test_a_limit_of_the_library_that_multiplies_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "AVX512", "avx512_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core")
    assert not cpu.multiplies_bf16()


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_on_a_cpu_without_instructions_for_it_is_called_slow(
    train: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fast: bool,
) -> None:
    monkeypatch.setattr(train_description, "multiplies_bf16", lambda: fast)
    train("train.precision=bf16", "train.steps=1", "kernels.backend=reference")
    assert ("this CPU has no instructions for bf16" in capfd.readouterr().out) is not fast


def test_a_command_that_is_held_to_avx2_trains_with_fp32_products(
    tmp_path: Path, text_file: Path
) -> None:
    """On any machine; the environment reaches torch only before it is imported."""
    small = ("model.dim=128", "model.depth=1", "train.steps=1", "data.val_sample=512")
    data = (f"data.path={text_file}", "log.tensorboard=false", f"hydra.run.dir={tmp_path}/run")
    unset = {name: text for name, text in os.environ.items() if not name.startswith("GOMP")}
    ended = subprocess.run(
        [sys.executable, "-m", "elman", "kernels.backend=reference", *small, *data],
        env=unset | {"ATEN_CPU_CAPABILITY": "avx2", "OMP_WAIT_POLICY": "active"},
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["matrix_precision"] == "fp32"
    assert "Muon in fp32" in ended.stdout
    assert result["environment"]["instructions"] in ("AVX2", "DEFAULT")
    assert result["environment"]["threads_wait"] == "OMP_WAIT_POLICY=active", "the user's own"


def test_threads_are_told_to_sleep_unless_the_user_said_how_they_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    for name in names:
        for other in names:
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(name, "7")
        cpu.let_threads_sleep()
        assert cpu.waiting() == f"{name}=7"
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOMP_SPINCOUNT", "")  # restored afterwards, as the next is
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    os.environ.pop("GOMP_SPINCOUNT"), os.environ.pop("OMP_WAIT_POLICY")
    cpu.let_threads_sleep()
    assert cpu.waiting() == "OMP_WAIT_POLICY=passive, GOMP_SPINCOUNT=1000"


def stepped(
    optimizer: Callable[..., torch.optim.Optimizer],
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    **settings: Any,
) -> list[torch.Tensor]:
    """Return matrices of several shapes after three updates."""
    torch.manual_seed(1)
    matrices = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    given = optimizer(matrices, **{"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9} | settings)
    for _ in range(3):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape)
        given.step()
    return [matrix.detach() for matrix in matrices]


def test_in_bf16_it_is_torchs_own_bit_for_bit() -> None:
    theirs = stepped(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    assert all(map(torch.equal, stepped(Muon, precision="bf16"), theirs))


def test_in_fp32_it_is_torchs_formula_without_the_rounding() -> None:
    """torch's own function in fp64 is what both approximate."""
    found = stepped(Muon, precision="fp32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
        exact = stepped(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    rounded = stepped(Muon, precision="bf16")
    assert not any(map(torch.equal, found, rounded))


def test_matrices_of_one_shape_move_as_each_would_alone() -> None:
    together = stepped(Muon, precision="fp32", shapes=((6, 4),) * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "_TOGETHER", 1)
        alone = stepped(Muon, precision="fp32", shapes=((6, 4),) * 3)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_cpu_has_the_numbers_of_fp32_by_name(train: Callable[..., Any]) -> None:
    chosen = train("optim=muon", folder="chosen")
    named = train("optim=muon", "optim.matrix_precision=fp32", folder="named")
    assert chosen.result["matrix_precision"] == named.result["matrix_precision"] == "fp32"
    assert chosen.records("step") == named.records("step")
    assert train("optim=adamw", folder="adamw").result["matrix_precision"] is None


@pytest.mark.parametrize(("began", "other"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_a_resumed_run_keeps_its_precision_on_another_machine_or_says_what_changed(
    train: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    began: str,
    other: str,
) -> None:
    """Of a GPU and a CPU, one began the run, and the other goes on."""
    monkeypatch.setattr(optimizers, "fast_precision", lambda device: began)
    first = train("optim=muon", "train.steps=2")
    monkeypatch.setattr(optimizers, "fast_precision", lambda device: other)
    capfd.readouterr()
    resumed = f"train.resume={first.folder}"
    kept = train("optim=muon", "train.steps=3", resumed)
    assert kept.result["matrix_precision"] == began
    assert f"Muon multiplies in {began}, as this run began" in capfd.readouterr().out
    named = train("optim=muon", "train.steps=4", resumed, f"optim.matrix_precision={other}")
    assert named.result["matrix_precision"] == other
    assert f"Muon multiplies in {other} from here on, {began} before" in capfd.readouterr().out


def test_a_checkpoint_from_before_the_choice_goes_on_in_bf16() -> None:
    config = compose_config(["optim=muon", "optim.matrix_precision=fp32"]).optim
    saved = TrainingOptimizer(config, nn.Linear(3, 3)).state_dict()
    del saved["matrix_precision"]
    resumed = TrainingOptimizer(compose_config(["optim=muon"]).optim, nn.Linear(3, 3))
    resumed.load_state_dict(saved)
    assert resumed.matrix_precision == "bf16"


# ---- the kernel of a CPU

IN_A_KERNEL = partial(Muon, precision="fp32", backend="cpu")
kernel = pytest.mark.compiler


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Return the list of the shapes that the kernel updates."""
    shapes: list[torch.Size] = []
    update = muon_kernel.update

    def noted(moved: Any, *rest: Any) -> None:
        shapes.append(moved[0].weight.shape)
        update(moved, *rest)

    monkeypatch.setattr(muon_kernel, "update", noted)
    return shapes


def in_fp64(**settings: Any) -> list[torch.Tensor]:
    """Return what torch's own function computes in fp64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
        return stepped(torch.optim.Muon, adjust_lr_fn="match_rms_adamw", **settings)


@kernel
@pytest.mark.parametrize(
    "shapes",
    [
        SHAPES,
        ((1, 1), (1, 7), (7, 1), (3, 5), (5, 3), (2, 2)),
        ((37, 37), (37, 101), (101, 37), (65, 130), (130, 65)),
        ((100, 256), (256, 100), (128, 128)),
    ],
    ids=["as-above", "tiny", "odd", "several-panels"],
)
def test_the_kernel_computes_torchs_formula(shapes, updates) -> None:
    found = stepped(IN_A_KERNEL, shapes=shapes)
    assert set(updates) == {torch.Size(shape) for shape in shapes}
    for ours, theirs in zip(found, in_fp64(shapes=shapes), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


@kernel
@pytest.mark.parametrize(
    "settings",
    [{"ns_steps": 1}, {"ns_steps": 2}, {"ns_steps": 7}, {"momentum": 0.3}, {"weight_decay": 0.0}],
    ids=str,
)
def test_the_kernel_knows_every_setting(settings, updates) -> None:
    found = stepped(IN_A_KERNEL, **settings)
    assert updates
    for ours, theirs in zip(found, in_fp64(**settings), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


@kernel
def test_the_kernels_bits_are_the_same_for_any_number_of_threads(monkeypatch) -> None:
    shapes, results = ((130, 65), (130, 65), (40, 70)), []
    for threads in (1, 1, 2, 3):
        monkeypatch.setattr(muon_kernel, "kernel_threads", lambda _, n=threads: n)
        results.append(stepped(IN_A_KERNEL, shapes=shapes))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@kernel
def test_matrices_move_alone_in_the_kernel_as_they_do_together(monkeypatch) -> None:
    shapes = ((70, 40),) * 3
    together = stepped(IN_A_KERNEL, shapes=shapes)
    monkeypatch.setattr(muon, "_TOGETHER", 1)
    assert all(map(torch.equal, together, stepped(IN_A_KERNEL, shapes=shapes)))


@kernel
def test_a_gradient_of_zeros_or_nan_moves_what_it_moves_in_torch() -> None:
    for number in (0.0, torch.nan):
        matrices = [nn.Parameter(torch.ones(6, 4)) for _ in range(2)]
        for matrix, backend in zip(matrices, ("cpu", "reference"), strict=True):
            matrix.grad = torch.full_like(matrix, number)
            Muon([matrix], "fp32", backend, lr=0.1, weight_decay=0.1).step()
        assert matrices[0].isnan().all() == (number != number)
        torch.testing.assert_close(*matrices, equal_nan=True)


@kernel
def test_the_kernel_keeps_the_average_that_pytorch_would_keep() -> None:
    averages = []
    for backend in ("cpu", "reference"):
        torch.manual_seed(2)
        matrix = nn.Parameter(torch.randn(9, 21))
        optimizer = Muon([matrix], "fp32", backend, lr=0.1)
        for _ in range(3):
            matrix.grad = torch.randn(9, 21)
            optimizer.step()
        averages.append(optimizer.state[matrix]["momentum_buffer"])
    torch.testing.assert_close(*averages)


@kernel
def test_the_kernel_leaves_to_pytorch_what_it_does_not_take(updates) -> None:
    wide = muon_kernel.MOST + 1
    matrices = [
        nn.Parameter(torch.zeros(6, 4, dtype=torch.float64)),
        nn.Parameter(torch.zeros(4, 6).T),
        nn.Parameter(torch.zeros(wide, wide)),
    ]
    optimizer = Muon(matrices, "fp32", "cpu", lr=0.1, ns_steps=1)
    for matrix in matrices:
        matrix.grad = torch.ones_like(matrix)
    optimizer.step()
    assert updates == []
    assert all(bool((matrix < 0).all()) for matrix in matrices)


@kernel
def test_a_graph_that_saved_a_weight_notices_the_kernels_update() -> None:
    matrix = nn.Parameter(torch.ones(4, 4))
    loss = matrix.square().sum()
    matrix.grad = torch.eye(4)
    IN_A_KERNEL([matrix], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@kernel
@pytest.mark.parametrize(("backend", "expected"), [("auto", "cpu"), ("reference", "reference")])
def test_a_run_has_the_kernel_unless_it_asks_for_pytorch(backend, expected) -> None:
    optimizer = TrainingOptimizer(
        compose_config(["optim=muon"]).optim, nn.Linear(3, 3), backend=backend
    )
    assert optimizer._matrices.backend == expected
