"""Measures whole models on a GPU: tokens per second, eager and replayed, and peak memory.

    python tools/gpu/gpu_models.py --out DIR [--models e88f_h32n16,fla-gdn_768x20_e1] [--rounds 7]
        [--without column_sum spectral_norm]

Every model is built from its YAML with the backend that ``auto`` chooses. One step is forward,
backward, clipping and AdamW on one batch that is already on the device. Weights are fp32, products
bf16. Eager steps of all models are timed in interleaved rounds, and then replays of each model's
step as one CUDA graph. Figures are medians over the rounds. A profile lists the kernels that take
an eager step's time. With --without, PyTorch's operators run in the place of the named kernels.
Everything goes to DIR/gpu_models.json, rewritten after each result. A model that fails is recorded,
and the others still run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_baselines import Training, environment  # type: ignore[import-not-found]
from torch.profiler import ProfilerActivity, profile

from elman.config.compose import compose_config
from elman.models.backends import choose_backend, computation_path
from elman.models.blocks import spectral_norm
from elman.models.build import build_model
from elman.models.cells import registry
from elman.ops.column_sum import op as column_sum

MODELS = (
    "e88f_h32n16",
    "fla-gdn_768x20_e1",
    "e88f_h32n16_2432x20",
    "e88h_h32n32",
    "mamba2",
    "fla-gdn",
    "e70n64",
    "llama",
    "e70n128",
    "e75h4n16",
)
SWITCHES = {
    "column_sum": (column_sum, "_in_a_kernel"),
    "spectral_norm": (spectral_norm, "in_a_kernel"),
}
"""By the folder of an operator: what decides whether its kernels compute a call."""
WARMUP = 3
LISTED = 14  # kernels of a profile


def main() -> None:
    arguments = parse()
    for name in arguments.without:
        module, decides = SWITCHES[name]
        setattr(module, decides, lambda *call: False)
    device = torch.device("cuda")
    path = Path(arguments.out) / "gpu_models.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"environment": environment(device), "arguments": vars(arguments)}
    results = report["models"] = {}
    trainings: dict[str, Training] = {}
    for name in arguments.models.split(","):
        results[name] = guarded(partial(started, name, trainings, device, arguments))
        save(path, report)
    time_rounds(trainings, results, "eager", lambda training: training.step, arguments)
    save(path, report)
    for name, training in trainings.items():
        results[name]["kernels"] = guarded(partial(profiled, training))
        save(path, report)
    if not arguments.no_graphs:
        graphs = {name: guarded(partial(captured, one)) for name, one in trainings.items()}
        for name, graph in graphs.items():
            if not isinstance(graph, torch.cuda.CUDAGraph):
                results[name]["graph"] = graph
        replayed = {name: t for name, t in trainings.items() if "graph" not in results[name]}
        by_training = {id(t): graphs[name] for name, t in replayed.items()}
        time_rounds(replayed, results, "graph", lambda t: by_training[id(t)].replay, arguments)
    save(path, report)
    show(results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training steps of whole models on a GPU.")
    parser.add_argument("--out", required=True, help="folder of gpu_models.json")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunk-size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps-a-round", type=int, default=6)
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--without", nargs="+", choices=SWITCHES, default=[])
    return parser.parse_args()


def save(path: Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def guarded(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or its error as data."""
    try:
        return call()
    except Exception as error:
        traceback.print_exc()
        torch.cuda.synchronize()
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


def started(
    name: str, trainings: dict[str, Training], device: torch.device, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Build a model, run its first steps, and return what they needed."""
    config = compose_config([f"model={name}"]).model
    cell = registry.cell(config.cell)
    backend = choose_backend(cell, "auto", device.type)
    torch.cuda.reset_peak_memory_stats(device)
    before, began = torch.cuda.memory_allocated(device), time.perf_counter()
    torch.manual_seed(0)
    model = build_model(config, backend=backend, device=device)
    training = Training(model, arguments.batch_size, arguments.chunk_size)
    for _ in range(WARMUP):
        training.step()
    torch.cuda.synchronize(device)
    trainings[name] = training
    found = {
        "params": model.num_params(),
        "path": computation_path(cell, backend),
        "peak_gb": round((torch.cuda.max_memory_allocated(device) - before) / 1e9, 3),
        "first_steps_s": round(time.perf_counter() - began, 1),
    }
    print(name, found, flush=True)
    return found


def time_rounds(
    trainings: dict[str, Training],
    results: dict[str, Any],
    way: str,
    step_of: Callable[[Training], Callable[[], Any]],
    arguments: argparse.Namespace,
) -> None:
    """Add tokens per second to the results, all models in turn in every round."""
    rounds: dict[str, list[float]] = {name: [] for name in trainings}
    for _ in range(arguments.rounds):
        for name, training in trainings.items():
            step = step_of(training)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(arguments.steps_a_round):
                step()
            torch.cuda.synchronize()
            predicted = training.tokens.shape[0] * (training.tokens.shape[1] - 1)
            took = (time.perf_counter() - began) / arguments.steps_a_round
            rounds[name].append(round(predicted / took))
    for name, rates in rounds.items():
        results[name][way] = {"tok_s": statistics.median(rates), "rounds": rates}


def captured(training: Training, stream: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """Return one whole training step as a graph.

    Args:
        training: Its steps.
        stream: The stream on which its steps ran before; None where they left nothing behind. A
            capture on another one fails where a model keeps a tensor of its last step.
    """
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            training.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        training.step()
    return graph


def profiled(training: Training) -> list[dict[str, Any]]:
    """Return the kernels that take most of an eager step."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        training.step()
        torch.cuda.synchronize()
    # Of the events on the device, not of the operators that stand for them on the host.
    events = [e for e in found.key_averages() if e.device_type.name == "CUDA"]
    events.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    rows = [
        {"name": e.key[:70], "ms": round(e.self_device_time_total / 1e3, 3), "calls": e.count}
        for e in events[:LISTED]
    ]
    return [{"name": "all kernels", "ms": round(total / 1e3, 3)}, *rows]


def show(results: dict[str, Any]) -> None:
    for name, row in results.items():
        rates = {way: row[way].get("tok_s", row[way]) for way in ("eager", "graph") if way in row}
        print(
            name, {key: row.get(key) for key in ("params", "peak_gb", "error")}, rates, flush=True
        )


if __name__ == "__main__":
    main()
