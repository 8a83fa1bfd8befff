"""Packages of the packaged baselines: what is refused on a GPU, with which command, and marks."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.bench import benchmark, subjects
from elman.bench.entries import entries
from elman.config.compose import compose_config
from elman.data import text
from elman.evaluation.result import RunResult
from elman.kernels import packages
from elman.kernels.packages import import_kernels, package_problem
from elman.launchers.job import wants_gpu
from elman.models import backends
from elman.models.backends import computation_path, on_slow_path, resolve_backend, tuning_note
from elman.models.build import build_model
from elman.models.cells import registry
from elman.modes import bench as bench_mode
from elman.modes import parity as parity_mode
from elman.modes import train, train_description
from elman.parity import gate, proof
from elman.parity.checks import Check, Proof
from elman.parity.compare import Comparison
from elman.parity.experiment import Experiment, Run
from elman.parity.proof import runs_here
from elman.parity.shapes import Shape, TrainedSizes, few_rows
from elman.report.summary import print_summary
from elman.report.tables.bench import print_bench_sweep
from elman.report.tables.parity import print_parity_sweep
from elman.report.tables.sweep import sweep_table
from elman.runs.prepared import PreparedRun
from elman.sweeps.row import SweepRow

GPU = torch.device("cuda", 0)
MAMBA2, GDN, E88 = (registry.cell(name) for name in ("mamba2", "fla_gdn", "e88"))
MAMBA_COMMAND = (
    "pip install setuptools wheel && MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE "
    "pip install --no-build-isolation 'elman[mamba]'"
)


@pytest.fixture
def installed(monkeypatch) -> dict[str, str]:
    """Return what is installed, by distribution, for the test to change; a Hopper GPU is there."""
    found = {
        "mamba-ssm": "2.3.2.post1",
        "flash-linear-attention": "0.6.0",
        "triton": "3.7.1",
        "einops": "0.8.2",
        "packaging": "26.0",
    }
    names = {"mamba_ssm": "mamba-ssm", "fla": "flash-linear-attention"}
    monkeypatch.setattr(packages, "importable", lambda name: names.get(name, name) in found)
    for module in (packages, backends):
        monkeypatch.setattr(module, "installed_version", found.get)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return found


@pytest.mark.parametrize("name", ["mamba-ssm", "flash-linear-attention"])
def test_a_complete_installation_has_no_problem(name, installed) -> None:
    assert package_problem(name, GPU) is None


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("mamba-ssm", {"mamba-ssm": None}, f"mamba-ssm is not installed; {MAMBA_COMMAND}"),
        (
            "mamba-ssm",
            {"einops": None, "packaging": None},
            "mamba-ssm needs einops and packaging; pip install einops packaging",
        ),
        (
            "mamba-ssm",
            {"mamba-ssm": "1.2.0"},
            f"mamba-ssm 1.2.0 is older than 2.2.2; {MAMBA_COMMAND} --upgrade",
        ),
        (
            "flash-linear-attention",
            {"flash-linear-attention": None, "triton": None},
            "flash-linear-attention is not installed; pip install 'elman[fla]'",
        ),
        (
            "flash-linear-attention",
            {"triton": "3.6.0"},
            "triton 3.6.0 computes wrong gradients of flash-linear-attention's gated delta rule on "
            "Hopper; pip install --upgrade 'torch>=2.12.1', which brings triton 3.7.1",
        ),
    ],
    ids=["missing", "missing beside", "old", "fla missing", "known bad"],
)
def test_each_problem_comes_with_its_command(name, change, problem, installed) -> None:
    for distribution, version in change.items():
        installed.pop(distribution)
        if version is not None:
            installed[distribution] = version
    assert package_problem(name, GPU) == problem
    assert package_problem(name, "cpu") is None


@pytest.mark.parametrize(
    ("triton", "capability", "bad"),
    [
        ("3.3.1", (9, 0), False),
        ("3.4.0", (9, 0), True),
        ("3.7.0", (9, 0), True),
        ("3.7.1", (9, 0), False),
        ("3.6.0", (8, 0), False),
        ("3.6.0", (10, 0), False),
    ],
)
def test_gated_delta_is_refused_on_hopper_with_triton_340_to_370(
    triton, capability, bad, installed, monkeypatch
) -> None:
    installed["triton"] = triton
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (package_problem("flash-linear-attention", GPU) is not None) == bad
    assert package_problem("mamba-ssm", GPU) is None


@pytest.mark.parametrize("cell", [MAMBA2, GDN], ids=lambda cell: cell.name)
def test_the_backend_on_each_device(cell, installed) -> None:
    assert resolve_backend(cell, "auto", GPU) == "triton"
    assert resolve_backend(cell, "auto", GPU, allow_slow=True) == "triton"
    assert resolve_backend(cell, "auto", "cpu") == "reference"
    assert resolve_backend(cell, "reference", "cpu") == "reference"
    assert resolve_backend(cell, "reference", GPU, allow_slow=True) == "reference"
    with pytest.raises(UserError, match=r"kernels\.backend=triton: does not run on a cpu device"):
        resolve_backend(cell, "triton", "cpu")
    with pytest.raises(UserError, match=r"slow path .* add baseline.allow_slow=true"):
        resolve_backend(cell, "reference", GPU)


def test_a_missing_package_is_refused_unless_the_slow_path_is_allowed(installed) -> None:
    del installed["mamba-ssm"]
    with pytest.raises(UserError) as caught:
        resolve_backend(MAMBA2, "auto", GPU)
    assert str(caught.value) == (
        f"model.cell=mamba2 on a GPU: mamba-ssm is not installed; {MAMBA_COMMAND}, "
        "or add baseline.allow_slow=true (plain PyTorch, marked)"
    )
    assert resolve_backend(MAMBA2, "auto", GPU, allow_slow=True) == "reference"
    with pytest.raises(UserError, match="mamba-ssm is not installed"):
        resolve_backend(MAMBA2, "triton", GPU, allow_slow=True)


def test_cells_without_a_package_are_not_concerned(installed) -> None:
    installed.clear()
    assert resolve_backend(E88, "reference", GPU) == "reference"
    assert computation_path(E88, "reference") is None


def test_paths_in_words(installed) -> None:
    assert computation_path(MAMBA2, "reference") == "plain PyTorch, chunked"
    assert computation_path(MAMBA2, "triton") == "mamba-ssm 2.3.2.post1"
    assert computation_path(GDN, "triton") == "flash-linear-attention 0.6.0"
    assert on_slow_path("reference")
    assert not on_slow_path("triton")


def test_only_kernels_of_packages_are_tuned_first(installed) -> None:
    for cell, backend in ((E88, "cuda"), (MAMBA2, "reference")):
        assert tuning_note(computation_path(cell, backend), backend) is None
    note = tuning_note(computation_path(MAMBA2, "triton"), "triton")
    assert note is not None
    assert note.endswith("tunes the package's kernels first, which takes up to a minute")


def test_a_model_on_a_gpu_is_refused_before_its_weights_are_made(installed, monkeypatch) -> None:
    del installed["flash-linear-attention"]
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: pytest.fail("made a weight"))
    with pytest.raises(UserError, match="flash-linear-attention is not installed"):
        build_model(compose_config(["model=fla-gdn"]).model, device="cuda")


def test_training_on_a_gpu_is_refused_before_the_data_is_opened(
    installed, monkeypatch, tmp_path
) -> None:
    del installed["mamba-ssm"]
    monkeypatch.setattr(train, "choose_device", lambda name: GPU)
    for opening in ("ByteSource", "open_files", "open_unpacked"):
        monkeypatch.setattr(text, opening, lambda *args: pytest.fail("opened the data"))
    with pytest.raises(UserError, match="mamba-ssm is not installed"):
        train.run(PreparedRun(compose_config(["model=mamba2"]), tmp_path))
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------- bench and parity

GPU_RUNS = [("triton", "cuda", "tf32"), ("triton", "cuda", "bf16")]
CPU_RUN, SLOW_RUN = ("reference", "cpu", "fp32"), ("reference", "cuda", "fp32")


@pytest.mark.parametrize(
    ("there", "slow", "timed", "left_out"),
    [
        (True, False, ["triton"], ["reference: plain PyTorch is the slow path of baseline mamba2"]),
        (True, True, ["triton", "reference"], []),
        (False, False, [], ["mamba-ssm is not installed", "slow path of baseline mamba2"]),
        (False, True, ["reference"], []),
    ],
    ids=["package", "package, slow allowed", "no package", "no package, slow allowed"],
)
def test_a_benchmark_on_a_gpu_times_what_training_would_run(
    there, slow, timed, left_out, installed
) -> None:
    if not there:
        del installed["mamba-ssm"]
    models = [compose_config(["model=mamba2"]).model]
    found, notes = entries(models, ["auto", "reference"], GPU, allow_slow=slow)
    assert [entry.backend for entry in found] == timed
    said = [note for note in notes if note.startswith("slow path: plain PyTorch runs cell mamba2")]
    assert len(said) == (slow and not there)
    notes = [note for note in notes if note not in said]
    assert len(notes) == len(left_out)
    for note, part in zip(notes, left_out, strict=True):
        assert part in note
        assert "add baseline.allow_slow=true" in note
    words = {"triton": "mamba-ssm 2.3.2.post1"}
    assert [entry.path for entry in found] == [
        words.get(name, "plain PyTorch, chunked") for name in timed
    ]


@pytest.mark.parametrize(
    ("there", "slow", "requested", "wanted"),
    [
        (True, False, "auto", [CPU_RUN, *GPU_RUNS]),
        (True, True, "auto", [CPU_RUN, *GPU_RUNS]),
        (True, False, "reference", [CPU_RUN]),
        (True, True, "reference", [CPU_RUN, SLOW_RUN]),
        (False, False, "auto", [CPU_RUN]),
        (False, True, "auto", [CPU_RUN, SLOW_RUN]),
    ],
)
def test_parity_on_a_gpu_checks_what_training_would_run(
    there, slow, requested, wanted, installed, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if not there:
        del installed["mamba-ssm"]
    runs, notes = runs_here(MAMBA2, requested, allow_slow=slow)
    assert [(run.backend, run.device, run.precision) for run in runs] == wanted
    assert len(notes) == (0 if there or requested != "auto" else 1)


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["model=mamba2", "kernels.backend=reference"], False),
        (["model=mamba2", "kernels.backend=reference", "baseline.allow_slow=true"], True),
        (["model=e1", "kernels.backend=reference", "baseline.allow_slow=true"], False),
        (["model=e61", "kernels.backend=cpu"], False),
        (["model=mamba2"], True),
    ],
    ids=["reference", "slow", "no package", "cpu", "auto"],
)
def test_a_parity_job_takes_a_gpu_for_what_it_checks_there(overrides, wanted) -> None:
    assert wants_gpu(compose_config(["mode=parity", *overrides])) == wanted


@pytest.mark.parametrize("mode", ["parity", "bench"])
def test_bench_and_parity_hand_on_that_slow_is_allowed(mode, monkeypatch, tmp_path) -> None:
    asked: list[bool] = []

    def stop(*args: Any, allow_slow: bool, **kwargs: Any) -> Any:
        asked.append(allow_slow)
        raise UserError("enough")

    monkeypatch.setattr(parity_mode, "prove", stop)
    monkeypatch.setattr(benchmark, "entries", stop)
    run = {"parity": parity_mode, "bench": bench_mode}[mode].run
    for given in (["baseline.allow_slow=true"], []):
        with pytest.raises(UserError, match="enough"):
            run(PreparedRun(compose_config([f"mode={mode}", *given]), tmp_path))
    assert asked == [True, False]


def test_a_benched_step_is_built_as_training_would_build_it(monkeypatch) -> None:
    config = compose_config(["mode=bench", "baseline.allow_slow=true"])

    def stop(*args: Any, allow_slow: bool, **kwargs: Any) -> Any:
        raise UserError(f"allow_slow={allow_slow}")

    monkeypatch.setattr(subjects, "build_model", stop)
    with pytest.raises(UserError, match="allow_slow=True"):
        subjects.StepSubject(config, SimpleNamespace(tokenizer=None), "reference", GPU)


@pytest.mark.parametrize("model", ["mamba2", "fla-gdn"])
def test_bench_and_parity_say_what_computed_a_baseline(model, tmp_path, capsys) -> None:
    said = f"{model}, reference: plain PyTorch, chunked, the slow path"
    small = [f"model={model}", "model.dim=128", "model.depth=1", "baseline.allow_slow=true"]
    config = compose_config(["mode=parity", "parity.quick=true", *small])
    assert parity_mode.run(PreparedRun(config, tmp_path)) == ExitStatus.OK
    assert said in capsys.readouterr().out.splitlines()
    result = json.loads((tmp_path / "parity.json").read_text())
    one, *norms = result["summary"]
    assert {(row["part"], row["path"]) for row in norms} == {("add_norm", None)}
    assert (one["path"], one["slow_path"]) == ("plain PyTorch, chunked", True)
    print_parity_sweep([SweepRow(1, [], "ok", result)], [config], None)
    assert said in capsys.readouterr().out.splitlines()
    sizes = ["bench.rounds=1", "bench.batch_size=1", "bench.chunk_size=16"]
    config = compose_config(["mode=bench", *sizes, *small])
    assert bench_mode.run(PreparedRun(config, tmp_path)) == ExitStatus.OK
    assert said in capsys.readouterr().out.splitlines()
    result = json.loads((tmp_path / "bench.json").read_text())
    (row,) = result["rows"]
    assert (row["path"], row["slow_path"]) == ("plain PyTorch, chunked", True)
    print_bench_sweep([SweepRow(1, [], "ok", result)], [config], None)
    assert said in capsys.readouterr().out.splitlines()


def test_a_proof_holds_for_one_version_of_a_package(installed, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(gate, "kernel_cache", lambda: tmp_path)
    made: list[str] = []

    def proved(config: Any, runs: Any, **settings: Any) -> Proof:
        made.append(installed["mamba-ssm"])
        worst = Comparison("y", relative_l2=0.0, cosine=1.0, max_abs=0.0, tolerance=1e-4)
        return Proof("mamba2", "mamba2", checks=[Check(runs[0], "one", "", [worst])])

    monkeypatch.setattr(gate, "prove_runs", proved)
    model = compose_config(["model=mamba2"]).model
    for version in ("2.3.2", "2.3.2", "2.4.0"):
        installed["mamba-ssm"] = version
        gate.require_parity(model, "triton", "cuda", "fp32", tmp_path, lambda line: None)
    assert made == ["2.3.2", "2.4.0"]


def test_a_baseline_is_judged_as_it_is_trained(installed, monkeypatch, tmp_path) -> None:
    """Triton's fp32 products are TF32, and every new size is tuned."""
    monkeypatch.setattr(gate, "kernel_cache", lambda: tmp_path)
    judged: list[tuple[Run, TrainedSizes]] = []

    def proved(config: Any, run: Run, sizes: TrainedSizes, *, seed: int) -> Proof:
        judged.append((run, sizes))
        worst = Comparison("y", relative_l2=0.0, cosine=1.0, max_abs=0.0, tolerance=1e-4)
        return Proof("mamba2", "mamba2", checks=[Check(run, "one", "", [worst])])

    monkeypatch.setattr(gate, "prove_as_trained", proved)
    model = compose_config(["model=mamba2"]).model
    sizes, longer = TrainedSizes(32, 512, False), TrainedSizes(32, 1024, False)
    asked = [("bf16", sizes), ("bf16", sizes), ("fp32", sizes), ("bf16", longer)]
    for precision, wanted in asked:
        gate.require_parity(
            model, "triton", "cuda", precision, tmp_path, lambda line: None, sizes=wanted
        )
    found = [(run.precision, sizes.chunk_size) for run, sizes in judged]
    assert found == [("bf16", 512), ("tf32", 512), ("bf16", 1024)]


@pytest.mark.parametrize("carried", [False, True])
def test_the_check_has_the_steps_of_training_and_few_rows(carried, monkeypatch) -> None:
    shapes: list[Shape] = []

    class Noted(Experiment):
        def __init__(self, cell: Any, shape: Shape, seed: int, device: str) -> None:
            shapes.append(shape)
            super().__init__(cell, shape, seed, device)

    monkeypatch.setattr(proof, "Experiment", Noted)
    model = compose_config(["model=mamba2", "model.dim=128", "model.depth=1"]).model
    run = Run("reference", "cpu", "bf16")
    made = proof.prove_as_trained(model, run, TrainedSizes(32, 24, carried), seed=3)
    (shape,) = shapes
    assert (shape.batch, shape.steps, shape.dim) == (16, 24, 128)
    assert made.passed
    names = {one.tensor for one in made.checks[0].comparisons}
    assert {"y", "d x", "d A_log"} <= names
    assert ("d S first" in names) == carried


def test_sizes_of_the_check_keep_what_triton_compiles_for() -> None:
    def checked(batch: int, steps: int) -> tuple[int, int]:
        few = few_rows(Shape("as trained", batch, steps, 128))
        return few.batch, few.steps

    assert checked(32, 512) == (16, 512)
    assert checked(48, 2048) == (16, 512)
    assert checked(20, 500) == (15, 500)
    assert checked(4, 1000) == (4, 511)
    assert checked(1, 16) == (1, 16)


def test_a_wrong_kernel_fails_at_the_sizes_of_training(monkeypatch) -> None:
    right = Experiment.run

    def wrong(self: Experiment, run: Run) -> dict[str, torch.Tensor]:
        found = right(self, run)
        if run.precision == "tf32":
            found["d x"] = found["d x"] * 1.011
        return found

    monkeypatch.setattr(Experiment, "run", wrong)
    model = compose_config(["model=mamba2", "model.dim=128", "model.depth=1"]).model
    run = Run("reference", "cpu", "tf32")
    made = proof.prove_as_trained(model, run, TrainedSizes(2, 16, False), seed=3)
    assert not made.passed
    assert made.checks[0].worst.tensor == "d x"


# ------------------------------------------------------------------------------- imports and runs


@pytest.fixture
def broken_root(tmp_path, monkeypatch) -> Path:
    """Make packages whose roots cannot be imported, with a module below each."""
    for root in ("mamba_ssm", "fla"):
        folder = tmp_path / root / "ops"
        folder.mkdir(parents=True)
        (tmp_path / root / "__init__.py").write_text("import selective_scan_cuda\n")
        (folder / "__init__.py").touch()
        (folder / "inner.py").write_text("ANSWER = 42\n")
        (folder / "outer.py").write_text(f"from {root}.ops.inner import ANSWER\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_kernels_are_imported_without_a_root_that_needs_what_is_not_there(broken_root) -> None:
    try:
        assert import_kernels("mamba-ssm", "ops.outer").ANSWER == 42
        # Whoever imports the package itself gets the package itself.
        assert "mamba_ssm" not in sys.modules
        assert import_kernels("mamba-ssm", "ops.inner").ANSWER == 42
    finally:
        for name in [name for name in sys.modules if name.startswith("mamba_ssm")]:
            del sys.modules[name]


def test_a_root_that_kernels_do_not_need_runs_when_it_is_read(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "fla" / "ops"
    folder.mkdir(parents=True)
    (tmp_path / "fla" / "__init__.py").write_text("LAYERS = ['all', 'of', 'them']\n")
    (folder / "__init__.py").write_text("from fla import __version__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert hasattr(import_kernels("flash-linear-attention", "ops"), "__version__")
        root = sys.modules["fla"]
        assert "LAYERS" not in vars(root)
        assert import_module("fla").LAYERS == ["all", "of", "them"]
        with pytest.raises(AttributeError):
            root.no_such_layer  # noqa: B018
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
            del sys.modules[name]


def test_a_package_decorates_for_torch_compile_without_dynamo(tmp_path) -> None:
    folder = tmp_path / "fla" / "ops"
    folder.mkdir(parents=True)
    (tmp_path / "fla" / "__init__.py").touch()
    (folder / "__init__.py").write_text("from fla.ops import everything\n")
    (folder / "everything.py").write_text("raise ImportError('not needed')\n")
    (folder / "own.py").write_text(
        "import sys, torch\n"
        "@torch.compiler.disable\n"
        "def apart(x): return (x, torch.compiler.is_compiling())\n"
        "@torch.compile(backend='eager', fullgraph=True)\n"
        "def whole(x): return (x + 1, torch.compiler.is_compiling())\n"
        "LOADED = 'torch._dynamo' in sys.modules\n"
    )
    code = (
        "import torch; from elman.kernels.packages import import_kernels\n"
        "plain = torch.compile, torch.compiler.disable\n"
        "own = import_kernels('flash-linear-attention', 'ops.own')\n"
        "assert plain == (torch.compile, torch.compiler.disable) and not own.LOADED\n"
        "one = torch.ones(())\n"
        "assert own.whole(one) == (2, True) and own.apart(one) == (1, False)\n"
        "assert torch.compile(lambda x: own.apart(x + 1), backend='eager')(one) == (2, False)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "module", "reason"),
    [
        ("mamba-ssm", "ops.nowhere", "No module named 'mamba_ssm.ops.nowhere'"),
        ("flash-linear-attention", "ops.nowhere", "No module named 'fla.ops.nowhere'"),
    ],
)
def test_what_cannot_be_imported_is_one_line_with_the_command(
    name, module, reason, broken_root
) -> None:
    with pytest.raises(UserError) as caught:
        import_kernels(name, module)
    command = packages.PACKAGES[name].install
    assert str(caught.value) == f"{name} cannot be imported ({reason}); {command}"


SMALL = (
    "model.dim=128",
    "model.depth=1",
    "train.batch_size=2",
    "train.chunk_size=16",
    "train.steps=2",
    "data.val_sample=32",
    "data.val_window=16",
    "log.tensorboard=false",
)


@pytest.mark.parametrize("model", ["mamba2", "fla-gdn"])
def test_a_run_on_a_cpu_is_marked(model, tmp_path, text_file) -> None:
    config = compose_config([f"model={model}", *SMALL, f"data.path={text_file}"])
    assert train.run(PreparedRun(config, tmp_path)) == ExitStatus.OK
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    assert (result["backend"], result["path"]) == ("reference", "plain PyTorch, chunked")
    assert result["slow_path"] is True
    assert {"mamba-ssm", "flash-linear-attention"} <= set(result["environment"]["packages"])
    printed = io.StringIO()
    print_summary(Console(file=printed, width=200), tmp_path, RunResult.model_validate(result))
    assert "backend reference: plain PyTorch, chunked, the slow path" in printed.getvalue()
    row = SweepRow(1, [f"model={model}"], "ok", result)
    printed = io.StringIO()
    Console(file=printed, width=200).print(sweep_table([row]))
    assert "ok, slow path" in printed.getvalue()


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (parity_mode, "checking mamba2 (soon): 0 of 12 ..."),
        (benchmark, "timing one layer, rounds: 1; soon ..."),
        (train_description, "soon; it is not counted"),
    ],
    ids=["parity", "bench", "train"],
)
def test_a_long_start_is_announced(module, line, tmp_path, capsys, monkeypatch, text_file) -> None:
    monkeypatch.delenv("ELMAN_PROGRESS", raising=False)
    monkeypatch.setattr(module, "tuning_note", lambda path, backend: "soon")
    small = ["model=mamba2", "model.dim=128", "model.depth=1"]
    if module is train_description:
        train.run(
            PreparedRun(
                compose_config(["model=mamba2", *SMALL, f"data.path={text_file}"]), tmp_path
            )
        )
    elif module is benchmark:
        sizes = ["bench.rounds=1", "bench.batch_size=1", "bench.chunk_size=16", "bench.level=layer"]
        bench_mode.run(PreparedRun(compose_config(["mode=bench", *sizes, *small]), tmp_path))
    else:
        parity_mode.run(
            PreparedRun(compose_config(["mode=parity", "parity.quick=true", *small]), tmp_path)
        )
    said = capsys.readouterr()
    assert line in (said.out if module is train_description else said.err).splitlines()


def test_every_mode_that_builds_a_model_hands_on_that_slow_is_allowed(monkeypatch) -> None:
    """Evaluation and generation, too: a checkpoint of a baseline is opened on a GPU as well."""
    from elman.modes import eval as eval_mode
    from elman.modes import generate

    asked: list[bool] = []

    def load(*args: Any, allow_slow: bool, **kwargs: Any) -> Any:
        asked.append(allow_slow)
        raise UserError("enough")

    for mode, module in (("eval", eval_mode), ("generate", generate)):
        monkeypatch.setattr(module, "load", load)
        config = compose_config(
            [f"mode={mode}", f"{mode}.checkpoint=x", "baseline.allow_slow=true"]
        )
        for name in ("find_checkpoint", "saved_config"):
            if hasattr(module, name):
                found = SimpleNamespace(path=None, data=None, model=config.model)
                monkeypatch.setattr(module, name, lambda place, found=found: found)
        with pytest.raises(UserError, match="enough"):
            module.run(PreparedRun(config))
    assert asked == [True, True]
