"""``mode=parity`` and the check before a run: every planted fault of a kernel is found and named.

Shape legend: b batch, t time, d width.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import threading
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.models.cells import registry
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.declaration import Cell, Option
from elman.modes import parity as parity_mode
from elman.parity import proof as proof_module
from elman.parity.compare import compare, compare_beside, tolerance
from elman.parity.experiment import Experiment, Run
from elman.parity.proof import prove, runs_here
from elman.parity.shapes import shapes_for
from elman.report.tables.parity import print_parity_sweep
from elman.runs.prepared import PreparedRun
from elman.sections.model import ModelConfig
from elman.sweeps.row import SweepRow

CELL = Cell(
    name="planted",
    engine="dense",
    layer="planted_cell:Planted",
    equation="h' = a h + x, y = sum over the gain of h'",
    source="this test",
    options={
        "n_state": Option(3, "copies of the state", minimum=1, size=True),
        "fault": Option("none", "what the kernel does wrong"),
    },
    backends=("reference", "cpu"),
)


class _Wrong(torch.autograd.Function):
    """The identity, with a gradient that is changed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, change: Any) -> Tensor:
        ctx.change = change
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None


class Planted(Mixer):
    """A cell whose "kernel" is the reference with a fault of choice."""

    cell: ClassVar[Cell] = CELL

    def __init__(self, dim: int, *, device=None, dtype=None, **options: Any) -> None:
        super().__init__(dim, **options)
        self.decay = nn.Parameter(torch.full((dim,), 0.5, device=device, dtype=dtype))
        size = self.settings.count("n_state")
        # Zero, as some projections start: without a shift nothing would be seen behind it.
        self.gain = nn.Parameter(torch.zeros(size, dim, device=device, dtype=dtype))

    def forward(self, x_btd: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        size = self.settings.count("n_state")
        fault = self.settings.word("fault") if self.backend_for(x_btd) == "cpu" else "none"
        h_bnd = x_btd.new_zeros(x_btd.shape[0], size, self.dim) if state is None else state["h"]
        gain, decay = self.gain, torch.tanh(self.decay)
        if fault == "first state ignored":
            h_bnd = torch.zeros_like(h_bnd)
        elif fault == "gradient of the gain":
            gain = _Wrong.apply(gain, lambda grad: grad * 1.001)
        elif fault == "gradient of a zero":
            gain = _Wrong.apply(gain, torch.zeros_like)
        elif fault == "gradient of the first state":
            h_bnd = _Wrong.apply(h_bnd, lambda grad: grad.flip(0))
        outputs = []
        for step, x_bd in enumerate(x_btd.unbind(1)):
            if fault == "second segment" and step == 32:
                decay = decay * 1.001
            h_bnd = decay * h_bnd + torch.tanh(x_bd).unsqueeze(1)
            outputs.append((gain * h_bnd).sum(1))
        y_btd = torch.stack(outputs, 1)
        if fault == "last channel unwritten":
            whole_btd = torch.empty_like(y_btd)
            whole_btd[..., :-1] = y_btd[..., :-1]
            y_btd = whole_btd
        elif fault == "size 20" and size == 20:
            y_btd = y_btd.roll(1, dims=-1)
        last = {"h": h_bnd}
        if fault == "gradient of the last state":
            last["h"] = _Wrong.apply(h_bnd, torch.zeros_like)
        return y_btd, last


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the cell known, as an installed package would."""
    module = types.ModuleType("planted_cell")
    module.Planted = Planted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "planted_cell", module)
    monkeypatch.setitem(registry.cells(), "planted", CELL)


def model(fault: str = "none", n_state: int = 3) -> ModelConfig:
    options = {"n_state": n_state, "fault": fault}
    return ModelConfig(name="planted", cell="planted", dim=128, depth=1, options=options)


def failures(proof: Any) -> set[tuple[str, str]]:
    return {
        (check.shape, one.tensor)
        for check in proof.checks
        for one in check.comparisons
        if not one.passed
    }


# ------------------------------------------------------------------------------- the comparison


@pytest.mark.parametrize(
    ("found", "wanted", "passes"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-5], True),
        ([1.0, 2.0], [1.0, 2.01], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([0.0, 1e-30], [0.0, 0.0], False),
        ([0.0, 0.0], [0.0, 1e-30], False),
        ([math.nan, 2.0], [1.0, 2.0], False),
        ([math.nan, 2.0], [math.nan, 2.0], False),
        ([math.inf, 2.0], [math.inf, 2.0], False),
        ([], [], True),
    ],
    ids=["near", "far", "zeros", "no-zeros", "only-zeros", "nan", "both-nan", "inf", "empty"],
)
def test_when_two_tensors_are_the_same(found, wanted, passes: bool) -> None:
    assert compare("t", torch.tensor(found), torch.tensor(wanted), 1e-4).passed == passes


def test_a_wrong_direction_fails_whatever_the_tolerance() -> None:
    one = compare("t", torch.tensor([1.0, 0.1]), torch.tensor([1.0, 0.0]), 0.5)
    assert one.relative_l2 == pytest.approx(0.1)
    assert one.cosine < 0.999
    assert not one.passed


@pytest.mark.parametrize(
    ("precision", "own", "most"),
    [
        ("fp64", 1e-3, 1e-9),
        ("fp32", 1e-6, 1e-4),
        ("fp32", 2e-4, 3e-4),
        ("fp32", 0.5, 1e-3),
        ("bf16", 1e-3, 2e-2),
        ("bf16", 0.1, 0.15),
        ("bf16", math.nan, 2e-2),
    ],
)
def test_tolerances(precision: str, own: float, most: float) -> None:
    assert tolerance(precision, own) == pytest.approx(most)


@pytest.mark.parametrize(
    ("found", "shared", "passes"),
    [(1.231, True, True), (1.1, True, False), (1.1, False, True), (1.4, False, False)],
    ids=["near", "elsewhere", "not-shared", "beyond"],
)
def test_an_error_of_the_reference_excuses_no_other(found, shared, passes: bool) -> None:
    """A sum that nearly cancels is as wrong in bf16, whoever sums; only that error is excused."""
    tensors = (torch.tensor([number]) for number in (found, 1.23, 1.0))
    one = compare_beside("d decay", *tensors, "bf16", shared=shared)
    assert one.tolerance == pytest.approx(0.345)
    assert (one.reference, one.apart) == pytest.approx((0.23, abs(found - 1.23)), abs=1e-6)
    assert (one.passed, one.excused) == (passes, passes)
    if found == 1.1:
        words = "is 1.3e-01 from the reference in the same precision, tolerance 5.8e-02"
        assert one.error == (
            words if shared else "has a relative error of 1.0e-01, tolerance 3.5e-01"
        )


@pytest.mark.parametrize(
    ("precision", "off", "passes"),
    [("bf16", 0.3, True), ("bf16", 0.9, False), ("fp32", 0.01, False)],
)
def test_the_gradient_of_one_number_is_measured_by_its_terms(precision, off, passes) -> None:
    """Terms of norm 30 that add up to 7: bf16 rounds the terms, and fp32 has no excuse."""
    wanted = torch.tensor([7.0], dtype=torch.float64)
    given = ("d alpha", wanted + off, wanted + 0.1, wanted, precision)
    assert compare_beside(*given, shared=True, terms=30.0).passed is passes
    many = torch.cat([wanted, torch.zeros(1)])
    given = ("d alpha", many + off, many + 1e-3, many, precision)
    assert not compare_beside(*given, shared=True, terms=30.0).passed


def test_a_small_error_needs_no_excuse() -> None:
    """Two that are each within the usual bound may lie on both sides of what is right."""
    tensors = (torch.tensor([number]) for number in (0.985, 1.015, 1.0))
    one = compare_beside("y", *tensors, "bf16", shared=True)
    assert one.passed
    assert not one.excused


# ------------------------------------------------------------------------------- planted faults


def test_a_right_kernel_passes_in_every_precision() -> None:
    proof = prove(model())
    assert proof.passed
    assert {(c.run.backend, c.run.precision) for c in proof.checks} == {
        ("reference", "fp32"),
        ("cpu", "fp64"),
        ("cpu", "fp32"),
        ("cpu", "bf16"),
    }
    one = next(check for check in proof.checks if check.shape == "segments")
    names = {comparison.tensor for comparison in one.comparisons}
    assert names == {"y", "h last", "d x", "d h first", "d decay", "d gain"}


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [
        ("first state ignored", "y"),
        ("gradient of the gain", "d gain"),
        ("gradient of a zero", "d gain"),
        ("gradient of the first state", "d h first"),
        ("gradient of the last state", "d h first"),
        ("last channel unwritten", "y"),
        ("second segment", "h last"),
    ],
)
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "all"])
def test_a_fault_is_found_and_its_tensor_named(fault: str, tensor: str, quick: bool) -> None:
    proof = prove(model(fault), quick=quick)
    assert not proof.passed
    assert tensor in {name for _, name in failures(proof)}
    assert {check.run.backend for check in proof.checks if not check.passed} == {"cpu"}


def test_a_fault_at_one_size_is_found_there_alone() -> None:
    proof = prove(model("size 20"))
    assert {shape for shape, _ in failures(proof)} == {"n_state 20"}
    assert prove(model("size 20"), quick=True).passed
    assert not prove(model("size 20", n_state=20), quick=True).passed


def test_the_same_seed_makes_the_same_numbers_and_leaves_torchs_alone() -> None:
    before = torch.get_rng_state()
    errors = [
        [one.max_abs for check in prove(model(), quick=True, seed=seed).checks
         for one in check.comparisons]
        for seed in (1, 1, 2)
    ]  # fmt: skip
    assert errors[0] == errors[1]
    assert errors[0] != errors[2]
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()


def test_progress_counts_every_check() -> None:
    seen: list[tuple[int, int]] = []
    proof = prove(model(), quick=True, progress=lambda done, total: seen.append((done, total)))
    count = len(proof.checks)
    assert seen == [(done, count) for done in range(count + 1)]


def test_references_are_computed_while_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = threading.Event()
    beside: list[bool] = []
    called: list[int] = []
    run_one = Experiment.run

    def compiled(cell: Any, shape: Any, run: Run) -> None:
        beside.append(computed.wait(60))

    def run_and_tell(self: Experiment, run: Run) -> Any:
        if run.backend == "reference":
            computed.set()
        else:
            called.append(len(beside))
        return run_one(self, run)

    monkeypatch.setattr("elman.parity.proof.compile_for", compiled)
    monkeypatch.setattr(Experiment, "run", run_and_tell)
    assert prove(model(), quick=True).passed
    assert all(beside)
    assert set(called) == {len(beside)}  # all are awaited before the first one is called


# ------------------------------------------------------------------------------- shapes and runs


@pytest.mark.parametrize("name", sorted(registry.cells()))
def test_every_cell_has_its_shapes(name: str) -> None:
    cell = registry.cell(name)
    defaults = {key: option.default for key, option in cell.options.items()}
    shapes, notes = shapes_for(cell, 256, defaults, quick=False)
    names = [shape.name for shape in shapes]
    assert names[:4] == ["one step", "segments", "from nothing", "strided input"]
    assert ("resets" in names[4:]) == (not cell.no_resets(defaults))
    assert [shape.resets for shape in shapes] == [one == "resets" for one in names]
    assert names[-1] == "own size"
    sized = [shape for shape in names if shape.startswith(("n_state", "width"))]
    assert len(sized) + len(notes) >= 5
    assert len(sized) >= 1
    for shape in shapes:
        cell.parse_options(shape.dim, shape.options)
    quick, _ = shapes_for(cell, 256, defaults, quick=True)
    # Without keys from before, other kernels of a transformer run.
    assert quick == shapes[: 3 if name == "llama" else 2]


def test_sizes_that_no_kernel_has_are_left_out_with_the_reason() -> None:
    cell = registry.cell("m2rnn")
    defaults = {name: option.default for name, option in cell.options.items()}
    shapes, notes = shapes_for(cell, 256, defaults, quick=False)
    sizes = {shape.options.get("n_state", 16) for shape in shapes}
    assert sizes == {16, 20, 28, 32}
    assert [note.partition(" left out: its kernels hold")[0] for note in notes] == [
        "n_state 64",
        "n_state 256",
    ]
    # A model that no kernel runs is checked in every size: the reference alone.
    shapes, notes = shapes_for(cell, 256, defaults | {"n_state": 48}, quick=False)
    assert {shape.options["n_state"] for shape in shapes} == {16, 20, 28, 32, 48, 64, 256}
    assert not notes


def test_a_large_layer_is_checked_at_small_sizes_only() -> None:
    cell = registry.cell("e88")
    defaults = {key: option.default for key, option in cell.options.items()}
    shapes, notes = shapes_for(cell, 4096, defaults | {"n_heads": 160}, quick=False)
    assert "own size" not in {shape.name for shape in shapes}
    assert any(note.startswith("own size left out: ") for note in notes)


def test_a_cell_without_kernels_is_checked_against_itself() -> None:
    cell = dataclasses.replace(CELL, backends=("reference",))
    runs, notes = runs_here(cell)
    assert [(run.backend, run.precision) for run in runs] == [("reference", "fp32")]
    assert notes == ["no kernel yet: reference in fp32 against fp64"]


def test_a_backend_that_cannot_run_here_is_said_or_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cell = dataclasses.replace(CELL, backends=("reference", "cpu", "cuda"))
    runs, notes = runs_here(cell)
    assert {run.backend for run in runs} == {"reference", "cpu"}
    assert notes == ["not checked: kernels.backend=cuda: torch sees no GPU here"]
    with pytest.raises(UserError, match="torch sees no GPU here"):
        runs_here(cell, "cuda")


# ------------------------------------------------------------------------------- the mode


def run_mode(tmp_path: Path, *overrides: str) -> tuple[ExitStatus, dict[str, Any]]:
    config = compose_config(["mode=parity", *overrides])
    status = parity_mode.run(PreparedRun(config, tmp_path))
    return status, json.loads((tmp_path / "parity.json").read_text())


@pytest.mark.parametrize("name", ["e1", "e61", "e23", "e75h4n16"])
def test_the_mode_passes_writes_and_prints(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("ELMAN_PROGRESS", raising=False)
    small = ["model.dim=128", "parity.quick=true"]
    status, result = run_mode(tmp_path, f"model={name}", *small)
    assert status is ExitStatus.OK
    assert result["status"] == "ok"
    assert (result["model"], result["seed"], result["quick"]) == (name, 42, True)
    shown = capsys.readouterr()
    assert "relative L2" in shown.out
    assert f"{name}: {len(result['checks'])} checks passed" in shown.out
    lines = shown.err.splitlines()  # no terminal: a line at once, another every few seconds
    assert f"checking {name}: 0 of {len(result['checks'])} ..." in lines


def test_a_failure_is_listed_and_fails_the_job(tmp_path: Path, capsys, monkeypatch) -> None:
    config = compose_config(["mode=parity", "parity.quick=true"])
    config = config.model_copy(update={"model": model("last channel unwritten")})
    assert parity_mode.run(PreparedRun(config, tmp_path)) is ExitStatus.FAILED
    result = json.loads((tmp_path / "parity.json").read_text())
    assert result["status"] == "failed"
    wrong = [t for c in result["checks"] for t in c["tensors"] if not t["passed"]]
    assert wrong[0]["relative_l2"] is None  # NaN
    printed = capsys.readouterr().out
    assert "wrong: y of cpu fp32 at one step (B=2 T=1 dim=24 n=3): relative L2 nan" in printed
    assert "6 of 18 checks failed" in printed  # ten of them are of the norms, which pass


def test_an_excused_error_is_shown_with_the_references_own(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    """The gradient of E70's decay adds up rows, steps and the whole state; here as if of many."""

    def only_one(*given: Any, **how: Any) -> Any:
        shapes, _ = shapes_for(*given, **how)
        return [shape for shape in shapes if shape.name == "n_state 28"], []

    def as_many(*given: Any, terms: float, **how: Any) -> Any:
        return compare_beside(*given, **how)

    monkeypatch.setattr(proof_module, "shapes_for", only_one)
    monkeypatch.setattr(proof_module, "compare_beside", as_many)
    status, result = run_mode(tmp_path, "model=e70", "kernels.backend=cpu")
    assert status is ExitStatus.OK
    bf16 = next(check for check in result["checks"] if check["precision"] == "bf16")
    decay = next(one for one in bf16["tensors"] if one["tensor"] == "d decay")
    assert decay["relative_l2"] > 0.1
    assert decay["reference_relative_l2"] > 0.1
    assert decay["from_reference"] < 0.02
    assert decay["excused"]
    printed = capsys.readouterr().out
    (row,) = (line.split() for line in printed.splitlines() if "yes*" in line)
    assert f"{decay['reference_relative_l2']:.1e}" in row
    assert "* d decay of cpu bf16 at n_state 28: relative L2 2." in printed
    assert "of the reference itself in bf16: rounded numbers whose sum nearly cancels" in printed


def test_a_sweep_ends_in_one_table(capsys) -> None:
    configs = [compose_config(["mode=parity", f"model={name}"]) for name in ("e1", "e61", "e23")]
    proofs = [prove(model(), quick=True), prove(model("second segment"), quick=True)]
    rows = [
        SweepRow(1, ["model=e1"], "ok", proofs[0].as_json()),
        SweepRow(2, ["model=e61"], "failed", proofs[1].as_json()),
        SweepRow(3, ["model=e23"], "killed (SIGKILL)", None),
    ]
    print_parity_sweep(rows, configs, Path("/there"))
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    counted = [line for line in lines if "2/2" in line or "1/2" in line]
    assert len(counted) == 8  # and two of the norms of each, of five checks each
    assert sum("add_norm" in line for line in lines if "5/5" in line) == 4
    assert sum("NO" in line for line in counted) == 2  # a fault of 0.1 % is below bf16's rounding
    assert "killed" in printed
    assert "sweep folder: /there" in printed


def test_the_command_refuses_what_cannot_run(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["mode=parity", "model=mamba2", "kernels.backend=cpu"]) == ExitStatus.USER_ERROR
    errors = capsys.readouterr().err
    assert errors.startswith("elman: error: kernels.backend=cpu: cell mamba2 has only reference")
    assert list(tmp_path.iterdir()) == []
