"""The causal convolution's kernels against fp64, to the bit, and their times over their bytes'.

    python tools/gpu/run.py convolution [check] [time] [--only fla-gdn] [rounds=7] [vector=4]
        [blocks=3]

``check`` compares output and gradients with the same sums in fp64, in every dtype, and repeats and
replays them to the bit. ``time`` replays both passes at the sizes of models, 32 rows of 512. The
floor is the time that a copy takes to move what a pass reads and writes. ``vector`` is the channels
of a thread, ``blocks`` how many blocks of the backward pass a multiprocessor is to hold.

Shape legend: b batch, t time, c channels, k taps.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.ops.causal_conv import cuda, op
from elman.ops.causal_conv.inputs import Inputs
from elman.ops.causal_conv.op import Layout
from tools.gpu.instruments import (
    copy_bytes_per_us,
    equal,
    furthest,
    interleaved,
    recorded,
    replayed,
)
from tools.gpu.job import Check, Job, Row

MODELS = {
    "fla-gdn": (768, 768, 1536),
    "kda": (1024, 1024, 1024),
    "mamba2": (1792, 128, 128),
    "slstm": (1152,),
    "odd": (37,),
}
"""By model: channels of each part of the output."""
TAPS, CALLS = 4, 8
DTYPES = {torch.bfloat16: 6e-3, torch.float16: 8e-4, torch.float32: 3e-6}
"""Dtypes, each with the largest relative error."""


def draw(batch: int, steps: int, parts: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Return an input, taps and a bias."""
    torch.manual_seed(0)
    channels = sum(parts)
    shapes = (((batch, steps, channels), dtype), ((channels, TAPS), torch.float32))
    leaves = [torch.randn(shape, device="cuda", dtype=to) for shape, to in shapes]
    return [one.requires_grad_() for one in (*leaves, torch.randn(channels, device="cuda"))]


def everything(leaves: Sequence[Tensor], parts: Sequence[int], backend: str) -> list[Tensor]:
    """Return outputs and all gradients."""
    layout, (x_btc, weight_ck, bias_c) = Layout((), tuple(parts), ()), leaves
    outputs, _ = op.split_conv(x_btc, weight_ck, bias_c, None, layout, silu=True, backend=backend)
    pulls = [torch.linspace(-1, 1, one.numel(), device="cuda").view_as(one) for one in outputs]
    pulls = [pull.to(one.dtype) for pull, one in zip(pulls, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, leaves, pulls)
    return [one.detach() for one in (*outputs, *gradients)]


def check(job: Job) -> None:
    """Compare every size in every dtype."""
    settle(job)
    for name in job.chosen(MODELS):
        for dtype, limit in DTYPES.items():
            row = {"model": name, "dtype": str(dtype).removeprefix("torch.")}
            job.attempt(row, partial(errors, MODELS[name], dtype, limit))


def errors(parts: Sequence[int], dtype: torch.dtype, limit: float) -> Row:
    """Compare with fp64, and with itself: again and replayed."""
    leaves = draw(3, 261, parts, dtype)
    found = everything(leaves, parts, "cuda")
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    error = furthest(found, everything(wide, parts, "reference"))
    run = partial(everything, leaves, parts, "cuda")
    same = equal(found, run()) and equal(found, replayed(run))
    return {"error": error, "same_bits": same, "passed": error <= limit and same}


def times(job: Job) -> None:
    """Time both passes at the sizes of models."""
    settle(job)
    for name in job.chosen(MODELS):
        job.measure({"model": name}, partial(one_model, job, MODELS[name]))


def one_model(job: Job, parts: Sequence[int]) -> Row:
    """Return microseconds of both passes, and how many times as long as their bytes they take."""
    x_btc, weight_ck, bias_c = (one.detach() for one in draw(32, 512, parts, torch.bfloat16))
    inputs = Inputs(x_btc, weight_ck, bias_c, None, None, True)
    y, dy = ([torch.randn_like(x_btc[..., :part]).contiguous() for part in parts] for _ in range(2))
    dx_btc = torch.empty_like(x_btc)
    calls: dict[str, Any] = {
        "forward": partial(cuda.forward, inputs, y),
        "backward": partial(cuda.backward, inputs, dy, dx_btc, None),
    }
    graphs = {name: recorded(call, calls=CALLS)[0] for name, call in calls.items()}
    replays = {name: graph.replay for name, graph in graphs.items()}
    floors = {"forward": 2 * x_btc.nbytes, "backward": 3 * x_btc.nbytes}
    row: Row = {}
    for name, rounds in interleaved(replays, job.settings["rounds"], warmup=1).items():
        us = 1e6 * statistics.median(rounds) / CALLS
        over = us * copy_bytes_per_us() / floors[name]
        row |= {f"{name}_us": round(us, 1), f"{name}_over_bytes": round(over, 2)}
    return row


def settle(job: Job) -> None:
    """Let kernels be built as the settings say."""
    cuda._VECTOR = job.settings["vector"]
    cuda._BACKWARD_BLOCKS = job.settings["blocks"]


CHECK = Check(
    {"check": check, "time": times},
    names=lambda: MODELS,
    settings={"rounds": 7, "vector": cuda._VECTOR, "blocks": cuda._BACKWARD_BLOCKS},
)
