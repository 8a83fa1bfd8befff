"""The report that a machine with a GPU writes, as far as one without can."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu" / "gpu_check.py"


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def settings(gpu_check, tmp_path: Path):
    return gpu_check.Settings(tmp_path, quick=True, jobs=2)


NO_GPU = (
    "gpu_check",
    "gpu_as_typed",
    "gpu_train",
    "gpu_replay",
    "gpu_ranks",
    "gpu_peer_speed",
    "gpu_optim",
)
# Runs scripts as Python would, one after another in a process that has imported torch once.
RUN = """
import contextlib, io, json, os, runpy, sys
place, *scripts = sys.argv[1:]
found = {}
for script in scripts:
    sys.argv, sys.path[0] = [script, "--out", place], os.path.dirname(script)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            runpy.run_path(script, run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code
            if isinstance(status, str):  # which Python prints
                status, _ = 1, print(status, file=sys.stderr)
    found[script] = status, errors.getvalue()
print(json.dumps(found))
"""


def test_without_a_gpu_one_line_and_status_2(tmp_path: Path) -> None:
    scripts = [str(SCRIPT.with_stem(script)) for script in (*NO_GPU, "gpu_devices")]
    command = [sys.executable, "-c", RUN, str(tmp_path), *scripts]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == scripts
    for script, (status, errors) in found.items():
        assert (status, errors.count("\n")) == (2, 1), (script, errors)
    *others, second = (errors for _, errors in found.values())
    assert all("torch sees no GPU here" in errors for errors in others)
    assert second == "gpu_devices: torch sees no second GPU here\n"
    assert list(tmp_path.iterdir()) == []


def test_parts_that_do_not_run_are_named_with_the_reason(gpu_check, monkeypatch) -> None:
    torch = importlib.import_module("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpu_check.left_out(quick=True) == {
        "models": "since --quick leaves it to the full check",
        "devices": "since it needs two GPUs",
    }
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpu_check.left_out(quick=False) == {}


def test_two_gpus_are_compared_in_every_cell_with_cuda_kernels(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    devices = importlib.import_module("gpu_devices")
    registry = importlib.import_module("elman.models.cells.registry")
    wanted = {name for name, cell in registry.cells().items() if "cuda" in cell.backends}
    assert set(devices.cells()) == wanted
    for name in devices.cells():
        assert devices.model_of(name).cell == name


def test_every_cell_with_kernels_of_elman_is_proved(gpu_check) -> None:
    registry, compose = gpu_check.registry, importlib.import_module("elman.config.compose")
    quick, all_ = gpu_check.models(True), gpu_check.models(False)
    wanted = {name for name, cell in registry.cells().items() if "cuda" in cell.backends}
    assert quick["m2rnn"] == "triton"
    assert quick["llama"] == "cuda"
    cells = [compose.compose_config([f"model={name}"]).model.cell for name in quick]
    assert sorted(cells) == sorted(wanted | {"m2rnn"})
    assert set(quick) < set(all_)


def test_a_part_that_fails_stops_no_other_and_the_report_says_so(
    gpu_check, settings, monkeypatch, tmp_path: Path
) -> None:
    def broken(settings: object) -> dict[str, object]:
        raise RuntimeError("no luck")

    parts = {"kernels": broken, "channel": lambda settings: {"passed": True}}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    report = gpu_check.check(list(parts), settings)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert (report["kernels"]["passed"], report["channel"]["passed"]) == (False, True)
    page = (tmp_path / "report.md").read_text()
    assert "| kernels | FAILED, 0 s | RuntimeError('no luck') |" in page
    assert "| channel | passed, 0 s |  |" in page


def test_a_missing_checker_is_named_and_fails(gpu_check, settings, monkeypatch) -> None:
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: None)
    found = gpu_check.PARTS["racecheck"](settings)
    problem = "compute-sanitizer is not installed (CUDA toolkit)"
    assert found == {"passed": False, "problem": problem}


def test_what_a_script_finds_is_in_the_report(gpu_check, settings, monkeypatch) -> None:
    script = settings.out / "some.py"
    script.write_text(
        "import sys, pathlib\n"
        "pathlib.Path(sys.argv[2], 'some.json').write_text('{\"a\": 1}')\n"
        "print('the last line')\nsys.exit(3)\n"
    )
    monkeypatch.setattr(gpu_check, "HERE", settings.out)
    found = gpu_check.benchmark("some")(settings)
    assert (found["passed"], found["status"], found["found"]) == (False, 3, {"a": 1})
    assert found["problem"] == "the last line"


def test_parity_rows_show_what_failed(gpu_check, settings, monkeypatch) -> None:
    checks = {
        "cuda bf16": {
            "passed": "1 of 2",
            "worst": "d x",
            "relative_l2": None,
            "tolerance": 2e-2,
        }
    }
    rows = {
        "e61": {"model": "e61", "passed": False, "status": 1, "checks": checks},
        "e34": {"model": "e34", "passed": False, "status": None, "problem": "stopped"},
    }
    monkeypatch.setattr(gpu_check, "models", lambda quick: dict.fromkeys(rows, "cuda"))
    monkeypatch.setattr(gpu_check, "prove", lambda name, backend, settings: rows[name])
    part = gpu_check.parity(settings)
    assert (part["passed"], part["problem"]) == (False, "2 of 2 models: e61, e34")
    page = gpu_check.markdown({"parity": part | {"seconds": 1.0}})
    assert "| e61 | cuda bf16 | 1 of 2 | d x | not a number | 2.0e-02 |" in page
    assert "| e34 | stopped | none |" in page


def test_speeds_of_models_are_on_the_page(gpu_check) -> None:
    rates = {"eager": {"tok_s": 5}, "graph": {"tok_s": 6}}
    found = {
        "e61": {"params": 7, "peak_gb": 0.5} | rates,
        "mamba2": {"error": "UserError: not installed"},
    }
    part = {"passed": True, "seconds": 2.0, "found": {"models": found}}
    page = gpu_check.markdown({"models": part})
    assert "| e61 | 7 | 0.5 | 5 | 6 |  |" in page
    assert "| mamba2 |  |  |  |  | UserError: not installed |" in page


def test_times_of_the_norm_are_on_the_page(gpu_check) -> None:
    figures = {"forward_us": 74.4, "forward_gb_s": 4057, "forward_over_floor": 1.04}
    found = {"times": {"1536": {"kernel": figures, "fla": {"error": "ImportError()\nmore"}}}}
    part = {"passed": True, "seconds": 2.0, "found": found}
    page = gpu_check.markdown({"norm": part})
    assert "| norm | passed, 2 s |  |" in page
    assert "| 1536 | kernel | 74.4 | 4057 | 1.04 |  |  |  |" in page
    assert "| 1536 | fla |" + " ImportError() |" * 6 in page


def test_the_norm_is_a_part_of_the_report(gpu_check) -> None:
    assert "norm" in gpu_check.PARTS
    assert (SCRIPT.parent / "gpu_norm.py").exists()


def test_commands_are_run_as_they_are_typed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    as_typed = importlib.import_module("gpu_as_typed")
    right = as_typed.typed("elman --version", 1, tmp_path, 1.0)
    assert (right["passed"], right["status"]) == (True, 0)
    wrong = as_typed.typed("elman train.minute=3", 2, tmp_path, 1.0)
    assert (wrong["passed"], wrong["status"]) == (False, 2)
    assert wrong["error"].startswith("elman: error: train.minute=3: no such setting")


def test_the_commands_of_the_front_page_are_among_them(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    as_typed = importlib.import_module("gpu_as_typed")
    lines = as_typed.commands(30)
    assert "elman -m model=e75h4n16,mamba2,fla-gdn train.minutes=0.5" in lines
    compose = importlib.import_module("elman.config.compose").compose_config
    for line in lines:
        words = line.removeprefix("elman ").split()
        compose([word for word in words if word != "-m" and "," not in word])
