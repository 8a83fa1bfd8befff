"""``mode=parity`` has the Triton kernels beside the others; without a GPU, on the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from elman.config.compose import compose_config
from elman.models.cells import registry
from elman.parity import proof as proof_module
from elman.parity.compare import TOLERANCES, compare
from elman.parity.experiment import Experiment, Run
from elman.parity.proof import prove_runs, runs_here
from elman.parity.shapes import Shape
from tests.ops.matrix_state.triton_cases import quicken

pytest.importorskip("triton")
E70 = registry.cell("e70")
needs_no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="asks for a machine without one"
)


@needs_no_gpu
def test_the_interpreter_has_to_be_asked_for_by_name(monkeypatch) -> None:
    monkeypatch.setattr(proof_module, "interpreted", lambda: True)
    runs, _ = runs_here(E70, "triton")
    assert [run for run in runs if run.backend == "triton"] == [
        Run("triton", "cpu", "fp32"),
        Run("triton", "cpu", "bf16"),
    ]
    runs, notes = runs_here(E70)
    assert "triton" not in {run.backend for run in runs}
    assert "not checked: kernels.backend=triton: torch sees no GPU here" in notes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_layer_passes_as_mode_parity_checks_it(precision, monkeypatch) -> None:
    quicken(monkeypatch)
    experiment = Experiment(E70, Shape("small", 1, 4, 8, {"n_state": 16}), seed=1)
    wanted = experiment.run(Run("reference", "cpu", "fp64"))
    found = experiment.run(Run("triton", "cpu", precision))
    for name, tensor in found.items():
        assert compare(name, tensor, wanted[name], TOLERANCES[precision] * 2).passed, name


def test_kernels_are_compiled_for_what_the_checks_launch(monkeypatch) -> None:
    """Both passes with their states; the interpreter compiles nothing."""
    asked: list[tuple[tuple[int, ...], Run]] = []
    compiling: list[bool] = []

    def run(self: Experiment, run: Run) -> dict[str, torch.Tensor]:
        asked.append((tuple(self.x_btd.shape[:2]), run))
        assert compiling == [True]
        return {}

    def ahead(call) -> None:
        compiling.append(True)
        call()

    monkeypatch.setattr("elman.kernels.triton_ahead.compile_ahead", ahead)
    monkeypatch.setattr(proof_module._Case, "compute_references", lambda case, runs: None)
    monkeypatch.setattr(proof_module._Case, "checks", lambda case, runs, shared: [])
    monkeypatch.setattr(Experiment, "run", run)
    config = compose_config(["model=e70", "model.dim=128", "model.n_state=16"]).model
    gpu, slow = Run("triton", "cuda", "fp32"), Run("triton", "cpu", "fp32")
    prove_runs(config, [Run("reference", "cpu", "fp32"), slow, gpu], seed=1, quick=True)
    assert asked == [((2, 67), gpu), ((2, 1), gpu)]


@pytest.mark.parametrize(
    ("backend", "called"), [("cuda", ["compiling"]), ("cpu", []), ("triton", [])]
)
def test_other_work_is_done_while_kernels_for_cuda_compile(monkeypatch, backend, called) -> None:
    now: list[str] = []

    @contextmanager
    def compiling(compile_one, wanted) -> Iterator[None]:
        now.append("compiling")
        yield
        now.clear()

    done: list[str] = []
    monkeypatch.setattr(proof_module, "_compiling", compiling)
    monkeypatch.setattr(proof_module, "compile_experiments", lambda *given: None)
    monkeypatch.setattr(proof_module._Case, "compute_references", lambda case, runs: None)
    monkeypatch.setattr(proof_module._Case, "checks", lambda case, runs, shared: [])
    config = compose_config(["model=e70", "model.dim=128", "model.n_state=16"]).model
    runs = [Run(backend, "cpu" if backend == "cpu" else "cuda", "fp32")]
    prove_runs(config, runs, seed=1, quick=True, meanwhile=lambda: done.extend(now))
    assert done == called
