"""Residual add and RMSNorm against fp64 and to the bit; times beside PyTorch's and FLA's.

parity   widths from 1 to 5001, every dtype, with and without a branch, on and off a boundary of 16
         bytes, against fp64; a repeat, a replayed CUDA graph, a side stream and torch.compile to
         the bit
time     replays of a CUDA graph of several calls, of each candidate in turn; PyTorch's version is
         timed compiled, too, and flash-linear-attention if it is installed. The floor is the time
         to move the necessary bytes at the bandwidth of a copy.

    python tools/gpu/run.py norm [parity] [time]

Shape legend: b batch, t time, d width.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from elman.ops.add_norm import op, reference
from tools.gpu.instruments import (
    copy_bytes_per_us,
    equal,
    furthest,
    interleaved,
    on_side_stream,
    recorded,
    replayed,
)
from tools.gpu.job import Check, Job, Row

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
) -> Row:
    """Compare everything with fp64, and with itself: again, replayed, on a side stream."""
    leaves = draw((3, 67), width, branch, shift)
    found = everything(ours, leaves, dtype, reached)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = everything(reference.add_rms_norm, wide, torch.float64, reached)
    error = max(
        furthest([one], [right]) / LIMITS[one.dtype]
        for one, right in zip(found, exact, strict=True)
    )
    run = partial(everything, ours, leaves, dtype, reached)
    # Without a branch, the sum is the stream itself: nothing is wiped.
    others = (run(), replayed(run, wipe=False), on_side_stream(run))
    same = all(equal(found, other) for other in others)
    return {"error_over_limit": round(error, 3), "same_bits": same, "passed": error <= 1 and same}


def compiled_error(width: int) -> Row:
    """Compare what torch.compile makes of the operator, in one graph, with the operator."""
    leaves = draw((3, 67), width, BF16)
    step = torch.compile(ours, fullgraph=True)
    same = equal(everything(step, leaves, BF16, BOTH), everything(ours, leaves, BF16, BOTH))
    return {"same_bits": same, "passed": same}


def parity(job: Job) -> None:
    """Compare in every width and dtype."""
    cases = [(w, b, d, BOTH, 0) for w in PARITY_WIDTHS for b, d in DTYPES]
    cases += [(w, BF16, BF16, "normed", s) for w in (257, 1536, 5000) for s in (0, 1)]
    for case in cases:
        job.attempt({"case": " ".join(map(str, case))}, partial(errors_of, *case))
    for width in (640, 1536):
        job.attempt({"case": f"{width} compiled"}, partial(compiled_error, width))


# ---- times


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


def graphs_of(job: Job, width: int) -> dict[tuple[str, str], torch.cuda.CUDAGraph]:
    """Return a graph for every candidate and pass; the problem that one has is reported."""
    stream, gain, branch = leaves = draw((BATCH, TIME), width, BF16)
    pulls = [torch.randn(stream.shape, device="cuda").to(dtype) for dtype in (FP32, BF16)]

    def forward(step: Step) -> Any:
        with torch.no_grad():
            return step(stream, branch, gain, BF16)

    def both(step: Step) -> Any:
        return torch.autograd.grad(step(stream, branch, gain, BF16), leaves, pulls)

    graphs: dict[tuple[str, str], torch.cuda.CUDAGraph] = {}
    for name, step in candidates().items():
        for what, call in (("forward", forward), ("both", both)):
            row = {"width": width, "candidate": name, "pass": what}
            record = partial(recorded, partial(call, step), calls=CALLS, warmup=3)
            if (made := job.made(row, record)) is not None:
                graphs[name, what] = made[0]
    return graphs


def time(job: Job) -> None:
    """Time every candidate at every width, one after the other in every round."""
    bytes_per_us = copy_bytes_per_us()
    job.report({"what": "copy", "tb_s": round(bytes_per_us / 1e6, 3)})
    for width in WIDTHS:
        calls = {key: graph.replay for key, graph in graphs_of(job, width).items()}
        for (name, what), rounds in interleaved(calls, ROUNDS).items():
            moved = FLOORS[what] * BATCH * TIME * width
            us = 1e6 * statistics.median(rounds) / CALLS
            row = {"width": width, "candidate": name, "pass": what, "us": round(us, 1)}
            row |= {"gb_s": round(moved / us / 1e3)}
            job.report(row | {"over_floor": round(us * bytes_per_us / moved, 2)})


CHECK = Check({"parity": parity, "time": time})
