"""Runs all checks that need a GPU: parity, training, NVIDIA's checkers, benchmarks; one report.

    make gpu-check          (or: python tools/gpu/gpu_check.py --out DIR)

parity    mode=parity of every model whose cell has kernels of elman for a GPU, several at a time
typed     gpu_as_typed.py: elman's own commands as a user types them, with empty caches
train     gpu_train.py: training runs and layers, as users run them
replay    gpu_replay.py: a small model of every cell and every setting, replayed as CUDA graphs
devices   gpu_devices.py: small models on two GPUs of one process, where there are two
kernels   gpu_kernels.py: the matrix-state engine against fp64, and its times next to their floors
channel   gpu_channel.py: the same for the channel engine
norm      gpu_norm.py: the same for residual add and RMSNorm, next to PyTorch's and FLA's
models    gpu_models.py: tokens per second and memory of whole models and of the baselines, one run
memcheck, racecheck, initcheck, synccheck: NVIDIA's checkers over the smallest kernels

Every part is a separate command, and its output is in the report's folder. A part that fails does
not stop the others. A checker that is not installed is reported as missing, and the report fails.
Exit status: 0 if all passed, 1 if something failed, 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.config.catalog import catalog
from elman.models.cells import registry
from elman.models.cells.declaration import Cell
from elman.report.markdown import table

HERE = Path(__file__).parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZER = "compute-sanitizer"
PARITY_S, PART_S = 900, 1800
# As gpu_kernels.py and gpu_channel.py write them, and what of them the report shows.
_TIMES = ("forward_us", "backward_us", "forward_over_floor", "backward_over_floor")


@dataclass(frozen=True)
class Settings:
    """What the command line says.

    Args:
        out: Folder of the report.
        quick: Two small shapes for each model in parity, one model for each cell, no speed of whole
            models.
        jobs: Number of models that are checked at the same time.
    """

    out: Path
    quick: bool
    jobs: int


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


def parity(settings: Settings) -> dict[str, Any]:
    """Prove every model on its kernels, each in a process of its own."""
    chosen = models(settings.quick)
    with ThreadPoolExecutor(settings.jobs) as pool:
        rows = list(pool.map(lambda name: prove(name, chosen[name], settings), chosen))
    wrong = [row["model"] for row in rows if not row["passed"]]
    report: dict[str, Any] = {"passed": not wrong, "models": len(rows), "rows": rows}
    if wrong:
        report["problem"] = f"{len(wrong)} of {len(rows)} models: {', '.join(wrong)}"
    return report


def prove(name: str, backend: str, settings: Settings) -> dict[str, Any]:
    """Run mode=parity for a model on a backend and return what it found."""
    folder = settings.out / "parity" / name
    shutil.rmtree(folder, ignore_errors=True)
    quick = str(settings.quick).lower()
    command = [sys.executable, "-m", "elman", "mode=parity", f"model={name}"]
    command += [f"kernels.backend={backend}", f"parity.quick={quick}", f"hydra.run.dir={folder}"]
    log = settings.out / "parity" / f"{name}.log"
    threads = max(1, (os.cpu_count() or 1) // settings.jobs)
    row = {"model": name} | run_logged(command, log, PARITY_S, OMP_NUM_THREADS=str(threads))
    found = folder / "parity.json"
    if found.exists():
        summary = json.loads(found.read_text())["summary"]
        row["checks"] = {
            f"{one['backend']} {one['precision']}": {
                "passed": f"{one['passed']} of {one['checks']}",
                "worst": one["worst"]["tensor"],
                "relative_l2": one["worst"]["relative_l2"],
                "tolerance": one["worst"]["tolerance"],
            }
            for one in summary
        }
    return row


# ---- the other parts


def benchmark(script: str, *options: str) -> Callable[[Settings], dict[str, Any]]:
    """Return a part that runs a script of this folder, which writes a JSON file of its name."""

    def part(settings: Settings) -> dict[str, Any]:
        command = [sys.executable, str(HERE / f"{script}.py"), "--out", str(settings.out)]
        report = run_logged([*command, *options], settings.out / f"{script}.log", PART_S)
        found = settings.out / f"{script}.json"
        if found.exists():
            report["found"] = json.loads(found.read_text())
        return report

    return part


def checker(tool: str) -> Callable[[Settings], dict[str, Any]]:
    """Return a part that runs the smallest kernels under one of NVIDIA's checkers."""

    def part(settings: Settings) -> dict[str, Any]:
        if shutil.which(SANITIZER) is None:
            return {"passed": False, "problem": f"{SANITIZER} is not installed (CUDA toolkit)"}
        # PyTorch and the driver's own bindings ask for entry points that not every driver has.
        quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
        command = [SANITIZER, "--tool", tool, *quiet, "--error-exitcode", "9", sys.executable]
        command += [str(HERE / "gpu_kernels.py"), "--out", str(settings.out / "small")]
        log = settings.out / f"{tool}.log"
        report = run_logged([*command, "--sections", "small"], log, PART_S)
        if "Device not supported" in log.read_text(errors="replace"):
            report["problem"] = f"{SANITIZER} does not work on this machine: Device not supported"
        return report

    return part


def run_logged(command: Sequence[str], log: Path, limit_s: int, **variables: str) -> dict[str, Any]:
    """Run a command with more environment variables; its output goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with log.open("w") as lines:
        try:
            status = subprocess.run(
                command,
                stdout=lines,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
                env=os.environ | variables,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    seconds = round(time.perf_counter() - began, 1)
    report: dict[str, Any] = {"passed": status == 0, "status": status, "seconds": seconds}
    if status != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        report["problem"] = " ".join(last) if status is not None else f"stopped after {limit_s} s"
    return report


PARTS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "parity": parity,
    "typed": benchmark("gpu_as_typed"),
    "train": benchmark("gpu_train"),
    "replay": benchmark("gpu_replay"),
    "devices": benchmark("gpu_devices"),
    "kernels": benchmark("gpu_kernels", "--sections", "machine,parity,operator,times"),
    "channel": benchmark("gpu_channel"),
    "norm": benchmark("gpu_norm"),
    "models": benchmark("gpu_models"),
    **{tool: checker(tool) for tool in TOOLS},
}
# A quick check leaves these to the full one.
LONG = ("models",)


# ---- the report


def markdown(report: dict[str, Any]) -> str:
    """Return the report as a page."""
    rows = [[name, verdict(part), part.get("problem", "")] for name, part in report.items()]
    pages = ["# GPU check", table(["part", "result", "problem"], rows)]
    pages += [writer(report[name]) for name, writer in _PAGES.items() if name in report]
    return "\n\n".join(page for page in pages if page) + "\n"


def verdict(part: dict[str, Any]) -> str:
    """Return how a part ended, in a few words."""
    seconds = f", {part['seconds']:.0f} s" if "seconds" in part else ""
    return ("passed" if part["passed"] else "FAILED") + seconds


def _parity_page(part: dict[str, Any]) -> str:
    rows = []
    for row in part.get("rows", ()):
        for kind, one in row.get("checks", {}).items():
            errors = [_e(one["relative_l2"]), _e(one["tolerance"])]
            rows.append([row["model"], kind, one["passed"], one["worst"], *errors])
        if "checks" not in row:
            rows.append([row["model"], row.get("problem", ""), "none", "", "", ""])
    head = ["model", "backend", "checks passed", "worst tensor", "relative L2", "tolerance"]
    return "## Parity with fp64\n\n" + table(head, rows)


def _e(number: float | None) -> str:
    return "not a number" if number is None else f"{number:.1e}"


def _typed_page(part: dict[str, Any]) -> str:
    rows = [
        [f"`{row['typed']}`", f"{row['seconds']:.0f} s", *_checked(row)]
        for row in part.get("found", {}).get("commands", [])
    ]
    return "## Commands as they are typed\n\n" + table(["command", "time", "result", "error"], rows)


def _train_page(part: dict[str, Any]) -> str:
    rows = [
        [model, name, "passed" if check.get("passed") else "FAILED", _first(check.get("error", ""))]
        for model, parts in part.get("found", {}).items()
        for checks in parts.values()
        for name, check in checks.items()
    ]
    return "## Training and layers\n\n" + table(["model", "check", "result", "error"], rows)


def _first(error: str) -> str:
    return error.splitlines()[0][:150] if error else ""


def _replay_page(part: dict[str, Any]) -> str:
    found = part.get("found", {})
    rows = [[name, *_checked(check)] for name, check in found.get("settings", {}).items()]
    for name, ways in found.get("cells", {}).items():
        rows += [[f"{name}, {way}", *_checked(check)] for way, check in ways.items()]
    return "## Replays and eager passes\n\n" + table(["what", "result", "error"], rows)


def _checked(check: dict[str, Any]) -> list[str]:
    return ["passed" if check.get("passed") else "FAILED", _first(check.get("error", ""))]


def _devices_page(part: dict[str, Any]) -> str:
    rows = [[cell, *_checked(check)] for cell, check in part.get("found", {}).items()]
    return "## Several GPUs\n\n" + table(["cell", "result", "error"], rows)


def _kernels_page(part: dict[str, Any]) -> str:
    found = part.get("found", {}).get("times", {}).get("rows", [])
    rows = [[row["name"], row.get("tile config", ""), *_numbers(row)] for row in found]
    return "## Matrix-state kernels\n\n" + table(["size", "tile config", *_TIMES], rows)


def _channel_page(part: dict[str, Any]) -> str:
    found = part.get("found", {}).get("times", {})
    rows = [[step, *_numbers(row)] for step, row in found.items()]
    return "## Channel kernels\n\n" + table(["step", *_TIMES], rows)


def _norm_page(part: dict[str, Any]) -> str:
    passes = ("forward", "both")
    figures = [f"{name}_{figure}" for name in passes for figure in ("us", "gb_s", "over_floor")]
    rows = [
        [width, name, *(str(row.get(figure, _first(row.get("error", "")))) for figure in figures)]
        for width, found in part.get("found", {}).get("times", {}).items()
        for name, row in found.items()
    ]
    return "## Residual add and RMSNorm\n\n" + table(["width", "what", *figures], rows)


def _models_page(part: dict[str, Any]) -> str:
    rows = []
    for name, row in part.get("found", {}).get("models", {}).items():
        rates = [str(row.get(way, {}).get("tok_s", "")) for way in ("eager", "graph")]
        figures = [str(row.get(key, "")) for key in ("params", "peak_gb")]
        rows.append([name, *figures, *rates, _first(row.get("error", ""))])
    head = ["model", "params", "peak GB", "tok/s eager", "tok/s as a graph", "error"]
    return "## Whole models\n\n" + table(head, rows)


def _numbers(row: dict[str, Any]) -> Iterable[str]:
    if "error" in row:
        return [_first(row["error"]), *[""] * (len(_TIMES) - 1)]
    return [str(row.get(name, "")) for name in _TIMES]


_PAGES = {
    "parity": _parity_page,
    "typed": _typed_page,
    "train": _train_page,
    "replay": _replay_page,
    "devices": _devices_page,
    "kernels": _kernels_page,
    "channel": _channel_page,
    "norm": _norm_page,
    "models": _models_page,
}


# ---- running


def gpu_problem() -> str | None:
    """Return why nothing can be checked here, or None."""
    import torch

    from elman.kernels.driver import cuda_problem

    if not torch.cuda.is_available():
        return "torch sees no GPU here"
    return cuda_problem()


def left_out(quick: bool) -> dict[str, str]:
    """Return the parts that run only when they are asked for, and why."""
    import torch

    found = dict.fromkeys(LONG, "since --quick leaves it to the full check") if quick else {}
    if torch.cuda.device_count() < 2:
        found["devices"] = "since it needs two GPUs"
    return found


def main() -> int:
    """Run the parts and write ``report.json`` and ``report.md``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu-check"))
    parser.add_argument("--sections", help="parts to run, separated by commas; otherwise all")
    parser.add_argument("--quick", action="store_true", help="small shapes, a model for each cell")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    given = parser.parse_args()
    chosen = given.sections.split(",") if given.sections else list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"--sections {','.join(unknown)}: no such part; parts: {', '.join(PARTS)}")
    if (problem := gpu_problem()) is not None:
        print(f"gpu-check: {problem}", file=sys.stderr)
        return 2
    settings = Settings(given.out.resolve(), given.quick, given.jobs)
    settings.out.mkdir(parents=True, exist_ok=True)
    if not given.sections:
        for name, why in left_out(given.quick).items():
            print(f"{name}: not run, {why}")
            chosen.remove(name)
    report = check(chosen, settings)
    print(f"report: {settings.out / 'report.md'}")
    return int(not all(part["passed"] for part in report.values()))


def check(chosen: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Run parts one after the other, and write the report after each."""
    report: dict[str, Any] = {}
    for name in chosen:
        began = time.perf_counter()
        try:
            report[name] = PARTS[name](settings)
        except Exception as error:
            report[name] = {"passed": False, "problem": repr(error)}
        report[name].setdefault("seconds", round(time.perf_counter() - began, 1))
        (settings.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        (settings.out / "report.md").write_text(markdown(report))
        print(f"{name}: {verdict(report[name])} {report[name].get('problem', '')}", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
