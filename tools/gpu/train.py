"""Layers and training runs on the cuda backend as users run them, on a GPU in minutes.

layer      one layer runs twice, on a side stream and as a replayed CUDA graph (all equal bit for
           bit), under torch.compile in one graph, and with another length
training   a short bf16 training run, replayed as a CUDA graph, whose losses must follow the
           reference backend's; it is repeated launch by launch, repeated once more, and resumed in
           the middle: all must be equal bit for bit

    python tools/gpu/run.py train [layer] [training] [--only e88_tiny,e61]

Each of five models runs in its own process, all at once; ``--only`` chooses some. On a CPU, what a
CPU can run runs on the cpu backend.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.models.build import layer_class
from elman.models.cells.registry import cell
from elman.modes.train import run as run_training
from elman.runs.prepared import PreparedRun
from tools.gpu.instruments import equal, finite, furthest, on_side_stream, replayed
from tools.gpu.job import Check, Job, Row
from tools.gpu.processes import each_in_a_process

SMALL = ("model.dim=256", "model.depth=2")
# e88_tiny is small as it is.
MODELS: dict[str, tuple[str, ...]] = {
    "e88_tiny": (),
    "e70": (*SMALL, "model.n_state=64"),
    "e75h4n16": SMALL,
    "e74": SMALL,
    "e61": SMALL,
}
STEPS, HALF = 12, 6
RUN = (
    "train.batch_size=8",
    "train.chunk_size=64",
    f"train.steps={STEPS}",
    f"train.save_every={HALF}",
    "train.val_every=null",
    "data.val_sample=512",
    "data.val_window=64",
    "log.every=1",
    "log.tensorboard=false",
)
LOSS_TOLERANCE = 2e-2  # nats, between two backends that round bf16 in other places
TOLERANCE = 2e-2  # relative L2 of what torch.compile rounds elsewhere
LIMIT_S = 200
BATCH, TIME = 8, 50
# Products are then the same in every run; nothing else is asked to be deterministic.
_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 5)),
}


@dataclass(frozen=True)
class Place:
    """Where everything runs.

    Args:
        model: A name in :data:`MODELS`.
        out: Folder of this model's files.
        device: ``cuda`` or ``cpu``, which is the backend's name, too.
    """

    model: str
    out: Path
    device: str

    @property
    def overrides(self) -> list[str]:
        """Overrides of the model alone."""
        return [f"model={self.model}", *MODELS[self.model]]


# ---- training


def train(place: Place, name: str, *overrides: str) -> dict[str, Any]:
    """Train in a folder and return what the run left: losses, weights, result."""
    folder = place.out / name
    folder.mkdir(parents=True, exist_ok=True)
    text = place.out / "text.txt"
    if not text.exists():
        line = b"def add(left, right):\n    return left + right\n\n\n"
        text.write_bytes((line * (1 + 65536 // len(line)))[:65536])
    settings = [f"data.path={text}", f"train.device={place.device}", *overrides]
    status = run_training(PreparedRun(compose_config([*place.overrides, *RUN, *settings]), folder))
    result = json.loads((folder / "result.json").read_text())
    assert status is ExitStatus.OK, result["error"]
    return {"result": result, "losses": losses(folder), "weights": weights(folder)}


def losses(folder: Path) -> dict[int, float]:
    """Return the last recorded loss of every step."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {r["step"]: r["loss"] for r in records if r["kind"] == "step"}


def weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights after the last step."""
    newest = folder / "checkpoints" / f"step-{STEPS:07d}"
    return load_file(newest / "model.safetensors")


def check_training(place: Place, job: Job) -> None:
    """Train, launch by launch, again, in two halves, and on the reference."""
    mine = f"kernels.backend={place.device}"
    first = train(place, "first", mine)
    result = first["result"]
    trained: Row = {
        "check": "trained",
        "backend": result["backend"],
        "parity": result["parity"],
        "losses": list(first["losses"].values()),
        "graph": result["graph"],
        "passed": result["backend"] == place.device
        and result["parity"] is not None
        and result["graph"] == (place.device == "cuda"),
    }
    job.report(trained)

    def eager() -> dict[str, Any]:
        return compare_runs(first, train(place, "eager", mine, "train.graph=false"))

    def repeated() -> dict[str, Any]:
        return compare_runs(first, train(place, "repeated", mine))

    def resumed() -> dict[str, Any]:
        shutil.copytree(place.out / "first", place.out / "resumed", symlinks=True)
        shutil.rmtree(place.out / "resumed" / "checkpoints" / f"step-{STEPS:07d}")
        resume = f"train.resume={place.out / 'resumed'}"
        return compare_runs(first, train(place, "resumed", mine, resume))

    def reference() -> dict[str, Any]:
        other = train(place, "reference", "kernels.backend=reference")["losses"]
        apart = max(abs(other[n] - loss) for n, loss in first["losses"].items())
        fell = first["losses"][1] - first["losses"][STEPS]
        passed = apart <= LOSS_TOLERANCE and fell > 0
        return {"losses": list(other.values()), "apart": apart, "fell": fell, "passed": passed}

    for check in (eager, repeated, resumed, reference):
        job.attempt({"check": check.__name__}, check)


def compare_runs(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return whether two runs are the same to the bit."""
    same_losses = one["losses"] == other["losses"]
    differ = [n for n, w in one["weights"].items() if not torch.equal(w, other["weights"][n])]
    return {"losses": same_losses, "differ": differ, "passed": same_losses and not differ}


# ---- one layer


def check_layer(place: Place, job: Job) -> None:
    """Run one layer in every way in which PyTorch runs layers."""
    config = compose_config(place.overrides).model
    declared = cell(config.cell)
    options = {k: v for k, v in config.options.items() if v != declared.options[k].default}
    torch.manual_seed(5)
    layer = layer_class(declared)(config.dim, **options, backend=place.device, device=place.device)
    x_btd = torch.randn(BATCH, TIME, config.dim, device=place.device, requires_grad=True)
    dy_btd = torch.randn(BATCH, TIME, config.dim, device=place.device)
    leaves = [x_btd, *(p for p in layer.parameters() if p.requires_grad)]

    def both(module: Callable[..., Any] = layer) -> list[Tensor]:
        with torch.autocast(place.device, torch.bfloat16, enabled=place.device == "cuda"):
            y_btd, state = module(x_btd)
        grads = torch.autograd.grad(y_btd, leaves, dy_btd.to(y_btd.dtype))
        return [y_btd.detach(), *(part.detach() for part in state.values()), *grads]

    wanted = both()
    ways: dict[str, Callable[[], list[Tensor]]] = {"eager again": both}
    if place.device == "cuda":
        ways["side stream"] = lambda: on_side_stream(both)
        ways["cuda graph"] = lambda: replayed(both)
    for name, way in ways.items():
        job.attempt({"check": name}, lambda way=way: same(way(), wanted))  # type: ignore[misc]
    job.attempt({"check": "compiled"}, lambda: compiled(both, layer, wanted))
    job.attempt({"check": "other length"}, lambda: other_length(layer, x_btd))


def same(found: list[Tensor], wanted: list[Tensor]) -> dict[str, Any]:
    """Compare to the bit."""
    if found[0].is_cuda:
        torch.cuda.synchronize()
    same_bits, all_finite = equal(found, wanted), finite(wanted)
    return {"same_bits": same_bits, "finite": all_finite, "passed": same_bits and all_finite}


def compiled(
    both: Callable[..., list[Tensor]], layer: nn.Module, wanted: list[Tensor]
) -> dict[str, Any]:
    """Compile the layer, in one graph or not at all."""
    began = time.perf_counter()
    found = both(torch.compile(layer, fullgraph=True))
    worst = furthest(found, wanted)
    seconds = round(time.perf_counter() - began, 1)
    return {"worst": worst, "seconds": seconds, "passed": worst <= TOLERANCE}


def other_length(layer: nn.Module, x_btd: Tensor) -> dict[str, Any]:
    """Run in two calls, of which the second takes the first one's state."""
    with torch.no_grad():
        whole_btd, last = layer(x_btd)
        head_btd, state = layer(x_btd[:, :19])
        tail_btd, end = layer(x_btd[:, 19:], state)
    found = [torch.cat([head_btd, tail_btd], 1), *end.values()]
    worst = furthest(found, [whole_btd, *last.values()])
    return {"worst": worst, "passed": worst <= 1e-4}


# ---- running


def each_model(job: Job) -> None:
    """Run a part for every model in a process of its own."""
    names = job.chosen(MODELS)
    each_in_a_process(job, names, at_once=len(names), limit_s=LIMIT_S, variables=_ENVIRONMENT)


def one_model(job: Job, model: str) -> None:
    """Run a part for one model in this process."""
    check = {"layer": check_layer, "training": check_training}[job.part]
    check(Place(model, job.out, job.device), job)


CHECK = Check(
    {"layer": each_model, "training": each_model},
    names=lambda: MODELS,
    item=one_model,
    on_cpu=("layer", "training"),
)
