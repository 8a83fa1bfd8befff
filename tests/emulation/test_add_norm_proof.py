"""The add-and-norm kernel in ``mode=parity`` and in the check before a run, emulated on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.kernels import driver
from elman.kernels.sources import source_folder
from elman.models.blocks import norm
from elman.modes import parity as parity_mode
from elman.modes import train as train_mode
from elman.ops.add_norm import cuda
from elman.parity import gate, norms, proof
from elman.parity.checks import Proof
from elman.parity.experiment import Run
from elman.parity.norms import norm_runs, norm_shapes
from elman.parity.proof import prove_norms
from elman.runs.prepared import PreparedRun
from tests.emulation import emulator
from tests.emulation.test_add_norm_emulation import FAULTS, SOURCES, emulate

MULTIPROCESSORS = 2
# What a GPU would compute, by the emulator on tensors of this CPU.
FP32, BF16 = Run("cuda", "cpu", "fp32"), Run("cuda", "cpu", "bf16")
MODEL = ("model=e61", "model.dim=128", "model.depth=1")


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel run on CPU tensors."""
    monkeypatch.setattr(
        cuda, "LAUNCH", lambda text, wanted, args, _: emulate(emulator.loaded, text, wanted, args)
    )
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", lambda device: MULTIPROCESSORS)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], None]:
    """Return a function that replaces a piece of the kernel's source."""

    def replace(old: str, new: str) -> None:
        (file,) = (name for name in SOURCES if old in (source_folder() / name).read_text())
        planted = emulator.faulty(tmp_path, file, (old, new))
        monkeypatch.setattr(
            cuda, "LAUNCH", lambda text, wanted, args, _: emulate(planted, text, wanted, args)
        )

    return replace


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the norms and their proof take the CPU for a GPU; nothing was proved on it before."""
    for owner in (norm, gate):
        monkeypatch.setattr(owner, "norm_backend", lambda asked, device: "cuda")
    monkeypatch.setattr(gate, "kernel_cache", lambda: tmp_path / "cache")


def failed(found: Proof) -> set[str]:
    return {c.tensor for check in found.checks for c in check.comparisons if not c.passed}


# ------------------------------------------------------------------------------------ the proof


def test_the_kernel_passes_at_every_size() -> None:
    found = prove_norms(40, [FP32, BF16], seed=42, quick=False)
    assert failed(found) == set()
    assert {(check.part, check.run) for check in found.checks} == {
        ("add_norm", FP32),
        ("add_norm", BF16),
    }
    places = ["between layers", "first layer", "last norm", "fp32 branch", "small numbers"]
    assert [check.shape for check in found.checks if check.run == FP32] == [
        *places,
        "one row",
        "turned",
        "width 37",
        "width 601",
        "width 4100",
    ]
    first = next(check for check in found.checks if check.run == BF16)
    names = {one.tensor: one.tolerance for one in first.comparisons}
    # What stays in fp32 is held to fp32's bound in a bf16 run, too.
    assert names == {
        "sum": 1e-4,
        "normed": 2e-2,
        "d stream": 1e-4,
        "d branch": 2e-2,
        "d gain": 1e-4,
    }


def test_every_block_gets_more_than_one_row() -> None:
    for shape in norm_shapes(1536, [BF16], quick=True):
        blocks = cuda.tile_config_of(1536, True, torch.bfloat16, torch.bfloat16).blocks
        assert shape.rows == 2 * MULTIPROCESSORS * blocks + 1
    assert {shape.rows for shape in norm_shapes(1536, norm_runs()[0], quick=True)} == {35}


WRONG = {
    "one block too few": FAULTS["one block too few"],
    "eps left out": ("(float)a.eps", "0.0f"),
    "gradient of the sum dropped": ("- n[i] * mean, ds[i])", "- n[i] * mean, 0.0f)"),
    "gain of the forward pass": ("s[i] *= rstd * gain[i];", "s[i] *= rstd * gain[0];"),
    "stream rounded to bf16": (
        "s[i] += y[i];",
        "s[i] = Half<bf16>::low(Half<bf16>::pack(s[i], 0)) + y[i];",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_short_proof_notices_a_fault(fault: str, plant) -> None:
    plant(*WRONG[fault])
    assert failed(prove_norms(40, [FP32], seed=42, quick=True))


# ------------------------------------------------------------------------------------- the mode


def run_mode(tmp_path: Path, *overrides: str) -> tuple[ExitStatus, dict[str, Any]]:
    config = compose_config(["mode=parity", "parity.quick=true", *MODEL, *overrides])
    status = parity_mode.run(PreparedRun(config, tmp_path))
    return status, json.loads((tmp_path / "parity.json").read_text())


def test_the_mode_has_a_row_for_the_norms_of_every_model(tmp_path: Path, capsys) -> None:
    status, result = run_mode(tmp_path)
    assert status is ExitStatus.OK
    rows = [check for check in result["checks"] if check["part"] == "add_norm"]
    assert {(row["backend"], row["precision"]) for row in rows} == {
        ("reference", "fp32"),
        ("cpu", "fp32"),
    }
    assert {row["part"] for row in result["summary"]} == {"e61", "add_norm"}
    shown = capsys.readouterr().out
    assert "add_norm" in shown
    if not torch.cuda.is_available():
        note = "not checked: the CUDA kernel of add_norm: torch sees no GPU here"
        assert note in result["notes"]


def test_the_mode_fails_on_a_wrong_kernel_of_the_norms(
    tmp_path: Path, capsys, monkeypatch, plant
) -> None:
    monkeypatch.setattr(norms, "norm_runs", lambda requested: ([FP32, BF16], []))
    assert run_mode(tmp_path)[0] is ExitStatus.OK
    plant(*WRONG["gradient of the sum dropped"])
    status, result = run_mode(tmp_path)
    assert status is ExitStatus.FAILED
    wrong = {(c["part"], c["backend"]) for c in result["checks"] if not c["passed"]}
    assert wrong == {("add_norm", "cuda")}
    assert "wrong: d stream of cuda fp32 at between layers" in capsys.readouterr().out


def test_a_model_of_layernorms_has_no_such_row() -> None:
    model = compose_config(["mode=parity", *MODEL, "model.wrapper=legacy_ln"]).model
    assert {check.part for check in proof.prove(model, quick=True).checks} == {"e61"}


@pytest.mark.parametrize(
    ("requested", "wanted"),
    [
        ("auto", ["reference", "cpu", "cuda", "cuda"]),
        ("cuda", ["reference", "cuda", "cuda"]),
        ("triton", ["reference", "cuda", "cuda"]),
        ("cpu", ["reference", "cpu"]),
        ("reference", ["reference"]),
        ("torch", ["reference"]),
    ],
)
def test_which_backend_is_checked_on_a_gpu(monkeypatch, requested: str, wanted: list[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(driver, "cuda_problem", lambda: None)
    runs, notes = norm_runs(requested)
    assert [run.backend for run in runs] == wanted
    assert {run.precision for run in runs if run.backend == "cuda"} <= {"fp32", "bf16"}
    assert {(run.device, run.precision) for run in runs if run.backend != "cuda"} == {
        ("cpu", "fp32")
    }
    assert notes == []


def test_a_kernel_that_cannot_run_is_said(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(driver, "cuda_problem", lambda: "NVRTC is missing; pip install it")
    runs, notes = norm_runs()
    assert [run.backend for run in runs] == ["reference", "cpu"]
    assert notes == ["not checked: the CUDA kernel of add_norm: NVRTC is missing; pip install it"]
    monkeypatch.setattr(norms, "compiler_problem", lambda: "no C++ compiler; install one")
    runs, notes = norm_runs()
    assert [run.backend for run in runs] == ["reference"]
    assert notes[0] == "not checked: the CPU kernel of add_norm: no C++ compiler; install one"


# ------------------------------------------------------------------------------ before a run


def train(place: Path, text_file: Path, *overrides: str) -> tuple[ExitStatus, dict[str, Any]]:
    place.mkdir()
    settings = (
        "train.batch_size=2",
        "train.chunk_size=8",
        "train.steps=2",
        "data.val_sample=32",
        "data.val_window=16",
        "log.tensorboard=false",
        f"data.path={text_file}",
    )
    status = train_mode.run(PreparedRun(compose_config([*MODEL, *settings, *overrides]), place))
    return status, json.loads((place / "result.json").read_text())


@pytest.mark.parametrize("overrides", [(), ("model=e1",)], ids=["kernel", "reference"])
def test_a_run_proves_the_kernel_of_its_norms_once(
    on_a_gpu, tmp_path: Path, text_file: Path, capsys, overrides
) -> None:
    """Also where the cell itself has no kernel."""
    status, first = train(tmp_path / "first", text_file, *overrides)
    assert status is ExitStatus.OK
    said = "checking the cuda kernel of add_norm against plain PyTorch, once ..."
    assert said in capsys.readouterr().out
    parity = first["norm_parity"]
    assert (parity["backend"], parity["precisions"], parity["checks"]) == ("cuda", ["fp32"], 5)
    assert 0 < parity["worst_share_of_tolerance"] < 1
    _, second = train(tmp_path / "second", text_file, *overrides)
    assert second["norm_parity"] == parity
    assert said not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    [((), "reference"), (("model=gru",), "torch")],
    ids=["cell", "pytorchs-own"],
)
def test_a_wrong_kernel_of_the_norms_refuses_the_run(
    on_a_gpu, plant, tmp_path: Path, text_file: Path, overrides, remedy: str
) -> None:
    plant(*WRONG["gradient of the sum dropped"])
    status, result = train(tmp_path / "run", text_file, *overrides)
    assert status is ExitStatus.FAILED
    error = result["error"]
    assert error.startswith(
        "the cuda kernel of add_norm is wrong on this machine: d stream in fp32"
    )
    assert error.endswith(f"; kernels.backend={remedy} trains without it")
    assert json.loads((tmp_path / "run" / "parity.json").read_text())["status"] == "failed"


def test_bf16_is_proved_in_both_precisions_and_another_width_anew(on_a_gpu, tmp_path) -> None:
    said: list[str] = []

    def require(*overrides: str) -> Any:
        model = compose_config([*MODEL, *overrides]).model
        return gate.require_norm_parity(model, "auto", "cpu", "bf16", tmp_path, said.append)

    assert require()["precisions"] == ["fp32", "bf16"]
    assert require("model.depth=2")["checks"] == 10
    assert len(said) == 1
    require("model.dim=256")
    assert len(said) == 2


def test_no_proof_where_pytorch_computes_the_norms(tmp_path) -> None:
    model = compose_config(list(MODEL)).model
    for device, asked in (("cpu", "reference"), ("cuda", "reference"), ("cuda", "torch")):
        assert gate.require_norm_parity(model, asked, device, "fp32", tmp_path, print) is None
