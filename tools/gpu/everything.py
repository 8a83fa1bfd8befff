"""Everything that needs a GPU: parity, training, NVIDIA's checkers, times; one report.

    make gpu-check          (or: python tools/gpu/run.py all [PART ...] [--quick] [jobs=8])

parity    mode=parity of every model whose cell has kernels of elman for a GPU, several at a time
typed, train, replay, devices, kernels, channel, norm: the checks of these names
speed     mode=bench: training steps of whole models and of the baselines, replayed and eager
memcheck, racecheck, initcheck, synccheck: NVIDIA's checkers over the smallest kernels

Every part is a separate command. Its output is in DIR, and what all of them found is on the page
DIR/report.md. A part that fails does not stop the others. A checker that is not installed is
reported as missing, and the report fails. With ``--quick``, parity has two small shapes for each
model and one model for each cell, and whole models are not timed. ``jobs`` models are checked at
the same time; 0 is half of the cores.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from elman.config.catalog import catalog
from elman.models.cells import registry
from elman.models.cells.declaration import Cell
from tools.gpu import pages
from tools.gpu.job import Check, Job, Row
from tools.gpu.processes import RUNNER, Ended, run_logged

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZER = "compute-sanitizer"
PARITY_S, PART_S = 900, 1800
Part = Callable[[Job], None]
# Models that are timed in turn: one of ours, and what it is compared with.
GROUPS = (
    ("e88f_h32n16", "fla-gdn_768x20_e1", "mamba2", "fla-gdn", "llama"),
    ("e88f_h32n16_2432x20", "e88h_h32n32", "e70n64", "e70n128", "e75h4n16"),
)


# ---- parity


def models(quick: bool) -> dict[str, str]:
    """Return the models to check, each with its backend: one for each cell or set of options."""
    found: dict[str, tuple[str, str]] = {}
    for listed in catalog():
        model = listed.config
        if model is None:
            continue
        backend = own_kernels(registry.cell(model.cell).under(model.options))
        if not backend:
            continue
        kinds = [] if quick else [one for one in model.options.items() if not _is_size(*one)]
        found.setdefault(f"{model.cell} {sorted(kinds)}", (listed.name, backend))
    return dict(found.values())


def own_kernels(cell: Cell) -> str:
    """Return the backend of elman's kernels for a cell on an NVIDIA GPU; empty without any."""
    if cell.package is not None:
        return ""
    return next((name for name in ("cuda", "triton") if name in cell.backends), "")


def _is_size(name: str, value: object) -> bool:
    """Return whether an option is a size of the state, which parity itself varies."""
    return name in ("n_state", "n_heads", "expansion") or type(value) is int


def parity(job: Job) -> None:
    """Prove every model on its kernels, each in a process of its own."""
    chosen = models(job.quick)
    at_once = job.settings["jobs"] or max(1, (os.cpu_count() or 1) // 2)
    with ThreadPoolExecutor(at_once) as pool:
        proved = partial(prove, job, at_once)
        for rows in pool.map(proved, chosen, chosen.values()):
            for row in rows:
                job.report(row)


def prove(job: Job, at_once: int, name: str, backend: str) -> list[Row]:
    """Run mode=parity for a model on a backend and return what it found."""
    folder = job.out / "parity" / name
    shutil.rmtree(folder, ignore_errors=True)
    quick = str(job.quick).lower()
    command = [sys.executable, "-m", "elman", "mode=parity", f"model={name}"]
    command += [f"kernels.backend={backend}", f"parity.quick={quick}", f"hydra.run.dir={folder}"]
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // at_once))}
    log = job.out / "parity" / f"{name}.log"
    ended = run_logged(command, log, PARITY_S, variables=threads)
    row, found = {"model": name} | ended.row, folder / "parity.json"
    if not found.exists():
        return [row | {"passed": False}]
    summary = json.loads(found.read_text())["summary"]
    return [row | tolerated(one) for one in summary] or [row]


def tolerated(one: dict[str, Any]) -> Row:
    """Return the worst of a model's checks on a backend in a precision."""
    return {
        "kind": f"{one['backend']} {one['precision']}",
        "checks": f"{one['passed']} of {one['checks']}",
        "worst": one["worst"]["tensor"],
        "relative_l2": one["worst"]["relative_l2"],
        "tolerance": one["worst"]["tolerance"],
    }


# ---- the other parts


def checked(name: str) -> Part:
    """Return a part that runs a check of this folder in a process of its own."""

    def part(job: Job) -> None:
        command = [sys.executable, str(RUNNER), name, f"--out={job.out}"]
        report(job, run_logged(command, job.out / f"{name}.log", PART_S))

    return part


def report(job: Job, ended: Ended) -> None:
    """Report how a command ended."""
    job.report(ended.row)


def devices(job: Job) -> None:
    """Compare two GPUs, where there are two."""
    import torch

    if torch.cuda.device_count() < 2:
        job.report({"not run": "it needs two GPUs"})
        return
    checked("devices")(job)


def speed(job: Job) -> None:
    """Time training steps of whole models, replayed and eager."""
    if job.quick:
        job.report({"not run": "--quick leaves it to the full check"})
        return
    for (first, *others), graph in ((group, graph) for group in GROUPS for graph in (True, False)):
        folder = job.out / "speed" / f"{first}-{'replayed' if graph else 'eager'}"
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "elman", "mode=bench", f"model={first}"]
        command += [f"bench.models=[{','.join(others)}]", "bench.level=step"]
        command += ["bench.batch_size=32", "bench.chunk_size=512", f"hydra.run.dir={folder}"]
        command += ["bench.graph=auto" if graph else "bench.graph=false"]
        report(job, run_logged(command, folder.with_suffix(".log"), PART_S))
        found = folder / "bench.json"
        for row in json.loads(found.read_text())["rows"] if found.exists() else []:
            figures = {"model": row["name"], "params": row["params"], "tok_s": row["tok_s"]}
            job.report(figures | {"replayed": row["replayed"], "peak_bytes": row["peak_bytes"]})


def checker(tool: str) -> Part:
    """Return a part that runs the smallest kernels under one of NVIDIA's checkers."""

    def part(job: Job) -> None:
        if shutil.which(SANITIZER) is None:
            text = f"{SANITIZER} is not installed (CUDA toolkit)"
            job.report({"passed": False, "error": text})
            return
        # PyTorch and the driver's own bindings ask for entry points that not every driver has.
        quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
        command = [SANITIZER, "--tool", tool, *quiet, "--error-exitcode", "9", sys.executable]
        command += [str(RUNNER), "kernels", "small", f"--out={job.out / tool}"]
        log = job.out / f"{tool}.log"
        ended = run_logged(command, log, PART_S)
        row = ended.row
        if "Device not supported" in log.read_text(errors="replace"):
            row["error"] = f"{SANITIZER} does not work on this machine: Device not supported"
        job.report(row)

    return part


# ---- running


def with_page(part: Part) -> Part:
    """Return a part after which the page is written anew."""

    def run(job: Job) -> None:
        began = time.perf_counter()
        try:
            part(job)
        finally:
            job.report({"what": pages.END, "wall_s": round(time.perf_counter() - began, 1)})
            (job.out / "report.md").write_text(pages.page(job))

    return run


def gpu_problem() -> str | None:
    """Return why elman's kernels cannot run here, or None."""
    from elman.kernels.driver import cuda_problem

    return cuda_problem()


PARTS: dict[str, Part] = {
    "parity": parity,
    "typed": checked("typed"),
    "train": checked("train"),
    "replay": checked("replay"),
    "devices": devices,
    "kernels": checked("kernels"),
    "channel": checked("channel"),
    "norm": checked("norm"),
    "speed": speed,
    **{tool: checker(tool) for tool in TOOLS},
}
CHECK = Check(
    {name: with_page(part) for name, part in PARTS.items()},
    settings={"jobs": 0},
    problem=gpu_problem,
)
