"""Training passes replayed as CUDA graphs against eager ones: bits, then speed.

cells     a small model of every cell, without and with carried states: steps of the training
          loop, eager twice and replayed; losses, gradient norms and weights must agree to the
          bit wherever two eager runs do. Every cell runs in its own process, several at once.
settings  whole training runs of one model, eager and replayed: every optimizer, accumulation,
          streams, dropout, another precision, a run that is resumed, one that is profiled
rates     tokens per second, memory and the time before the clock starts, of whole models as users
          train them, eager and replayed

    python tools/gpu/run.py replay [cells] [settings] [rates] [--only e1,e88]

Without parts, the first two are done. ``--only`` chooses cells, settings and models of ``rates``.
On a CPU, eager runs are compared with eager ones.

Shape legend: b batch, t time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.config.catalog import catalog
from elman.config.compose import compose_config
from elman.config.run_config import RunConfig
from elman.data.text import open_data
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
from tools.gpu.instruments import equal, finite, furthest
from tools.gpu.job import Check, Job
from tools.gpu.processes import each_in_a_process
from tools.gpu.train import STEPS, Place, compare_runs, losses, train, weights

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


def check_cell(job: Job, name: str) -> None:
    """Compare a small model of a cell in both ways of training."""
    for way, overrides in {"plain": (), "carried": CARRIED}.items():
        config = small_model(name, job.out, (*CELL, *overrides))
        job.attempt({"way": way}, partial(compare_ways, config, torch.device(job.device)))


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
    repeatable, replay_equal = same(again, wanted), same(found, wanted)
    apart, noise = (furthest(one, wanted) for one in (found, again))
    passed = replay_equal or (not repeatable and apart <= max(TOLERANCE, 2 * noise))
    report = {"passed": passed, "equal": replay_equal, "eager is repeatable": repeatable}
    return report | {"apart": apart, "eager apart": noise, "losses": found[0].tolist()}


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Return whether tensors agree to the bit, and the losses are finite."""
    return equal(one, other) and finite(other[:1])


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


def check_cells(job: Job) -> None:
    """Check every cell in a process of its own."""
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1"}
    at_once = max(1, (os.cpu_count() or 1) // 2)
    names = job.chosen(sorted(registry.cells()))
    each_in_a_process(job, names, at_once=at_once, limit_s=LIMIT_S, variables=variables)


# ---- whole runs


def check_settings(job: Job) -> None:
    """Train in every setting, eager and replayed."""
    graph = "true" if job.device == "cuda" else "auto"
    for name in job.chosen(SETTINGS):
        place = Place("e88_tiny", job.out / "settings" / name.replace(", ", "-"), job.device)
        shutil.rmtree(place.out, ignore_errors=True)
        place.out.mkdir(parents=True)
        requested = (place, graph, SETTINGS[name])
        job.attempt({"setting": name}, partial(eager_and_replayed, *requested))
        job.attempt({"setting": f"{name}, resumed"}, partial(resumed, *requested))
    profiled = Place("e88_tiny", job.out / "settings" / "adamw", job.device)
    job.attempt({"setting": "profiled"}, partial(traced, profiled, graph))


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


def check_rates(job: Job) -> None:
    """Train whole models as users do, eager and replayed."""
    for name in job.chosen(RATES):
        job.attempt({"model": name}, partial(rates, name, job.out, job.device))


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


CHECK = Check(
    {"cells": check_cells, "settings": check_settings, "rates": check_rates},
    default=("cells", "settings"),
    names=lambda: (*sorted(registry.cells()), *SETTINGS, *RATES),
    item=check_cell,
    on_cpu=("cells", "settings", "rates"),
    variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)
