"""The checks of a GPU, as far as a machine without one can run them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from elman.config.compose import compose_config
from elman.models.cells import registry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tools" / "gpu"


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def module(name: str) -> ModuleType:
    return importlib.import_module(f"tools.gpu.{name}")


def job(place: Path, name: str = "all", **settings: object):
    return module("job").Job(name, place, quick=True, settings={"jobs": 2} | settings)


# Runs checks as the command line does, in a process that has imported torch once.
RUN = """
import contextlib, io, json, sys
root, place, *names = sys.argv[1:]
sys.path.insert(0, root)
from tools.gpu.run import main
found = {}
for name in names:
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        found[name] = main([name, "--out", place]), errors.getvalue()
print(json.dumps(found))
"""


def test_without_a_gpu_one_line_and_status_2(tmp_path: Path) -> None:
    names = list(module("run").MODULES)
    command = [sys.executable, "-c", RUN, str(ROOT), str(tmp_path), *names]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {name: [2, f"{name}: torch sees no GPU here\n"] for name in names}
    assert list(tmp_path.iterdir()) == []


def test_every_check_is_listed_with_what_it_is(capsys) -> None:
    run = module("run")
    assert run.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(run.MODULES)
    assert all(len(line.split()) > 3 for line in lines)
    declared = {path.stem for path in FOLDER.glob("*.py") if "\nCHECK = " in path.read_text()}
    assert set(run.MODULES.values()) == declared


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["norms"], "norms: no such check; checks: all, "),
        (["norm", "tiem"], "norm: tiem: no such part; parts: parity, time"),
        (["typed", "minutes=3"], "typed: minutes: no such setting; settings: seconds"),
        (["typed", "seconds=long"], "typed: seconds=long: float is expected"),
        (["tape", "both=maybe"], "tape: both=maybe: true or false is expected"),
        (["tape", "--only=spiral"], "tape: --only spiral: no such name; names: "),
        (["norm", "--device=cpu"], "norm: --device cpu: the parts that a CPU can try are: none"),
        (["dense", "time", "--device=cpu"], "dense: --device cpu: the parts that a CPU can try"),
    ],
)
def test_a_word_that_means_nothing_is_one_line_and_status_2(words, problem, capsys) -> None:
    assert module("run").main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(problem)
    assert said.count("\n") == 1


def test_only_takes_a_name_or_a_part_of_names() -> None:
    run, check = module("run"), module("job").Check({}, names=lambda: ("e1", "e10", "lstm"))
    assert run.names_of("e1", check) == ("e1",)
    assert run.names_of("e,stm", check) == ("e1", "e10", "lstm")
    assert run.names_of("", check) == ()


def test_an_error_in_one_part_stops_no_other_and_the_file_says_so(tmp_path: Path) -> None:
    def broken(job) -> None:
        job.report({"n": 1, "passed": True})
        raise RuntimeError("no luck")

    check = module("job").Check({"one": broken, "two": lambda job: job.report({"n": 2})})
    asked = module("job").Job("some", tmp_path, device="cpu")
    assert module("run").run(asked, check, ["one", "two"], "") == 1
    rows = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert [row["part"] for row in rows] == ["machine", "one", "one", "two"]
    assert rows[2] == {"part": "one", "passed": False, "error": "RuntimeError: no luck"}


def test_a_file_holds_the_results_of_one_run_alone(tmp_path: Path) -> None:
    for _ in range(2):
        job(tmp_path).report({"n": 1})
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 1


def test_a_name_that_kills_its_process_is_wrong_and_the_others_are_reported(
    tmp_path: Path, monkeypatch
) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "item, place = (word.partition('=')[2] for word in sys.argv[3:5])\n"
        "rows = [{'part': 'machine'}, {'part': 'p', 'passed': item != 'wrong'}]\n"
        "path = pathlib.Path(place, 'some.jsonl')\n"
        "path.write_text(''.join(json.dumps(row) + chr(10) for row in rows))\n"
        "print('the last line')\n"
        "sys.exit({'right': 0, 'wrong': 1, 'killed': 7}[item])\n"
    )
    processes = module("processes")
    monkeypatch.setattr(processes, "RUNNER", script)
    asked = job(tmp_path, "some")
    asked.part = "p"
    processes.each_in_a_process(asked, ["right", "wrong", "killed"], at_once=2, limit_s=60)
    assert [(row["item"], row["passed"]) for row in asked.rows] == [
        ("right", True),
        ("wrong", False),
        ("killed", True),
        ("killed", False),
    ]
    assert asked.rows[-1]["error"].startswith("the last line; ")


def test_a_nan_and_a_wrong_bit_are_found() -> None:
    torch, tool = importlib.import_module("torch"), module("instruments")
    one = torch.tensor([3.0, 4.0])
    assert tool.distance(one + torch.tensor([0.0, 0.5]), one) == pytest.approx(0.1)
    assert tool.distance(torch.tensor([torch.nan, 4.0]), one) == tool.NOT_A_NUMBER
    assert tool.cosine(one, 2 * one) == pytest.approx(1.0)
    assert tool.equal([one], [one.clone()])
    assert not tool.equal({"a": one, "b": one}, {"b": one, "a": one.nextafter(2 * one)})
    with pytest.raises(AssertionError, match="not the same tensors"):
        tool.equal([one, one], [one])
    with tool.poisoned():
        assert torch.empty(3).isnan().all()


def test_two_gpus_are_compared_in_every_cell_with_cuda_kernels() -> None:
    devices = module("devices")
    wanted = {name for name, cell in registry.cells().items() if "cuda" in cell.backends}
    assert set(devices.cells()) == wanted
    for name in devices.cells():
        assert devices.model_of(name).cell == name


# ---- all


def test_every_cell_with_kernels_of_elman_is_proved() -> None:
    everything = module("everything")
    quick, all_ = everything.models(True), everything.models(False)
    wanted = {name for name, cell in registry.cells().items() if "cuda" in cell.backends}
    assert quick["m2rnn"] == "triton"
    assert quick["llama"] == "cuda"
    cells = [compose_config([f"model={name}"]).model.cell for name in quick]
    assert sorted(cells) == sorted(wanted | {"m2rnn"})
    assert set(quick) < set(all_)


def test_every_checked_part_and_every_timed_model_exists() -> None:
    everything = module("everything")
    assert set(everything.PARTS) - set(everything.TOOLS) - {"parity", "speed"} < set(
        module("run").MODULES
    )
    for name in (name for group in everything.GROUPS for name in group):
        compose_config([f"model={name}"])


def test_parts_that_do_not_run_are_named_with_the_reason(monkeypatch, tmp_path: Path) -> None:
    everything, asked = module("everything"), job(tmp_path)
    monkeypatch.setattr(importlib.import_module("torch").cuda, "device_count", lambda: 1)
    asked.report({"what": "the machine"})
    for asked.part in ("devices", "speed"):
        everything.CHECK.parts[asked.part](asked)
    page = (tmp_path / "report.md").read_text()
    assert "| devices | not run, 0 s | it needs two GPUs |" in page
    assert "| speed | not run, 0 s | --quick leaves it to the full check |" in page


def test_a_missing_checker_is_named_and_fails(monkeypatch, tmp_path: Path) -> None:
    everything, asked = module("everything"), job(tmp_path)
    monkeypatch.setattr(everything.shutil, "which", lambda name: None)
    everything.PARTS["racecheck"](asked)
    assert asked.rows[0]["error"] == "compute-sanitizer is not installed (CUDA toolkit)"
    assert not asked.passed


def test_what_a_check_finds_is_on_the_page(monkeypatch, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[2].partition('=')[2], sys.argv[1] + '.jsonl')\n"
        'path.write_text(\'{"part": "machine"}\\n\''
        ' \'{"part": "time", "width": 1536, "us": 74.4321, "rounds": [1]}\\n\''
        ' \'{"part": "time", "width": 640, "error": "ImportError", "passed": false}\\n\')\n'
        "print('the last line')\nsys.exit(1)\n"
    )
    everything = module("everything")
    monkeypatch.setattr(everything, "RUNNER", script)
    asked = job(tmp_path)
    asked.report({"what": "the machine"})
    asked.part = "norm"
    everything.CHECK.parts["norm"](asked)
    assert (asked.rows[1]["passed"], asked.rows[1]["status"]) == (False, 1)
    page = (tmp_path / "report.md").read_text()
    assert "| norm | FAILED, 0 s | the last line |" in page
    table = page.partition("## norm: time\n\n")[2].splitlines()
    assert table[0] == "| width | us | error | passed |"
    assert table[2:] == ["| 640 |  | ImportError | NO |", "| 1536 | 74.43 |  |  |"]


def test_parity_rows_show_what_failed(monkeypatch, tmp_path: Path) -> None:
    everything, asked = module("everything"), job(tmp_path)
    worst = {"tensor": "d x", "relative_l2": None, "tolerance": 2e-2}
    one = {"backend": "cuda", "precision": "bf16", "passed": 1, "checks": 2, "worst": worst}
    ended = {"passed": False, "status": 1, "s": 1.0}
    rows = {
        "e61": [{"model": "e61"} | ended | everything.tolerated(one)],
        "e34": [{"model": "e34"} | ended | {"error": "stopped after 900 s"}],
    }
    monkeypatch.setattr(everything, "models", lambda quick: dict.fromkeys(rows, "cuda"))
    monkeypatch.setattr(everything, "prove", lambda job, at_once, name, backend: rows[name])
    asked.report({"what": "the machine"})
    asked.part = "parity"
    everything.CHECK.parts["parity"](asked)
    page = (tmp_path / "report.md").read_text()
    assert "| parity | FAILED, 0 s | 2 wrong: " in page
    assert "| e61 | NO | 1 | 1 | cuda bf16 | 1 of 2 | d x |  | 0.02 |  |" in page
    assert "| e34 | NO | 1 | 1 |  |  |  |  |  | stopped after 900 s |" in page


# ---- commands


def test_commands_are_run_as_they_are_typed(tmp_path: Path) -> None:
    typed = module("typed").typed
    right = typed("elman --version", 1, tmp_path, 1.0)
    assert (right["passed"], right["status"]) == (True, 0)
    wrong = typed("elman train.minute=3", 2, tmp_path, 1.0)
    assert (wrong["passed"], wrong["status"]) == (False, 2)
    assert wrong["error"].startswith("elman: error: train.minute=3: no such setting")


def test_the_commands_of_the_front_page_are_among_them() -> None:
    lines = module("typed").commands(30)
    assert "elman -m model=e75h4n16,mamba2,fla-gdn train.minutes=0.5" in lines
    for line in lines:
        words = line.removeprefix("elman ").split()
        compose_config([word for word in words if word != "-m" and "," not in word])
