"""Compares training passes replayed as CUDA graphs with eager ones on a GPU: bits, then speed.

cells     a small model of every cell, without and with carried states: steps of the training
          loop, eager twice and replayed; losses, gradient norms and weights must agree to the
          bit wherever two eager runs do. Every cell runs in its own process, several at once.
settings  whole training runs of one model, eager and replayed: every optimizer, accumulation,
          streams, dropout, another precision, a run that is resumed, one that is profiled
rates     tokens per second, memory and the time before the clock starts, of whole models as users
          train them, eager and replayed

    python tools/gpu/gpu_replay.py --out DIR [--sections cells,settings,rates] [--cells e1,e88]

Everything goes to DIR/gpu_replay.json. --device cpu compares eager with eager, to try out this
script. Exit status: 0 if all results agree, 1 if not, 2 if there is no GPU.

Shape legend: b batch, t time.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu_train import (  # type: ignore[import-not-found]
    STEPS,
    Place,
    attempt,
    compare_runs,
    losses,
    train,
    weights,
)
from torch import Tensor

from elman.config.catalog import catalog
from elman.config.compose import compose_config
from elman.config.run_config import RunConfig
from elman.data.batches import open_data
from elman.models.backends import resolve_backend
from elman.models.build import build_model
from elman.models.cells import registry
from elman.modes.train import run as run_training
from elman.runs.prepared import PreparedRun
from elman.training.assembly import state_of
from elman.training.loop import take_step
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.preparation import prepare_step
from elman.training.training_state import TrainingState

TAKEN = 4  # steps of a cell
# Where eager runs differ among themselves, by sums whose order the GPU chooses.
TOLERANCE = 1e-3
LIMIT_S = 400
CELL = ("train.batch_size=8", "train.chunk_size=64", "data.val_window=64", "optim.warmup_steps=1")
CARRIED = ("train.tbptt=true", "train.grad_accum=2")
SETTINGS: dict[str, tuple[str, ...]] = {
    "adamw": (),
    "muon": ("optim=muon",),
    "schedulefree": ("optim=schedulefree",),
    "legacy": ("optim=legacy",),
    "accumulation": ("train.grad_accum=2",),
    "tbptt": ("train.tbptt=true", "model.use_conv=true"),
    "dropout": ("model.dropout=0.3",),
    "dropout, tbptt, accumulation": (*CARRIED, "model.dropout=0.3"),
    "fp32": ("train.precision=fp32",),
    "validation between": ("train.val_every=3", "optim=schedulefree"),
    # Last: it holds for the process from then on.
    "deterministic": ("train.deterministic=true",),
}
RATES = ("e88_tiny", "e88f_h32n16", "e75h4n16", "e61", "fla-gdn_768x20_e1", "mamba2")
RATED = ("train.steps=60", "train.val_every=null", "data.val_sample=4096", "log.tensorboard=false")


# ---- one cell


def check_cell(name: str, out: Path, device: torch.device) -> dict[str, Any]:
    """Compare a small model of a cell in both ways of training."""
    report: dict[str, Any] = {}
    for way, overrides in {"plain": (), "carried": CARRIED}.items():
        config = small_model(name, out, (*CELL, *overrides))
        attempt(way, lambda config=config: compare_ways(config, device), report)
    return report


def small_model(name: str, out: Path, overrides: tuple[str, ...]) -> RunConfig:
    """Return the configuration of two small layers of a cell."""
    text = out / "text.txt"
    if not text.exists():
        # Streams of it end within the steps taken.
        text.write_bytes(bytes(range(256)) * 14)
    config = compose_config([*overrides, f"data.path={text}"])
    model = next(
        one.config for one in reversed(catalog()) if one.config and one.config.cell == name
    )
    # A context that is whole after the first chunk.
    options = model.options | ({"context": 65} if "context" in model.options else {})
    sizes = {"dim": 256, "depth": 2, "expected_params": None, "options": options}
    return config.model_copy(update={"model": model.model_copy(update=sizes)})


def compare_ways(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Train eagerly, again, and replayed."""
    wanted, again = (steps_of(config, device, graph=False) for _ in range(2))
    found = steps_of(config, device, graph=device.type == "cuda")
    repeatable, equal = same(again, wanted), same(found, wanted)
    apart, noise = (furthest(one, wanted) for one in (found, again))
    passed = equal or (not repeatable and apart <= max(TOLERANCE, 2 * noise))
    report = {"passed": passed, "equal": equal, "eager is repeatable": repeatable}
    return report | {"apart": apart, "eager apart": noise, "losses": found[0].tolist()}


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other)) and bool(other[0].isfinite().all())


def furthest(one: list[Tensor], other: list[Tensor]) -> float:
    """Return the largest relative L2 distance of two tensors."""
    pairs = zip(one, other, strict=True)
    return max(float((x - y).norm() / (y.norm() + 1e-30)) for x, y in pairs)


def steps_of(config: RunConfig, device: torch.device, *, graph: bool) -> list[Tensor]:
    """Return losses and gradient norms of some steps, then the weights after them, in fp64."""
    train = config.train.model_copy(update={"graph": graph})
    config = config.model_copy(update={"train": train})
    with training_state(config, device, graph=graph) as state:
        prepare_step(state)
        taken = [take_step(state, 0.1) for _ in range(TAKEN)]
        numbers = [torch.stack([step.loss for step in taken])]
        numbers.append(torch.stack([step.grad_norm for step in taken]))
        ended = [weight.detach() for weight in state.model.state_dict().values()]
        return [number.double().cpu() for number in (*numbers, *ended)]


@contextlib.contextmanager
def training_state(
    config: RunConfig, device: torch.device, *, graph: bool
) -> Iterator[TrainingState]:
    """Yield what the steps of a configuration read and change."""
    cell = registry.cell(config.model.cell).under(config.model.options)
    backend = resolve_backend(cell, "auto", device, allow_slow=True)
    with open_data(config.data, config.train.chunk_size, print) as data:
        torch.manual_seed(0)
        model = build_model(config.model, backend=backend, device=device, allow_slow=True)
        optimizer = TrainingOptimizer(config.optim, model)
        state = state_of(config, data, model, optimizer, device, graph=graph)
        try:
            yield state
        finally:
            state.batches.close()


def check_cells(given: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Check every cell in a process of its own."""
    names = given.cells.split(",") if given.cells else sorted(registry.cells())
    with ThreadPoolExecutor(given.jobs if given.device == "cuda" else 1) as pool:
        reports = pool.map(lambda name: in_process(name, out, given.device), names)
        return dict(zip(names, reports, strict=True))


def in_process(name: str, out: Path, device: str) -> dict[str, Any]:
    """Run this script for one cell and return what it found."""
    place = out / "cells" / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    command = [sys.executable, __file__, "--out", str(place), "--cell", name, "--device", device]
    with (place / "log.txt").open("w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        variables = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, stdout=log, stderr=log, timeout=LIMIT_S, check=False, env=variables)
    found = place / "report.json"
    if not found.exists():
        last = (place / "log.txt").read_text(errors="replace").strip().splitlines()[-1:]
        return {"process": {"passed": False, "error": " ".join(last) or f"over {LIMIT_S} s"}}
    report: dict[str, Any] = json.loads(found.read_text())
    print(name, {way: check["passed"] for way, check in report.items()}, flush=True)
    return report


# ---- whole runs


def check_settings(given: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Train in every setting, eager and replayed."""
    report: dict[str, Any] = {}
    graph = "true" if given.device == "cuda" else "auto"
    for name, overrides in SETTINGS.items():
        place = Place("e88_tiny", out / "settings" / name.replace(", ", "-"), given.device)
        shutil.rmtree(place.out, ignore_errors=True)
        place.out.mkdir(parents=True)
        pair = (place, graph, overrides)
        attempt(name, lambda pair=pair: eager_and_replayed(*pair), report)
        attempt(f"{name}, resumed", lambda pair=pair: resumed(*pair), report)
        print(name, report[name]["passed"], report[f"{name}, resumed"]["passed"], flush=True)
    profiled = Place("e88_tiny", out / "settings" / "adamw", given.device)
    attempt("profiled", lambda: traced(profiled, graph), report)
    return report


def eager_and_replayed(place: Place, graph: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Train both ways and compare to the bit."""
    eager = train(place, "eager", "train.graph=false", *overrides)
    replayed = train(place, "replayed", f"train.graph={graph}", *overrides)
    found: dict[str, Any] = compare_runs(eager, replayed)
    validated = [run["result"]["val_bpb"] for run in (eager, replayed)]
    found["passed"] &= validated[0] == validated[1]
    found["passed"] &= replayed["result"]["graph"] == (graph == "true")
    return found | {"val_bpb": validated, "tok_s": replayed["result"]["tok_s"]}


def resumed(place: Place, graph: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Continue the replayed run from its middle, and compare with the eager one."""
    eager = {"losses": losses(place.out / "eager"), "weights": weights(place.out / "eager")}
    shutil.copytree(place.out / "replayed", place.out / "resumed", symlinks=True)
    shutil.rmtree(place.out / "resumed" / "checkpoints" / f"step-{STEPS:07d}")
    resume = f"train.resume={place.out / 'resumed'}"
    found: dict[str, Any] = compare_runs(
        eager, train(place, "resumed", f"train.graph={graph}", *overrides, resume)
    )
    return found


def traced(place: Place, graph: str) -> dict[str, Any]:
    """Profile replays: the trace names the kernels all the same."""
    train(place, "profiled", f"train.graph={graph}", "train.profile=true")
    text = (place.out / "profiled" / "profile.json").read_text()
    named = "matrix_forward" in text or place.device == "cpu"
    return {"passed": named, "bytes": len(text)}


# ---- speed


def check_rates(given: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Train whole models as users do, eager and replayed."""
    report: dict[str, Any] = {}
    for name in given.rates.split(","):
        attempt(name, lambda name=name: rates(name, out, given.device), report)
        print(name, report[name], flush=True)
    return report


def rates(name: str, out: Path, device: str) -> dict[str, Any]:
    """Return tokens per second, memory and seconds outside of training of a model, both ways."""
    found: dict[str, Any] = {}
    for way in ("false", "auto"):
        folder = out / "rates" / f"{name}-{way}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        given = [f"model={name}", f"train.device={device}", f"train.graph={way}", *RATED]
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        run_training(PreparedRun(compose_config(given), folder))
        result = json.loads((folder / "result.json").read_text())
        assert result["error"] is None, result["error"]
        found["graph" if result["graph"] else "eager"] = {
            "tok_s": round(result["tok_s"]),
            "peak_gb": round(result["peak_memory_bytes"] / 1e9, 3),
            "other_s": round(time.perf_counter() - began - result["seconds"]["train"], 1),
            "loss": result["loss"],
        }
    # Eager runs of such sizes differ among themselves: cuBLAS adds parts of products in any order.
    ended = [row["loss"] for row in found.values()]
    return {"passed": max(ended) - min(ended) <= 0.01 * min(ended), **found}


# ---- running

SECTIONS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "cells": check_cells,
    "settings": check_settings,
    "rates": check_rates,
}


def failures(report: dict[str, Any], place: str = "") -> list[str]:
    """Return where a check did not pass, in words."""
    if "passed" in report:
        return [] if report["passed"] else [place]
    return [
        wrong
        for name, part in report.items()
        for wrong in failures(part, f"{place}: {name}" if place else name)
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sections", default="cells,settings")
    parser.add_argument("--cells", help="these alone, separated by commas")
    parser.add_argument("--rates", default=",".join(RATES), help="models of the section rates")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cell", help="check this one in this process")
    return parser.parse_args()


def main() -> int:
    """Run the sections and write ``gpu_replay.json``."""
    given = parse()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("gpu_replay: torch sees no GPU here", file=sys.stderr)
        return 2
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if given.cell:
        report = check_cell(given.cell, out, torch.device(given.device))
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        return 0
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    report = {}
    for section in given.sections.split(","):
        report[section] = SECTIONS[section](given, out)
        (out / "gpu_replay.json").write_text(json.dumps(report, indent=1) + "\n")
    wrong = failures(report)
    print(f"replay: failed: {', '.join(wrong) or 'none'}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
