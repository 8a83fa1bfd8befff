"""Checks residual add and RMSNorm on a GPU against fp64, and times it next to PyTorch's and FLA's.

    python tools/gpu/gpu_norm.py --out DIR

PyTorch's version is also timed compiled. The floor is the time to move the necessary bytes at the
bandwidth of a copy, measured in the same run. Times are GPU times only: replays of a CUDA graph of
several calls, of each candidate in turn. Needs the same packages as gpu_kernels.py;
flash-linear-attention is timed if it is installed. Exit status 1 if a result is wrong. Shape
legend: b batch, t time, d width.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.ops.add_norm import op, reference

BATCH, TIME, WIDTHS = 32, 512, (640, 768, 1536, 2432)
CALLS, ROUNDS = 20, 15
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LIMITS = {BF16: 4e-3, FP16: 5e-4, FP32: 3e-6}
# Dtypes of branch (None: there is none) and normed sum.
DTYPES = ((BF16, BF16), (FP16, FP16), (FP32, FP32), (FP32, BF16), (None, BF16))
BOTH = "sum and normed"
PARITY_WIDTHS = (1, 8, 33, 257, 640, 1536, 2432, 4096, 5000, 5001)
# Bytes of a number that forward, and forward with backward, have to move: stream and sum in fp32,
# branch and normed in bf16, and the same of their gradients beside the sum once more.
FLOORS = {"forward": 12, "both": 28}
Step = Callable[..., tuple[Tensor, Tensor]]


def ours(stream: Tensor, branch: Tensor | None, gain: Tensor, dtype: torch.dtype) -> Any:
    """Run the kernel."""
    return op.add_rms_norm(stream, branch, gain, dtype, backend="cuda")


def draw(
    rows: tuple[int, int], width: int, branch: torch.dtype | None, shift: int = 0
) -> list[Tensor]:
    """Return a stream, a branch and a gain at random, ``shift`` numbers away from a boundary."""
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int, dtype: torch.dtype) -> Tensor:
        size = int(torch.Size(shape).numel())
        flat = torch.randn(size + shift, generator=generator, device="cuda").to(dtype)
        return flat[shift:].view(shape).requires_grad_()

    leaves = [normal(*rows, width, dtype=FP32), normal(width, dtype=FP32)]
    return leaves if branch is None else [*leaves, normal(*rows, width, dtype=branch)]


def everything(step: Step, leaves: list[Tensor], dtype: torch.dtype, reached: str) -> list[Tensor]:
    """Return outputs and gradients; the outputs named in ``reached`` have one, the same to all."""
    stream, gain, *branch = leaves
    outputs = step(stream, branch[0] if branch else None, gain, dtype)
    # A quarter is exact in every dtype.
    pull = torch.arange(stream.numel(), device="cuda").mul(7).remainder(23).sub(11).div(4)
    chosen = [out for out, name in zip(outputs, ("sum", "normed"), strict=True) if name in reached]
    pulls = [pull.view(out.shape).to(out.dtype) for out in chosen]
    gradients = torch.autograd.grad(chosen, leaves, pulls)
    return [tensor.detach() for tensor in (*outputs, *gradients)]


def errors_of(
    width: int, branch: torch.dtype | None, dtype: torch.dtype, reached: str, shift: int
) -> dict[str, Any]:
    """Compare everything with fp64, and with itself: again, replayed, on a side stream."""
    leaves = draw((3, 67), width, branch, shift)
    found = everything(ours, leaves, dtype, reached)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = everything(reference.add_rms_norm, wide, torch.float64, reached)
    error = max(
        float((x.double() - y).norm() / (y.norm() + 1e-30)) / LIMITS[x.dtype]
        for x, y in zip(found, exact, strict=True)
    )
    run = partial(everything, ours, leaves, dtype, reached)
    graph, replayed = captured(run, 1)
    graph.replay()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        beside = run()
    torch.cuda.synchronize()
    same = all(
        torch.equal(x, y)
        for other in (run(), replayed, beside)
        for x, y in zip(found, other, strict=True)
    )
    return {"error_over_limit": round(error, 3), "same_bits": same, "passed": error <= 1 and same}


def compiled_error(width: int) -> dict[str, Any]:
    """Compare what torch.compile makes of the operator, in one graph, with the operator."""
    leaves = draw((3, 67), width, BF16)
    step = torch.compile(ours, fullgraph=True)
    pairs = zip(
        everything(step, leaves, BF16, BOTH), everything(ours, leaves, BF16, BOTH), strict=True
    )
    same = all(torch.equal(x, y) for x, y in pairs)
    return {"same_bits": same, "passed": same}


def parity() -> dict[str, Any]:
    """Compare in every width and dtype."""
    rows: dict[str, Any] = {}
    cases = [(w, b, d, BOTH, 0) for w in PARITY_WIDTHS for b, d in DTYPES]
    cases += [(w, BF16, BF16, "normed", s) for w in (257, 1536, 5000) for s in (0, 1)]
    for case in cases:
        try:
            rows[" ".join(map(str, case))] = errors_of(*case)
        except Exception as problem:
            rows[" ".join(map(str, case))] = {"error": repr(problem), "passed": False}
    for width in (640, 1536):
        try:
            rows[f"{width} compiled"] = compiled_error(width)
        except Exception as problem:
            rows[f"{width} compiled"] = {"error": repr(problem), "passed": False}
    return rows


# ---- times


def captured(call: Callable[[], Any], calls: int) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a graph of calls and what its last one returns."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            result = call()
    return graph, result


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Return the time of one call of a replayed graph in microseconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end)) / CALLS


def candidates() -> dict[str, Step]:
    """Return what is timed, by name."""
    found: dict[str, Step] = {
        "kernel": ours,
        "eager": reference.add_rms_norm,
        "compiled": torch.compile(reference.add_rms_norm),
    }
    if find_spec("fla") is not None:
        rms_norm = import_module("fla.modules.layernorm").rms_norm

        def fla(stream: Tensor, branch: Tensor, gain: Tensor, dtype: torch.dtype) -> Any:
            options = {"prenorm": True, "residual_in_fp32": True, "eps": reference.EPS}
            normed, total = rms_norm(branch, gain, None, residual=stream, **options)
            return total, normed

        found["fla"] = fla
    return found


def graphs_of(width: int) -> dict[tuple[str, str], Any]:
    """Return a graph for every candidate and pass, or the problem that it has."""
    stream, gain, branch = leaves = draw((BATCH, TIME), width, BF16)
    pulls = [torch.randn(stream.shape, device="cuda").to(dtype) for dtype in (FP32, BF16)]

    def forward(step: Step) -> Any:
        with torch.no_grad():
            return step(stream, branch, gain, BF16)

    def both(step: Step) -> Any:
        return torch.autograd.grad(step(stream, branch, gain, BF16), leaves, pulls)

    graphs: dict[tuple[str, str], Any] = {}
    for name, step in candidates().items():
        for what, call in (("forward", forward), ("both", both)):
            try:
                graphs[name, what] = captured(partial(call, step), CALLS)[0]
            except Exception as problem:
                graphs[name, what] = repr(problem)
    return graphs


def times_of(width: int, bytes_per_us: float) -> dict[str, Any]:
    """Time every candidate at a width, one after the other in every round."""
    graphs = graphs_of(width)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in graphs}
    for _ in range(ROUNDS):
        for key, graph in graphs.items():
            if isinstance(graph, torch.cuda.CUDAGraph):
                times[key].append(replay_us(graph))
    rows: dict[str, Any] = {}
    for (name, what), found in times.items():
        row = rows.setdefault(name, {})
        if not found:
            row["error"] = graphs[name, what]
            continue
        moved = FLOORS[what] * BATCH * TIME * width
        us = statistics.median(found)
        row[f"{what}_us"] = round(us, 1)
        row[f"{what}_gb_s"] = round(moved / us / 1e3)
        row[f"{what}_over_floor"] = round(us * bytes_per_us / moved, 2)
    return rows


def copy_bytes_per_us() -> float:
    """Return the bandwidth of a copy."""
    x = torch.ones(2**28, device="cuda")
    y = torch.empty_like(x)
    # By a kernel: a graph gives a plain copy to the copy engines, which are slower.
    graph, _ = captured(lambda: torch.neg(x, out=y), CALLS)
    return 8 * x.numel() / statistics.median(replay_us(graph) for _ in range(5))


def main() -> int:
    """Compare and time; write ``gpu_norm.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    bytes_per_us = copy_bytes_per_us()
    report: dict[str, Any] = {"copy_tb_s": round(bytes_per_us / 1e6, 3), "parity": parity()}
    wrong = {name: row for name, row in report["parity"].items() if not row["passed"]}
    print(f"parity: {len(report['parity'])} compared, wrong: {wrong}", flush=True)
    report["times"] = {}
    for width in WIDTHS:
        report["times"][str(width)] = times_of(width, bytes_per_us)
        for name, row in report["times"][str(width)].items():
            print(f"{width:5} {name:9} {row}", flush=True)
        (out / "gpu_norm.json").write_text(json.dumps(report, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
