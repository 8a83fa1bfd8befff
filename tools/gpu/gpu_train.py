"""Checks layers and training runs on the cuda backend as users run them, on a GPU in minutes.

For each of five models there is a short bf16 training run, replayed as a CUDA graph. Its losses
must follow the reference backend's. The run is repeated launch by launch, repeated once more, and
resumed in the middle; all must be equal bit for bit. Then one layer runs twice, on a side stream
and as a replayed CUDA graph (all equal bit for bit), under torch.compile in one graph, and with
another length. Every model runs in its own process, all at once. A check that fails is recorded,
and the others still run.

    python tools/gpu/gpu_train.py --out DIR [--models e88_tiny,e61] [--device cpu]

--device cpu runs what a CPU can run, on the cpu backend, to try out this script.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def check_training(place: Place, report: dict[str, Any]) -> None:
    """Train, launch by launch, again, in two halves, and on the reference."""
    mine = f"kernels.backend={place.device}"
    first = train(place, "first", mine)
    result = first["result"]
    report["trained"] = {
        "backend": result["backend"],
        "parity": result["parity"],
        "losses": list(first["losses"].values()),
        "graph": result["graph"],
        "passed": result["backend"] == place.device
        and result["parity"] is not None
        and result["graph"] == (place.device == "cuda"),
    }

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
        attempt(check.__name__, check, report)


def compare_runs(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return whether two runs are the same to the bit."""
    same_losses = one["losses"] == other["losses"]
    differ = [n for n, w in one["weights"].items() if not torch.equal(w, other["weights"][n])]
    return {"losses": same_losses, "differ": differ, "passed": same_losses and not differ}


# ---- one layer


def check_layer(place: Place, report: dict[str, Any]) -> None:
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
        attempt(name, lambda way=way: same(way(), wanted), report)  # type: ignore[misc]
    attempt("compiled", lambda: compiled(both, layer, wanted), report)
    attempt("other length", lambda: other_length(layer, x_btd), report)


def same(found: list[Tensor], wanted: list[Tensor]) -> dict[str, Any]:
    """Compare to the bit."""
    if found[0].is_cuda:
        torch.cuda.synchronize()
    equal = [bool(torch.equal(x, y)) for x, y in zip(found, wanted, strict=True)]
    finite = all(bool(tensor.isfinite().all()) for tensor in wanted)
    return {"equal": equal, "finite": finite, "passed": all(equal) and finite}


def on_side_stream(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Run on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = run()
    torch.cuda.current_stream().wait_stream(stream)
    return results


def replayed(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Capture a graph and replay it twice, over results that were wiped."""
    on_side_stream(run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for _ in range(2):
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
    return results


def compiled(
    both: Callable[..., list[Tensor]], layer: nn.Module, wanted: list[Tensor]
) -> dict[str, Any]:
    """Compile the layer, in one graph or not at all."""
    began = time.perf_counter()
    found = both(torch.compile(layer, fullgraph=True))
    errors = [
        float((x.double() - y.double()).norm() / (y.double().norm() + 1e-30))
        for x, y in zip(found, wanted, strict=True)
    ]
    seconds = round(time.perf_counter() - began, 1)
    return {"worst": max(errors), "seconds": seconds, "passed": max(errors) <= TOLERANCE}


def other_length(layer: nn.Module, x_btd: Tensor) -> dict[str, Any]:
    """Run in two calls, of which the second takes the first one's state."""
    with torch.no_grad():
        whole_btd, last = layer(x_btd)
        head_btd, state = layer(x_btd[:, :19])
        tail_btd, end = layer(x_btd[:, 19:], state)
    pairs = [(torch.cat([head_btd, tail_btd], 1), whole_btd)]
    pairs += zip(end.values(), last.values(), strict=True)
    errors = [float((x - y).norm() / (y.norm() + 1e-30)) for x, y in pairs]
    return {"worst": max(errors), "passed": max(errors) <= 1e-4}


# ---- running


def attempt(name: str, check: Callable[[], dict[str, Any]], report: dict[str, Any]) -> None:
    """Record what a check finds, or how it ended."""
    began = time.perf_counter()
    try:
        report[name] = check()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        report[name] = {"passed": False, "error": f"{error!r}\n{traceback.format_exc()[-1500:]}"}
    report[name]["took_s"] = round(time.perf_counter() - began, 1)


def check_model(place: Place) -> dict[str, Any]:
    """Run every check of a model, writing after each what is known."""
    report: dict[str, Any] = {}
    for name, check in (("layer", check_layer), ("training", check_training)):
        part = report[name] = {}
        try:
            check(place, part)
        except BaseException as error:
            text = f"{error!r}\n{traceback.format_exc()[-1500:]}"
            part["ended early"] = {"passed": False, "error": text}
        (place.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def check_in_process(model: str, out: Path, device: str) -> dict[str, Any]:
    """Run a model's checks in a process of its own and return its report."""
    place = out / model
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    command = [sys.executable, __file__, "--model", model, "--out", str(place)]
    ended = "ended"
    with (place / "log.txt").open("w") as log:
        try:
            done = subprocess.run(
                [*command, "--device", device],
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
                env=os.environ | _ENVIRONMENT,
            )
            ended = f"status {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {LIMIT_S} s"
    found = place / "report.json"
    report: dict[str, Any] = json.loads(found.read_text()) if found.exists() else {}
    if ended != "status 0":
        report["process"] = {"whole": {"passed": False, "error": f"{ended}; {place / 'log.txt'}"}}
    return report


def failures(report: dict[str, Any]) -> list[str]:
    """Return the checks that failed, in words."""
    return [
        f"{model}: {part}: {name}"
        for model, parts in report.items()
        for part, checks in parts.items()
        for name, check in checks.items()
        if not check.get("passed")
    ]


def main() -> int:
    """Check every model, and write ``gpu_train.json``; 1 if a check failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--model", help="check this one in this process")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("gpu_train: torch sees no GPU here", file=sys.stderr)
        return 2
    out = given.out.resolve()
    if given.model:
        check_model(Place(given.model, out, given.device))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    names = given.models.split(",")
    with ThreadPoolExecutor(len(names) if given.device == "cuda" else 1) as pool:
        reports = pool.map(lambda name: check_in_process(name, out, given.device), names)
        report = dict(zip(names, reports, strict=True))
    (out / "gpu_train.json").write_text(json.dumps(report, indent=1) + "\n")
    wrong = failures(report)
    count = sum(len(checks) for parts in report.values() for checks in parts.values())
    print(f"train: {count} checks, failed: {wrong or 'none'}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
