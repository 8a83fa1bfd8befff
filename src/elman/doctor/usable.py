"""Verdicts on which backends and baselines run on this machine, and why the others do not."""

from __future__ import annotations

from elman.doctor.facts import Facts
from elman.doctor.findings import Finding, Mark, install_again
from elman.kernels import flash_qla
from elman.kernels.nvrtc import OLDEST
from elman.kernels.triton_version import OLDEST as OLDEST_TRITON
from elman.kernels.triton_version import older
from elman.models.cells import registry
from elman.models.cells.declaration import Cell
from elman.ops.dense.cuda import forms as dense
from elman.ops.tape.cuda import forms as tape


def backends(facts: Facts) -> list[Finding]:
    """Return which backends work here."""
    without_torch = None if facts.value("torch") else "torch does not work"
    reasons = {
        "reference": without_torch,
        "torch": without_torch,
        "cpu": without_torch or _no_compiler(facts),
        "cuda": without_torch or _no_gpu(facts) or _for_amd(facts) or _no_nvrtc(facts),
        "triton": without_torch or _no_gpu(facts) or _no_triton(facts),
    }
    found = [_backend(facts, name, reason) for name, reason in reasons.items()]
    return found + ([_flash_qla(facts)] if facts.versions[flash_qla.PACKAGE] else [])


def _backend(facts: Facts, name: str, reason: str | None) -> Finding:
    area, every = "backends", registry.cells().values()
    having = [cell for cell in every if name in cell.backends]
    # A packaged baseline's reference is our code; its kernels are the package's.
    ours = [cell for cell in having if cell.package is None or name == "reference"]
    if not having:
        return Finding(area, name, Mark.ABSENT, "no cell has it in this version")
    if reason is not None:
        return Finding(area, name, Mark.ABSENT, reason)
    works = [cell for cell in having if cell in ours or _baseline(facts, cell).mark == Mark.OK]
    if not works:
        names = " and ".join(cell.name for cell in having)
        found = f"{names} have it through packages, and none works here: see baselines"
        return Finding(area, name, Mark.ABSENT, found)
    others = [cell.name for cell in works if cell not in ours]
    through = f", {'and ' if ours else ''}through packages: {', '.join(others)}" if others else ""
    count = len(ours or works)
    return Finding(area, name, Mark.OK, f"{count} of {len(every)} cells{through}")


def _flash_qla(facts: Facts) -> Finding:
    """Return whether the backend on request works; shown only where its package is installed."""
    area, name = "backends", flash_qla.NAME
    without_torch = None if facts.value("torch") else "torch does not work"
    unfit = (
        None if facts.capabilities & {*flash_qla.CAPABILITIES} else "no GPU that it has kernels for"
    )
    if reason := without_torch or _no_gpu(facts) or _for_amd(facts) or unfit:
        return Finding(area, name, Mark.ABSENT, reason)
    if (ended := facts.problem(flash_qla.PACKAGE)) is not None:
        mend = install_again(facts, flash_qla.PACKAGE)
        return Finding(area, name, Mark.BROKEN, f"{flash_qla.PACKAGE}: {ended}", mend)
    if problem := facts.value(flash_qla.PACKAGE).get("problem"):
        reason, _, advice = problem.rpartition("; ")
        return Finding(area, name, Mark.BROKEN, reason, advice.partition(", or ")[0])
    cells = [one.name for one in registry.cells().values() if name in one.on_request]
    return Finding(area, name, Mark.OK, f"{', '.join(cells)}, with kernels.backend={name} alone")


def _no_compiler(facts: Facts) -> str | None:
    if facts.value("compiler").get("command") is not None:
        return None
    return "no C++ compiler that works; its cells run on reference"


def _no_gpu(facts: Facts) -> str | None:
    if not facts.gpus:
        return "no GPU"
    if all(capability < OLDEST for capability in facts.capabilities):
        return f"the GPU is older than sm_{OLDEST[0]}{OLDEST[1]}"
    return None


def _no_nvrtc(facts: Facts) -> str | None:
    return None if facts.value("nvrtc").get("version") else "no NVRTC"


def _for_amd(facts: Facts) -> str | None:
    return "torch is built for AMD GPUs" if facts.value("torch").get("hip") else None


def _no_triton(facts: Facts) -> str | None:
    found = facts.installed("triton")
    if found is None or facts.problem("triton") is not None:
        return "no triton"
    return f"triton {found} is older than {OLDEST_TRITON}" if older(found) else None


def forms(facts: Facts) -> list[Finding]:
    """Return how engines with several forms run on each kind of GPU here, by examples."""
    usable = sorted(one for one in facts.capabilities if one >= OLDEST)
    found = []
    for capability in usable if _no_nvrtc(facts) is None else []:
        e1 = dense.Shape("tanh", "bf16", batch=32, channels=1280, rank=0, capability=capability)
        e23 = tape.Shape("full", "bf16", batch=32, channels=768, slots=8, capability=capability)
        name = f"sm_{capability[0]}{capability[1]}"
        found += [
            Finding("dense engine (E1 1280x6)", name, Mark.OK, dense.choose(e1).why),
            Finding("tape engine (E23 512x17)", name, Mark.OK, tape.choose(e23).why),
        ]
    return found


def baselines(facts: Facts) -> list[Finding]:
    """Return what computes each baseline here."""
    found = registry.cells().values()
    return [_baseline(facts, cell) for cell in found if cell.package or cell.engine == "torch"]


def _baseline(facts: Facts, cell: Cell) -> Finding:
    area = "baselines"
    if not facts.value("torch"):
        return Finding(area, cell.name, Mark.ABSENT, "torch does not work")
    if cell.package is None:
        return Finding(area, cell.name, Mark.OK, "PyTorch's own layers")
    if not facts.gpus:
        return Finding(area, cell.name, Mark.OK, "plain PyTorch, chunked: the path of a CPU")
    if (ended := facts.problem(cell.package)) is not None:
        mend = install_again(facts, cell.package)
        return Finding(area, cell.name, Mark.BROKEN, f"{cell.package}: {ended}", mend)
    problem = facts.value(cell.package)["problem"]
    if problem is None:
        return Finding(area, cell.name, Mark.OK, f"{cell.package} {facts.versions[cell.package]}")
    # "what is wrong; command, and what it does"
    reason, _, advice = problem.rpartition("; ")
    mend = advice.partition(", which")[0]
    mark = Mark.ABSENT if facts.versions[cell.package] is None else Mark.BROKEN
    return Finding(area, cell.name, mark, reason, mend)
