"""PyTorch's attention kernels beside each other: which one runs, numbers, bits, and times.

    python tools/gpu/run.py attention [kernels] [steps] [rounds=5]

``kernels`` has forward and backward of the attention of ``model=llama`` at 32 rows of 512 in bf16:
what PyTorch chooses by itself, then each of its kernels by name. Output and gradients are compared
with fp64, and repeated and replayed to the bit. ``steps`` times training steps of ``llama`` with
each of them, replayed in turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from elman.config.compose import compose_config
from elman.ops import attention
from tools.gpu.instruments import equal, furthest, interleaved, recorded, replayed
from tools.gpu.job import Check, Job, Row
from tools.gpu.peer_speed import WARMUP, Training, built
from tools.gpu.peers import kernels_of

CHOSEN = "as PyTorch chooses"
KERNELS = {
    CHOSEN: None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
ROWS, STEPS, CALLS = 32, 512, 8


@contextmanager
def only(kernel: SDPBackend | None) -> Iterator[None]:
    """Let attention run on one kernel."""
    if kernel is None:
        yield
        return
    with sdpa_kernel([kernel]), mock.patch.object(attention, "_WITHOUT_PLANS", [kernel]):
        yield


def draw(rows: int) -> list[Tensor]:
    """Return queries, keys and values as the layer has them, [b, t, h, c]."""
    model = compose_config(["model=llama"]).model
    channels = model.options["head_dim"]
    assert isinstance(channels, int)
    torch.manual_seed(0)
    shape = (rows, STEPS, model.dim // channels, channels)
    leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    return [one.requires_grad_() for one in leaves]


def everything(leaves: list[Tensor]) -> list[Tensor]:
    """Return the output and the three gradients."""
    q, k, v = (one.transpose(1, 2) for one in leaves)
    y_bhtc = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    pull = torch.linspace(-1, 1, y_bhtc.numel(), device="cuda").view_as(y_bhtc).to(y_bhtc.dtype)
    return [y_bhtc.detach(), *torch.autograd.grad(y_bhtc, leaves, pull)]


def kernels(job: Job) -> None:
    """Compare and time the kernels alone."""
    exact = everything([one.detach().double().requires_grad_() for one in draw(4)])
    calls: dict[str, Any] = {}
    for name, kernel in KERNELS.items():
        row = job.attempt({"kernel": name}, partial(one_kernel, kernel, exact))
        if "error" in row:
            continue
        with only(kernel):
            calls[name] = recorded(partial(everything, draw(ROWS)), calls=CALLS)[0].replay
    for name, rounds in interleaved(calls, job.settings["rounds"], warmup=1).items():
        us = 1e6 * statistics.median(rounds) / CALLS
        job.report({"kernel": name, "forward_and_backward_us": round(us, 1)})


def one_kernel(kernel: SDPBackend | None, exact: list[Tensor]) -> Row:
    """Return a kernel's errors, whether it repeats its bits, and what it runs on the GPU."""
    leaves = draw(4)
    with only(kernel):
        found = everything(leaves)
        run = partial(everything, leaves)
        same = equal(found, run()) and equal(found, replayed(run))
        ran = kernels_of(run)
    error = furthest(found, exact)
    seen = [name for group in ran.values() for name in group if name != "all"]
    return {"from_fp64": error, "same_bits": same, "passed": error < 2e-2, "ran": seen}


def steps(job: Job) -> None:
    """Time training steps of llama."""
    job.measure({"model": "llama"}, partial(all_steps, job))


def all_steps(job: Job) -> Row:
    """Return tokens per second with each kernel."""
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    training = Training(built("llama"), ROWS, STEPS)
    training.tune()
    graphs = {}
    for name, kernel in KERNELS.items():
        with only(kernel):
            graphs[name] = recorded(training.step, warmup=WARMUP, stream=stream)[0]
    replays = {name: graph.replay for name, graph in graphs.items()}
    timed = interleaved(replays, job.settings["rounds"], warmup=1, repeats=4)
    return {
        name: round(training.predicted / statistics.median(rounds))
        for name, rounds in timed.items()
    }


CHECK = Check({"kernels": kernels, "steps": steps}, settings={"rounds": 5})
