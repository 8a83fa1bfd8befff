"""Muon: the precision of its products, and what each of the two computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elman.devices import cpu
from elman.training.optim import muon
from elman.training.optim.muon import Muon, fast_precision

CPU = torch.device("cpu")
SHAPES = ((5, 9), (9, 5), (4, 4))


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
        ("AVX2", ("avx2",), "fp32"),
        ("AVX512", ("avx2", "avx512f"), "fp32"),
        ("AVX512", ("avx2", "avx512f", "avx512_bf16"), "bf16"),
        ("AVX512", ("avx512f", "amx_bf16"), "bf16"),
        ("AVX2", ("avx512f", "avx512_bf16"), "fp32"),
        ("DEFAULT", ("asimd",), "fp32"),
        ("DEFAULT", ("asimd", "bf16"), "bf16"),
        ("DEFAULT", (), "fp32"),
    ],
)
def test_a_cpu_has_bf16_only_with_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, capability: str, flags: tuple[str, ...], expected: str
) -> None:
    machine(monkeypatch, capability, *flags)
    assert fast_precision(CPU) == expected
    assert fast_precision(torch.device("cuda")) == "bf16"


def test_a_limit_of_the_library_that_multiplies_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "AVX512", "avx512_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core")
    assert fast_precision(CPU) == "fp32"


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
    assert "Muon in fp32" in ended.stderr
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


def stepped(optimizer: Callable[..., torch.optim.Optimizer], **settings: Any) -> list[torch.Tensor]:
    """Return matrices of several shapes after three updates."""
    torch.manual_seed(1)
    matrices = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    given = optimizer(matrices, lr=0.02, weight_decay=0.1, momentum=0.9, **settings)
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
    double = pytest.MonkeyPatch()
    with double.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
        exact = stepped(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    rounded = stepped(Muon, precision="bf16")
    assert not any(map(torch.equal, found, rounded))


def test_the_machines_choice_has_the_numbers_of_the_same_choice_by_name(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fast, choice in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(muon, "multiplies_bf16", lambda fast=fast: fast)
        chosen = train("optim=muon", folder=f"chosen-{choice}")
        named = train("optim=muon", f"optim.matrix_precision={choice}", folder=f"named-{choice}")
        assert chosen.result["matrix_precision"] == named.result["matrix_precision"] == choice
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
    monkeypatch.setattr(muon, "multiplies_bf16", lambda: began == "bf16")
    first = train("optim=muon", "train.steps=2")
    monkeypatch.setattr(muon, "multiplies_bf16", lambda: other == "bf16")
    capfd.readouterr()
    kept = train("optim=muon", "train.steps=3", f"train.resume={first.folder}")
    assert kept.result["matrix_precision"] == began
    assert f"Muon multiplies in {began}, as this run began" in capfd.readouterr().err
    resumed = f"train.resume={first.folder}"
    named = train("optim=muon", "train.steps=4", resumed, f"optim.matrix_precision={other}")
    assert named.result["matrix_precision"] == other
    assert f"Muon multiplies in {other} from here on, {began} before" in capfd.readouterr().err


def test_a_checkpoint_from_before_the_choice_goes_on_in_bf16() -> None:
    from elman.config.compose import compose_config
    from elman.training.optim.optimizers import TrainingOptimizer

    config = compose_config(["optim=muon", "optim.matrix_precision=fp32"]).optim
    saved = TrainingOptimizer(config, nn.Linear(3, 3)).state_dict()
    del saved["matrix_precision"]
    resumed = TrainingOptimizer(compose_config(["optim=muon"]).optim, nn.Linear(3, 3))
    resumed.load_state_dict(saved)
    assert resumed.matrix_precision == "bf16"
