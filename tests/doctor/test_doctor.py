"""``mode=doctor``: verdicts on made-up machines, questions that end badly, and this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.doctor import facts as facts_module
from elman.doctor.asking import Answered, ask
from elman.doctor.combinations import KNOWN, combinations
from elman.doctor.facts import OPTIONAL, Facts, Place, Unmet
from elman.doctor.findings import Finding, Mark, installed, machine
from elman.doctor.usable import backends, baselines, forms
from elman.modes import doctor as doctor_mode
from elman.runs.prepared import PreparedRun
from tests.waiting import eventually, gone

HOPPER, BLACKWELL, AMPERE, VOLTA = (9, 0), (10, 0), (8, 0), (7, 0)
SPACE = Place("runs", Path("/data/outputs"), 100 << 30, True)


def gpu(capability: tuple[int, int], problem: str | None = None) -> dict[str, Any]:
    return {"name": "NVIDIA X", "capability": list(capability), "problem": problem}


def facts(
    *capabilities: tuple[int, int],
    versions: dict[str, str] | None = None,
    cuda: str | None = "13.0",
    driver: tuple[int, int] | None = (13, 0),
    **answers: Any,
) -> Facts:
    """Return a machine with these GPUs and a sound CUDA torch unless said otherwise."""
    named: dict[str, str | None] = dict.fromkeys(OPTIONAL) | {"torch": "2.13.0", "numpy": "2.4.0"}
    named |= {"hydra-core": "1.3.8", "nvidia-ml-py": "13.580"} | (versions or {})
    devices = [gpu(capability) for capability in capabilities]
    said = {"cuda": cuda, "available": bool(devices), "warning": None, "devices": devices}
    nvml = {"driver": None, "reason": "no library", "broken": False, "devices": []}
    if driver is not None and capabilities:
        cards = [{"name": "NVIDIA X", "memory": 80 << 30, "free": 0} for _ in capabilities]
        nvml = {"driver": "580.1", "cuda": list(driver), "devices": cards}
    found = {
        "torch": said,
        "nvml": nvml,
        "nvrtc": {"version": "13.0", "install": "pip install nvrtc"},
        "compiler": {"command": "/usr/bin/g++", "version": "g++ 12", "problem": None},
        "mamba-ssm": {"problem": None},
        "flash-linear-attention": {"problem": None},
    }
    visible = answers.pop("visible", None)
    found |= {name.replace("_", "-"): value for name, value in answers.items()}
    answered = {n: v if isinstance(v, Answered) else Answered(v) for n, v in found.items()}
    return Facts(named, (), answered, (SPACE,), visible)


def only(found: list[Finding], name: str) -> Finding:
    (one,) = (finding for finding in found if finding.name == name)
    return one


@pytest.mark.parametrize(
    ("gpus", "nccl", "mark", "words"),
    [
        (8, "2.27.5", Mark.OK, "launcher.gpus_per_job=2 to 8, by NCCL 2.27.5"),
        (8, None, Mark.NOTE, "no NCCL"),
        (1, "2.27.5", Mark.ABSENT, "needs two; train.device=cpu launcher.gpus_per_job=2"),
    ],
)
def test_whether_one_model_can_have_several_gpus(
    gpus: int, nccl: str | None, mark: Mark, words: str
) -> None:
    device = {"name": "a card", "capability": [9, 0], "problem": None}
    answer = {"devices": [device] * gpus, "ranks": {"nccl": nccl, "gloo": True}}
    found = only(machine(facts(HOPPER, torch={"cuda": "13.0", "available": True} | answer)), RANKS)
    assert (found.mark, words in found.found) == (mark, True)


RANKS = "several GPUs for one model"
FLA = {"flash-linear-attention": "0.6.0"}
FLASH_QLA = {"triton": "3.7.1", "flash-qla": "0.1.2"} | FLA
UNSEEN = {"cuda": "13.0", "available": False, "warning": "CUDA unknown error", "devices": []}
NEWER_TORCH = "pip install --upgrade 'torch>=2.12.1'"


@pytest.mark.parametrize(
    ("here", "mark", "words", "mend"),
    [
        (
            facts(HOPPER, versions={"triton": "3.6.0"} | FLA),
            Mark.BROKEN,
            "triton 3.6.0 computes wrong gradients",
            NEWER_TORCH,
        ),
        (facts(HOPPER, versions={"triton": "3.7.0"}), Mark.NOTE, "wrong gradients", NEWER_TORCH),
        (
            facts(BLACKWELL, versions={"triton": "3.7.1", "flash-linear-attention": "0.5.2"}),
            Mark.BROKEN,
            "NaN gradients",
            "pip install --upgrade 'flash-linear-attention>=0.6.0'",
        ),
        (
            facts(versions={"mamba-ssm": "2.3.2", "causal-conv1d": "1.7.0"}, cuda=None),
            Mark.BROKEN,
            "only with a CUDA build of torch",
            "pip uninstall --yes mamba-ssm causal-conv1d",
        ),
        (
            facts(HOPPER, versions={"triton": "3.7.1", "tilelang": "0.1.8"} | FLA),
            Mark.NOTE,
            "wants 0.1.9",
            "pip uninstall --yes tilelang",
        ),
        (
            facts(HOPPER, versions={"triton": "3.7.1", "tilelang": "0.1.9", "mamba-ssm": "2.3.2"}),
            Mark.NOTE,
            "mamba-ssm is pinned to 0.1.8",
            "pip uninstall --yes tilelang",
        ),
        (
            facts(HOPPER, versions=FLASH_QLA | {"tilelang": "0.1.9", "mamba-ssm": "2.3.2"}),
            Mark.NOTE,
            "flash-qla (kernels.backend=flash_qla) needs 0.1.9",
            "",
        ),
        (
            facts(HOPPER, versions=FLASH_QLA | {"tilelang": "0.1.8"}),
            Mark.BROKEN,
            "flash-qla (kernels.backend=flash_qla) is pinned to 0.1.9",
            "pip install tilelang==0.1.9",
        ),
        (
            facts(AMPERE, torch={"cuda": None, "available": False, "devices": []}),
            Mark.NOTE,
            "this build of torch cannot use",
            "pip install --force-reinstall --index-url https://pypi.org/simple torch",
        ),
        (
            facts(AMPERE, torch=UNSEEN, visible=""),
            Mark.NOTE,
            "CUDA_VISIBLE_DEVICES='' hides it",
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (
            facts(AMPERE, torch=UNSEEN, driver=(12, 4)),
            Mark.BROKEN,
            "torch is built for CUDA 13.0, the driver supports 12.4",
            "pip install --force-reinstall "
            "--index-url https://download.pytorch.org/whl/cu126 torch",
        ),
        (facts(AMPERE, torch=UNSEEN), Mark.BROKEN, "CUDA unknown error", "nvidia-smi"),
        (
            facts(AMPERE),
            Mark.NOTE,
            "torch.compile, kernels.backend=triton and the packaged baselines need it",
            "pip install --force-reinstall --index-url https://pypi.org/simple torch",
        ),
        (
            facts(AMPERE, versions={"triton": "3.7.1"}, cuda="12.8", driver=(12, 4)),
            Mark.BROKEN,
            "NVRTC 13.0 compiles kernels that a driver for CUDA 12.4 cannot load",
            "pip install 'cuda-bindings==12.*' nvidia-cuda-nvrtc-cu12",
        ),
    ],
    ids=[
        "hopper-with-fla",
        "hopper-without-fla",
        "blackwell",
        "mamba-on-cpu-torch",
        "tilelang-0.1.8",
        "tilelang-0.1.9",
        "flash-qla-beside-mamba",
        "flash-qla-with-another-tilelang",
        "cpu-torch",
        "hidden",
        "old-driver",
        "unseen",
        "no-triton",
        "nvrtc-newer-than-driver",
    ],
)
def test_a_known_bad_combination_is_found_with_what_mends_it(here, mark, words, mend) -> None:
    (found,) = combinations(here)
    assert (found.mark, found.mend) == (mark, mend)
    assert words in found.found


@pytest.mark.parametrize(
    "here",
    [
        facts(HOPPER, versions={"triton": "3.7.1"} | FLA),
        facts(HOPPER, versions={"triton": "3.3.1"} | FLA),
        facts(AMPERE, versions={"triton": "3.6.0"} | FLA),
        facts(BLACKWELL, versions={"triton": "3.7.1"} | FLA),
        facts(AMPERE, versions={"triton": "3.7.1", "mamba-ssm": "2.3.2", "tilelang": "0.1.8"}),
        facts(HOPPER, versions=FLASH_QLA | {"tilelang": "0.1.9"}),
        facts(versions=FLA, cuda=None),
        facts(torch=Answered(problem="killed by SIGSEGV")),
    ],
    ids=["newer", "older", "ampere", "blackwell", "mamba", "flash-qla", "cpu", "torch-broken"],
)
def test_sound_machines_have_none(here) -> None:
    (found,) = combinations(here)
    assert found.mark == Mark.OK
    assert f"none of the {len(KNOWN)}" in found.found


def test_what_is_installed() -> None:
    here = facts(versions={"triton": "3.7.1"}, triton=Answered(problem="ImportError: libcuda.so.1"))
    found = installed(here)
    assert only(found, "torch").found == "2.13.0 (CUDA 13.0 build)"
    assert only(installed(facts(cuda=None)), "torch").found == "2.13.0 (CPU build)"
    triton = only(found, "triton")
    assert triton.mark == Mark.BROKEN
    assert triton.found == "3.7.1 cannot be imported: ImportError: libcuda.so.1"
    assert "triton==3.7.1" in triton.mend
    assert only(found, "mamba-ssm").mark == Mark.ABSENT
    assert not [finding for finding in found if finding.name == "tilelang"]
    missing = Facts(dict(here.versions) | {"numpy": None}, (), here.answers, ())
    assert only(installed(missing), "numpy").mark == Mark.BROKEN
    broken = only(installed(facts(torch=Answered(problem="killed by SIGSEGV"))), "torch")
    assert (broken.mark, broken.found) == (
        Mark.BROKEN,
        "2.13.0 cannot be imported: killed by SIGSEGV",
    )


def test_unmet_requirements_are_broken(monkeypatch) -> None:
    lines = ["numpy>=99", "pip>=1", "not-there-at-all>=2,<3", "other>=1; extra == 'dev'"]
    monkeypatch.setattr(facts_module, "requires", lambda name: lines)
    unmet = facts_module._unmet()
    assert [(one.name, one.wanted) for one in unmet] == [
        ("numpy", "numpy>=99"),
        ("not-there-at-all", "not-there-at-all<3,>=2"),
    ]
    base = facts()
    here = Facts(base.versions, (*unmet, Unmet("torch", "2.3.0", "torch>=2.11")), {}, ())
    found = installed(here)
    for name, mend in (
        ("numpy", "pip install 'numpy>=99'"),
        ("not-there-at-all", "pip install 'not-there-at-all<3,>=2'"),
        ("torch", "pip install 'torch>=2.11'"),
    ):
        assert (only(found, name).mark, only(found, name).mend) == (Mark.BROKEN, mend)
    assert only(found, "not-there-at-all").found.startswith("missing, and elman needs")


@pytest.mark.parametrize(
    ("here", "name", "mark", "words"),
    [
        (facts(), "GPU", Mark.ABSENT, "torch sees none"),
        (facts(HOPPER, AMPERE), "GPU 1", Mark.OK, "NVIDIA X, sm_80, 80 GiB"),
        (
            facts(torch={"cuda": "13.0", "devices": [gpu(VOLTA, "RuntimeError: no kernel image")]}),
            "GPU 0",
            Mark.BROKEN,
            "cannot multiply two matrices: RuntimeError: no kernel image",
        ),
        (facts(HOPPER), "NVIDIA driver", Mark.OK, "580.1, CUDA up to 13.0, 1 GPU"),
        (facts(), "NVIDIA driver", Mark.ABSENT, "no library"),
        (
            facts(nvml={"driver": None, "reason": "version mismatch", "broken": True}),
            "NVIDIA driver",
            Mark.BROKEN,
            "version mismatch",
        ),
        (
            facts(nvml=Answered(problem="no answer within the time limit")),
            "NVIDIA driver",
            Mark.BROKEN,
            "does not answer",
        ),
        (facts(), "C++ compiler", Mark.OK, "/usr/bin/g++: g++ 12"),
        (
            facts(
                compiler={"command": None, "problem": "no C++ compiler in PATH; apt install g++"}
            ),
            "C++ compiler",
            Mark.ABSENT,
            "no C++ compiler in PATH",
        ),
        (
            facts(compiler={"command": None, "problem": "CXX=x: no such program; unset CXX"}),
            "C++ compiler",
            Mark.BROKEN,
            "CXX=x: no such program",
        ),
        (facts(), "NVRTC", Mark.OK, "13.0, compiles kernels for a GPU"),
        (facts(nvrtc={"version": None, "install": "x"}), "NVRTC", Mark.ABSENT, "not found"),
        (facts(nvrtc=Answered(problem="OSError")), "NVRTC", Mark.BROKEN, "OSError"),
        (facts(), "disk of runs", Mark.OK, "107.4 GB free: /data/outputs"),
    ],
)
def test_the_machine(here, name, mark, words) -> None:
    found = only(machine(here), name)
    assert found.mark == mark
    assert words in found.found


@pytest.mark.parametrize(
    ("place", "mark", "mend"),
    [
        (Place("runs", Path("/a"), 1 << 30, True), Mark.NOTE, "elman hydra.run.dir="),
        (Place("kernels", Path("/a"), 1 << 40, False), Mark.BROKEN, "export ELMAN_CACHE="),
    ],
)
def test_a_full_disk_is_noted_and_one_that_cannot_be_written_is_broken(place, mark, mend) -> None:
    base = facts()
    here = Facts(base.versions, (), base.answers, (place,))
    found = only(machine(here), f"disk of {place.what}")
    assert found.mark == mark
    assert found.mend.startswith(mend)


def test_backends_and_why_not(monkeypatch) -> None:
    everything = ("reference", "torch", "cpu", "cuda", "triton")
    cells = {name: _Cell(name, (name,)) for name in everything}
    monkeypatch.setattr("elman.models.cells.registry.cells", lambda: cells)

    def marks(here: Facts) -> dict[str, str]:
        return {f.name: f.found if f.mark == Mark.ABSENT else str(f.mark) for f in backends(here)}

    triton = {"triton": "3.7.1"}
    assert marks(facts(HOPPER, versions=triton)) == dict.fromkeys(everything, "ok")
    cpu = marks(facts(cuda=None))
    assert (cpu["cpu"], cpu["cuda"], cpu["triton"]) == ("ok", "no GPU", "no GPU")
    old = marks(facts(VOLTA, versions=triton))
    assert (old["cuda"], old["reference"]) == ("the GPU is older than sm_80", "ok")
    bare = marks(facts(HOPPER, nvrtc={"version": None, "install": "x"}, compiler={"command": None}))
    assert bare["cpu"].startswith("no C++ compiler")
    assert (bare["cuda"], bare["triton"]) == ("no NVRTC", "no triton")
    older = marks(facts(HOPPER, versions={"triton": "3.5.1"}))
    assert older["triton"] == "triton 3.5.1 is older than 3.6.0"
    amd = facts(HOPPER, versions=triton)
    amd = replace(
        amd, answers=amd.answers | {"torch": Answered({**amd.value("torch"), "hip": "7"})}
    )
    assert (marks(amd)["cuda"], marks(amd)["triton"]) == ("torch is built for AMD GPUs", "ok")
    broken = marks(facts(HOPPER, torch=Answered(problem="killed by SIGSEGV")))
    assert set(broken.values()) == {"torch does not work"}
    del cells["cuda"]
    assert marks(facts(HOPPER))["cuda"] == "no cell has it in this version"


@pytest.mark.parametrize(
    ("gpus", "answer", "mark", "found", "mend"),
    [
        ((HOPPER,), None, Mark.OK, "fla_gdn, with kernels.backend=flash_qla alone", ""),
        ((AMPERE,), None, Mark.ABSENT, "no GPU that it has kernels for", ""),
        ((), None, Mark.ABSENT, "no GPU", ""),
        (
            (HOPPER,),
            "there is no nvcc; pip install it",
            Mark.BROKEN,
            "there is no nvcc",
            "pip install it",
        ),
    ],
    ids=["works", "ampere", "no-gpu", "no-nvcc"],
)
def test_flash_qla_is_judged_where_it_is_installed(gpus, answer, mark, found, mend) -> None:
    here = facts(*gpus, versions=FLASH_QLA, flash_qla={"problem": answer})
    judged = only(backends(here), "flash_qla")
    assert (judged.mark, judged.found, judged.mend) == (mark, found, mend)
    assert not [one for one in backends(facts(*gpus)) if one.name == "flash_qla"]


def test_how_engines_of_several_forms_run_here() -> None:
    found = forms(facts(HOPPER, HOPPER, VOLTA))
    assert [(one.name, one.mark) for one in found] == [("sm_90", Mark.OK)] * 2
    assert [one.area.split()[0] for one in found] == ["dense", "tape"]
    for one in found:
        assert one.found.startswith("cluster: one launch for the whole sequence")
    assert not forms(facts())
    assert not forms(facts(HOPPER, nvrtc={"version": None}))


def test_a_backend_of_packages_alone_works_where_they_do(monkeypatch) -> None:
    packages = {"mamba2": "mamba-ssm", "fla-gdn": "flash-linear-attention"}
    cells = {
        name: _Cell(name, ("reference", "triton"), package) for name, package in packages.items()
    }
    monkeypatch.setattr("elman.models.cells.registry.cells", lambda: cells)
    triton, missing = {"triton": "3.7.1"}, {"problem": "it is not installed; pip install it"}

    def judged(here: Facts) -> Finding:
        return only(backends(here), "triton")

    works = judged(facts(HOPPER, versions=triton | FLA, mamba_ssm=missing))
    assert (works.mark, works.found) == (Mark.OK, "1 of 2 cells, through packages: fla-gdn")
    both = judged(facts(HOPPER, versions=triton | FLA))
    assert both.found == "2 of 2 cells, through packages: mamba2, fla-gdn"
    names = dict.fromkeys(("mamba_ssm", "flash_linear_attention"), missing)
    neither = judged(facts(HOPPER, versions=triton, **names))
    assert neither.mark == Mark.ABSENT
    assert neither.found == (
        "mamba2 and fla-gdn have it through packages, and none works here: see baselines"
    )
    assert judged(facts(cuda=None)).found == "no GPU"
    cells["e70"] = _Cell("e70", ("reference", "triton"))
    ours = judged(facts(HOPPER, versions=triton, **names))
    assert (ours.mark, ours.found) == (Mark.OK, "1 of 3 cells")
    both = judged(facts(HOPPER, versions=triton | FLA))
    assert both.found == "1 of 3 cells, and through packages: mamba2, fla-gdn"


class _Cell:
    """As much of a cell as the verdicts read."""

    def __init__(self, name: str, backends: tuple[str, ...], package: str | None = None) -> None:
        self.name, self.backends, self.package = name, backends, package
        self.engine = "torch" if "torch" in backends else "ssd"


def test_baselines_and_why_not(monkeypatch) -> None:
    cells = {
        "gru": _Cell("gru", ("torch",)),
        "e1": _Cell("e1", ("reference",)),
        "mamba2": _Cell("mamba2", ("reference",), "mamba-ssm"),
    }
    monkeypatch.setattr("elman.models.cells.registry.cells", lambda: cells)

    def judged(here: Facts) -> Finding:
        found = baselines(here)
        assert [finding.name for finding in found] == ["gru", "mamba2"]
        return found[1]

    assert judged(facts(cuda=None)).found.startswith("plain PyTorch")
    works = judged(facts(HOPPER, versions={"mamba-ssm": "2.3.2"}))
    assert (works.mark, works.found) == (Mark.OK, "mamba-ssm 2.3.2")
    missing = {"problem": "mamba-ssm is not installed; pip install 'elman[mamba]', which is slow"}
    found = judged(facts(HOPPER, mamba_ssm=missing))
    assert (found.mark, found.mend) == (Mark.ABSENT, "pip install 'elman[mamba]'")
    found = judged(facts(HOPPER, versions={"mamba-ssm": "2.3.2"}, mamba_ssm=missing))
    assert found.mark == Mark.BROKEN
    found = judged(facts(HOPPER, mamba_ssm=Answered(problem="killed by SIGABRT")))
    assert (found.mark, found.found) == (Mark.BROKEN, "mamba-ssm: killed by SIGABRT")
    assert "--force-reinstall" in found.mend
    assert judged(facts(torch=Answered(problem="late"))).found == "torch does not work"


def package(folder: Path, name: str, code: str) -> None:
    """Put an installed package into a folder, whose import runs ``code``."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    metadata = folder / f"{name}-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", None),
        ("print('x' * 9)\nimport sys\nsys.stderr.write('warning')", None),
        ("raise ImportError('libcuda.so.1: not\\xff there')", "ImportError: libcuda.so.1: not"),
        ("import os\nos.abort()", "killed by SIGABRT"),
        ("import os\nos._exit(3)", "exit status 3"),
        ("import sys\nsys.exit('no')", "no"),
    ],
    ids=["fine", "noisy", "raises", "aborts", "leaves", "exits"],
)
def test_a_question_ends_as_it_may_and_says_how(tmp_path, monkeypatch, code, problem) -> None:
    package(tmp_path, "triton", code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ((_, found),) = ask(["triton"])
    if problem is None:
        assert found == Answered({}, None)
    else:
        assert found.problem is not None
        assert found.problem.startswith(problem)


def test_a_question_without_end_is_ended_with_what_it_started(tmp_path, monkeypatch) -> None:
    pids = tmp_path / "pids"
    package(
        tmp_path,
        "triton",
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    waited: list[list[str]] = []
    ((_, found),) = ask(["triton"], waited.append, limit=3)
    assert found.problem == "no answer within the time limit"
    assert waited == [["triton"]]
    for pid in pids.read_text().split():
        eventually(partial(gone, int(pid)))


WATCHED = """
import sys
from elman.cli.main import main
status = main(["mode=doctor"])
print("imported", sorted({"torch", "triton"} & set(sys.modules)))
sys.exit(status)
"""


def doctor(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WATCHED],
        cwd=folder,
        env=os.environ | {"COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_this_machine_without_a_compiler(tmp_path: Path) -> None:
    ended = doctor(tmp_path, PATH=str(tmp_path), ELMAN_CACHE=str(tmp_path / "cache"))
    assert "Traceback" not in ended.stdout + ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "imported []"
    assert "no C++ compiler" in ended.stdout
    for area in ("installed", "machine", "backends", "baselines", "known bad"):
        assert f"\n{area}" in "\n" + ended.stdout
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("here", "status", "commands"),
    [
        (facts(cuda=None), ExitStatus.OK, ""),
        (
            facts(cuda=None, versions={"triton": "9.9"}, triton=Answered(problem="killed by X")),
            ExitStatus.FAILED,
            "To fix triton:\n    pip install --force-reinstall --no-build-isolation --no-deps "
            "triton==9.9\n",
        ),
        (
            facts(AMPERE, versions={"triton": "3.7.1"}, visible="", torch=UNSEEN),
            ExitStatus.OK,
            "To add or change GPU that torch does not see:\n    unset CUDA_VISIBLE_DEVICES\n",
        ),
    ],
    ids=["sound", "broken", "noted"],
)
def test_the_status_and_the_commands_below_the_table(
    monkeypatch, capsys, here, status, commands
) -> None:
    monkeypatch.setattr(doctor_mode, "gather", lambda show: iter([here]))
    assert doctor_mode.run(PreparedRun(compose_config(["mode=doctor"]))) == status
    said = capsys.readouterr().out
    assert said.endswith(commands)
    assert ("\nTo " in said) is bool(commands)


def test_an_area_is_printed_while_slower_questions_are_open(monkeypatch, capsys) -> None:
    here = facts(cuda=None)

    def gather(show: Any) -> Iterator[Facts]:
        yield replace(here, open=frozenset({"torch", "mamba-ssm"}))
        assert capsys.readouterr().out == ""
        yield replace(here, open=frozenset({"mamba-ssm"}))
        said = capsys.readouterr().out
        assert [line.strip() for line in said.splitlines() if line[0] != " "] == AT_ONCE
        late = Answered({"problem": None}, seconds=5.25)
        yield replace(here, answers=here.answers | {"mamba-ssm": late})

    monkeypatch.setattr(doctor_mode, "gather", gather)
    monkeypatch.setattr(doctor_mode, "packed_data", lambda reading: [])
    assert doctor_mode.run(PreparedRun(compose_config(["mode=doctor"]))) == ExitStatus.OK
    said = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in said[:-1] if line[0] != " "] == ["backends", "baselines"]
    assert said[-1].endswith(": mamba-ssm 5.2 s")


AT_ONCE = ["installed", "machine", "known bad"]


def test_settings_of_other_modes_are_refused() -> None:
    with pytest.raises(UserError, match=r"train\.steps: read only with mode=train"):
        compose_config(["mode=doctor", "train.steps=3"])
