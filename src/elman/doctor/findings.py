"""Verdicts on the facts: what is installed, what the machine has, what it can compute."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from elman.base.units import GPU_MEMORY, size_text
from elman.base.version import __version__
from elman.doctor.facts import OPTIONAL, Facts, Place
from elman.kernels.packages import PACKAGES

MIN_FREE = 2 << 30
"""Bytes below which a folder is reported as nearly full: the checkpoints of one 100M run."""
TORCH_INSTALL = "pip install --force-reinstall 'torch>=2.11'"


class Mark(StrEnum):
    """The state of a thing: good, bad or missing."""

    OK = "ok"
    ABSENT = "-"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    Args:
        area: The section that it belongs to.
        name: The thing that it is about.
        mark: The state of that thing.
        found: What was found, in words.
        mend: The command that fixes it, if there is one.
    """

    area: str
    name: str
    mark: Mark
    found: str
    mend: str = ""


# Purposes of optional distributions; one without an entry is shown only if it is installed.
_USES = {
    "triton": "torch.compile, kernels.backend=triton and the packaged baselines",
    "mamba-ssm": "mamba2 on a GPU",
    "causal-conv1d": "a faster mamba2 on a GPU",
    "flash-linear-attention": "fla-gdn on a GPU",
    "cuda-bindings": "kernels on a GPU",
    "wandb": "log.wandb=true",
    "trackio": "log.trackio=true",
    "pyarrow": "data in Parquet",
}


def installed(facts: Facts) -> list[Finding]:
    """Return what is installed and whether it can be imported."""
    area = "installed"
    python = f"{platform.python_version()} ({sys.executable})"
    found = [
        Finding(area, "python", Mark.OK, python),
        Finding(area, "elman", Mark.OK, __version__),
        _torch(facts),
    ]
    unmet = {one.name for one in facts.unmet}
    for name in ("numpy", "hydra-core"):
        version = facts.versions[name]
        if version is None and name not in unmet:
            found.append(Finding(area, name, Mark.BROKEN, "missing", f"pip install {name}"))
        elif version is not None and name not in unmet:
            found.append(Finding(area, name, Mark.OK, version))
    found += [
        Finding(
            area,
            one.name,
            Mark.BROKEN,
            f"{one.found or 'missing'}, and elman needs {one.wanted}",
            f"pip install '{one.wanted}'",
        )
        for one in facts.unmet
        if one.name != "torch"
    ]
    shown = [name for name in OPTIONAL if name in _USES or facts.versions[name]]
    return found + [_optional(facts, name) for name in shown]


def _torch(facts: Facts) -> Finding:
    area, version = "installed", facts.versions["torch"]
    for one in facts.unmet:
        if one.name == "torch":
            found = f"{version or 'missing'}, and elman needs {one.wanted}"
            return Finding(area, "torch", Mark.BROKEN, found, f"pip install '{one.wanted}'")
    if (problem := facts.problem("torch")) is not None:
        found = f"{version} cannot be imported: {problem}"
        return Finding(area, "torch", Mark.BROKEN, found, TORCH_INSTALL)
    cuda = facts.value("torch")["cuda"]
    built = f"CUDA {cuda} build" if cuda else "CPU build"
    return Finding(area, "torch", Mark.OK, f"{version} ({built})")


def _optional(facts: Facts, name: str) -> Finding:
    area, version = "installed", facts.versions[name]
    if version is None:
        return Finding(area, name, Mark.ABSENT, f"not installed; for {_USES[name]}")
    problem = facts.problem(name)
    if problem is None or name in PACKAGES:  # the baselines say what is wrong with theirs
        return Finding(area, name, Mark.OK, version)
    found = f"{version} cannot be imported: {problem}"
    return Finding(area, name, Mark.BROKEN, found, install_again(facts, name))


def install_again(facts: Facts, name: str) -> str:
    """Return the command that installs a distribution once more, in its version."""
    return (
        "pip install --force-reinstall --no-build-isolation --no-deps "
        f"{name}=={facts.versions[name]}"
    )


def machine(facts: Facts) -> list[Finding]:
    """Return the CPU, the GPUs, their driver, the compilers and the free space."""
    found = [*_cpu(facts), *_gpus(facts), _driver(facts), *_ranks(facts)]
    found += [_compiler(facts), _nvrtc(facts)]
    return found + [_free(place) for place in facts.places]


def _cpu(facts: Facts) -> Iterable[Finding]:
    """Return what a run on the CPU computes with."""
    answer = facts.value("torch").get("cpu")
    if answer is None:
        return
    bf16 = "with" if answer["bf16"] else "without"
    what = f"{answer['name']}, {answer['instructions']} {bf16} products in bf16"
    what += f"; threads: {answer['threads']}, which wait by {answer['waiting']}"
    yield Finding("machine", "CPU", Mark.OK, what)


def _gpus(facts: Facts) -> Iterable[Finding]:
    area = "machine"
    if not facts.gpus:
        yield Finding(area, "GPU", Mark.ABSENT, "torch sees none; everything runs on the CPU")
    memory = [device["memory"] for device in facts.value("nvml").get("devices", ())]
    for number, gpu in enumerate(facts.gpus):
        major, minor = gpu["capability"]
        name = f"GPU {number}"
        size = f", {GPU_MEMORY.text(memory[number], 0)}" if len(memory) == len(facts.gpus) else ""
        what = f"{gpu['name']}, sm_{major}{minor}{size}"
        if gpu["problem"] is None:
            yield Finding(area, name, Mark.OK, what)
        else:
            found = f"{what} cannot multiply two matrices: {gpu['problem']}"
            yield Finding(area, name, Mark.BROKEN, found, "nvidia-smi")


def _driver(facts: Facts) -> Finding:
    area, name = "machine", "NVIDIA driver"
    if (problem := facts.problem("nvml")) is not None:
        return Finding(area, name, Mark.BROKEN, f"does not answer: {problem}", "nvidia-smi")
    answer = facts.value("nvml")
    if answer.get("driver") is None:
        mark = Mark.BROKEN if answer.get("broken") else Mark.ABSENT
        reason = answer.get("reason", "nvidia-ml-py is missing")
        return Finding(area, name, mark, reason, "nvidia-smi" if answer.get("broken") else "")
    major, minor = answer["cuda"]
    what = f"{answer['driver']}, CUDA up to {major}.{minor}, {len(answer['devices'])} GPU"
    return Finding(area, name, Mark.OK, what)


def _ranks(facts: Facts) -> Iterable[Finding]:
    """Return whether one model can be trained on several GPUs here."""
    area, name = "machine", "several GPUs for one model"
    answer, gpus = facts.value("torch").get("ranks"), len(facts.gpus)
    if answer is None:
        return
    if gpus > 1 and answer["nccl"]:
        what = f"launcher.gpus_per_job=2 to {gpus}, by NCCL {answer['nccl']}"
        yield Finding(area, name, Mark.OK, what)
    elif gpus > 1:
        found = "this torch has no NCCL, so each model trains on one GPU"
        yield Finding(area, name, Mark.NOTE, found, TORCH_INSTALL)
    elif answer["gloo"]:
        found = "needs two; train.device=cpu launcher.gpus_per_job=2 tries it on the CPU"
        yield Finding(area, name, Mark.ABSENT, found)


def _compiler(facts: Facts) -> Finding:
    area, name = "machine", "C++ compiler"
    if (problem := facts.problem("compiler")) is not None:
        return Finding(area, name, Mark.BROKEN, f"the search for it failed: {problem}")
    answer = facts.value("compiler")
    if answer["command"] is not None:
        return Finding(area, name, Mark.OK, f"{answer['command']}: {answer['version']}")
    reason, _, mend = answer["problem"].rpartition("; ")
    # A named compiler that does not work is a mistake; having no compiler is not.
    mark = Mark.BROKEN if reason.startswith("CXX=") else Mark.ABSENT
    return Finding(area, name, mark, reason, mend)


def _nvrtc(facts: Facts) -> Finding:
    area, name = "machine", "NVRTC"
    if (problem := facts.problem("nvrtc")) is not None:
        mend = "pip install --force-reinstall cuda-bindings nvidia-cuda-nvrtc"
        return Finding(area, name, Mark.BROKEN, f"cannot be loaded: {problem}", mend)
    answer = facts.value("nvrtc")
    if answer["version"] is not None:
        return Finding(area, name, Mark.OK, f"{answer['version']}, compiles kernels for a GPU")
    mend = answer["install"] if facts.gpus else ""
    return Finding(area, name, Mark.ABSENT, "not found; compiles kernels for a GPU", mend)


def _free(place: Place) -> Finding:
    area, name = "machine", f"disk of {place.what}"
    what = f"{size_text(place.free)} free: {place.path}"
    if not place.writable:
        return Finding(
            area, name, Mark.BROKEN, f"{place.path} cannot be written", _elsewhere(place)
        )
    if place.free < MIN_FREE:
        return Finding(area, name, Mark.NOTE, what, _elsewhere(place))
    return Finding(area, name, Mark.OK, what)


def _elsewhere(place: Place) -> str:
    if place.what == "runs":
        return "elman hydra.run.dir=<a folder on another disk>"
    return "export ELMAN_CACHE=<a folder on another disk>"
