"""The channel engine's kernels on a GPU: parity of every step with fp64, times beside their floors.

    python benchmarks/gpu_channel.py --out DIR

The floor is what must pass through memory at the bandwidth of a copy, measured in the same run.
Needs what gpu_kernels.py needs. Shape legend: b batch, t time, c channels, s channels of a source.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.ops.channel import op
from elman.ops.channel.cells import CELLS
from elman.ops.channel.plan import Plan
from elman.ops.slices import Slice, row_blocks

BATCH, TIME, CHANNELS = 32, 512, 1280
REPEATS, WARMUP = 20, 3
TIMED = ("e34", "e61", "e64", "e68", "mingru", "minlstm")
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}


def plan_of(step: str, channels: int) -> Plan:
    """Return a plan with the step's inputs in one source, keys normalised, y silu(y)."""
    inputs = CELLS[step].inputs
    unit = "key" if "key" in inputs else None
    places = row_blocks(dict.fromkeys(inputs, channels))
    query = Slice(0, len(inputs) * channels) if unit else None
    return Plan(step, tuple(places.items()), unit=unit, query=query, self_gate=True)


def leaves_of(plan: Plan, batch: int, time: int, channels: int, dtype: torch.dtype) -> list[Tensor]:
    """Return a source, the parameters and a first state, at random."""
    draw = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device="cuda")

    width = max(place.start for place in plan.slices()) + channels
    leaves = [normal(batch, time, width).to(dtype)]
    leaves += [0.5 * normal(channels) for _ in CELLS[plan.step].parameters]
    leaves.append(normal(batch, channels))
    return [leaf.requires_grad_() for leaf in leaves]


def run(plan: Plan, leaves: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    """Run a plan."""
    source, *parameters, first = leaves
    named = dict(zip(CELLS[plan.step].parameters, parameters, strict=True))
    return op.run(plan, [source], named, first, backend=backend)


def error_of(step: str, dtype: torch.dtype) -> float:
    """Return the largest relative L2 error of outputs and gradients against fp64."""
    plan = plan_of(step, 40)
    narrow = leaves_of(plan, 3, 37, 40, dtype)
    wide = [leaf.detach().double().requires_grad_() for leaf in narrow]
    results = []
    for leaves, backend in ((narrow, "cuda"), (wide, "reference")):
        outputs = run(plan, leaves, backend)
        pulls = [torch.linspace(-1, 1, out.numel(), device="cuda").to(dtype) for out in outputs]
        shaped = [p.reshape(o.shape).to(o.dtype) for p, o in zip(pulls, outputs, strict=True)]
        gradients = torch.autograd.grad(outputs, leaves, shaped)
        results.append([tensor.detach().double() for tensor in (*outputs, *gradients)])
    errors = [float((x - y).norm() / (y.norm() + 1e-30)) for x, y in zip(*results, strict=True)]
    return max(error if error == error else 9.0 for error in errors)


def median_us(call: Callable[[], Any]) -> float:
    """Return the median time of a call in microseconds, by events on the device."""
    for _ in range(WARMUP):
        call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * float(statistics.median(begin.elapsed_time(end) for begin, end in pairs))


def times_of(step: str, bytes_per_us: float) -> dict[str, Any]:
    """Time a step in bf16 beside its floors."""
    plan = plan_of(step, CHANNELS)
    leaves = leaves_of(plan, BATCH, TIME, CHANNELS, torch.bfloat16)
    dy = torch.randn(BATCH, TIME, CHANNELS, device="cuda").to(torch.bfloat16)
    forward = median_us(lambda: run(plan, leaves, "cuda"))
    both = median_us(lambda: torch.autograd.grad(run(plan, leaves, "cuda")[0], leaves, dy))
    numbers, inputs = BATCH * TIME * CHANNELS, len(plan.slices())
    kept = numbers * 4 / 8
    floors = ((inputs + 1) * numbers * 2 + kept, (2 * inputs + 1) * numbers * 2 + kept)
    ratios = (forward * bytes_per_us / floors[0], (both - forward) * bytes_per_us / floors[1])
    return {
        "forward_us": round(forward, 1),
        "backward_us": round(both - forward, 1),
        "forward_over_floor": round(ratios[0], 2),
        "backward_over_floor": round(ratios[1], 2),
    }


def main() -> None:
    """Compare and time; write ``gpu_channel.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    bytes_per_us = 2 * x.numel() / median_us(lambda: y.copy_(x))
    report: dict[str, Any] = {"copy_tb_s": round(bytes_per_us / 1e6, 3), "parity": {}, "times": {}}
    for step in CELLS:
        for dtype, limit in LIMITS.items():
            try:
                error = error_of(step, dtype)
                report["parity"][f"{step} {dtype}"] = {"error": error, "passed": error <= limit}
            except Exception as problem:
                report["parity"][f"{step} {dtype}"] = {"error": repr(problem), "passed": False}
    for step in TIMED:
        try:
            report["times"][step] = times_of(step, bytes_per_us)
        except Exception as problem:
            report["times"][step] = {"error": repr(problem)}
        print(step, report["times"][step], flush=True)
    wrong = {name: row for name, row in report["parity"].items() if not row["passed"]}
    print(f"parity: {len(report['parity'])} compared, wrong: {wrong}")
    (out / "gpu_channel.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
