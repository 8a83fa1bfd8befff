"""Times every form of the dense engine's kernels, and a training step of a model.

Shape legend: b batch, t time, i channels of the state, s parts of the state.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.ops.common.products import multiply
from elman.ops.dense.cuda import forms, kernels
from elman.ops.dense.passes import Call, save
from elman.ops.dense.products import gradients
from tools.gpu.dense_calls import (
    REASONS,
    leaves_of,
    matrix_shape,
    only,
    shape_of,
)
from tools.gpu.instruments import interleaved, recorded, seconds, spread
from tools.gpu.job import Job

BATCH, TIME = 32, 512
# Timed, too.
MORE_SIZES = (("gru", 512), ("gru", 768), ("gru_reset_after", 768), ("normalized_scalar", 1280))
SIZES = {"tanh": (512, 768, 1024, 1280, 1536, 2048, 3072, 3584), "lstm": (768, 1024, 1536)}
SIZES |= {"slstm": (816, 1152)}
ROUNDS, WARMUP = 7, 2

Timed = tuple[str, int, str, str]
"""Step, channels, form and pass."""


def times(job: Job, names: list[str], sizes: list[tuple[str, int]]) -> None:
    """Time the recurrence of steps in every size and form, and their products alone."""
    graphs: dict[Timed, tuple[torch.cuda.CUDAGraph, Any]] = {}
    for step, width in sizes:
        for name in ("products", *names):
            row = {"what": "recording", "step": step, "d": width, "form": name}
            make = partial(passes, name, step, width, job.report)
            if name == "products":
                make = partial(products_alone, step, width)
            made = job.made(row, make) or {}
            graphs |= {(step, width, name, direction): one for direction, one in made.items()}
    time_all(job, {key: graph.replay for key, (graph, _) in graphs.items()})


def time_all(job: Job, calls: dict[Timed, Callable[[], Any]]) -> None:
    """Time calls in turn, and report each."""
    for key, rounds in interleaved(calls, ROUNDS, warmup=WARMUP).items():
        row = dict(zip(("step", "d", "form", "pass"), key, strict=True))
        job.report(row | spread(rounds, TIME))


def passes(
    form: str, step: str, width: int, report: Callable[[dict[str, Any]], None]
) -> dict[str, tuple[torch.cuda.CUDAGraph, Any]]:
    """Return the passes of a form as graphs; "backward" has the large products, too."""
    shape = shape_of(step, torch.bfloat16, BATCH, width, 0, "cuda")
    row = {"step": step, "d": width, "form": form}
    if against := REASONS[form](shape):
        report({"what": "recording", **row, "not run": against})
        return {}
    leaves = leaves_of(step, (BATCH, TIME, width, 0), torch.bfloat16, "cuda")
    x, matrix, *first = (leaf.detach() for leaf in leaves.values())
    first_sbi = torch.stack(first)
    dx, dy = torch.randn_like(x), torch.randn_like(x[..., :width])
    call = Call(step, "cuda", True, [x], [matrix], [], first_sbi, None)

    def forwards() -> Any:
        return kernels.forward(call)

    with only(form):
        saved = save(call, forwards())._replace(dy_bti=dy)
        forward = recorded(forwards)
        backward = recorded(lambda: kernels.backward(saved))
        eager = min(seconds(forwards) for _ in range(2))
    why = forms.choose(shape).why
    us = round(eager * 1e6 / TIME, 2)
    report({"what": "eager", **row, "forward_us_a_step": us, "why": why})
    narrow = saved._replace(recurrent=[matrix.to(dx.dtype)])
    large = recorded(lambda: gradients(narrow, [dx], dx[:0], first_sbi))
    return {"forward": forward, "backward": backward, "large products of backward": large}


def more_times(job: Job, names: list[str], steps: list[str]) -> None:
    """Time steps of two products or a norm in every form, and cuDNN's GRU, all in turn."""
    calls: dict[Timed, Callable[[], Any]] = {}
    for step, width in (one for one in MORE_SIZES if one[0] in steps):
        made: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {
            form: partial(passes_of, form, step, width) for form in names
        }
        if step == "gru_reset_after":  # that of PyTorch and cuDNN
            for dtype in (torch.float16, torch.bfloat16):
                made[f"cuDNN, {dtype}"] = partial(cudnn_gru, width, dtype)
        for form, make in made.items():
            row = {"what": "recording", "step": step, "d": width, "form": form}
            found = job.made(row, make) or {}
            calls |= {(step, width, form, way): call for way, call in found.items()}
    time_all(job, calls)


def passes_of(form: str, step: str, width: int) -> dict[str, Callable[[], Any]]:
    """Return what replays both passes of a step in a form; nothing where it does not run."""
    if forms.REASONS[form](shape_of(step, torch.bfloat16, BATCH, width, 0, "cuda")):
        return {}
    leaves = leaves_of(step, (BATCH, TIME, width, 0), torch.bfloat16, "cuda")
    tensors = {name: leaf.detach() for name, leaf in leaves.items()}

    def of(*words: str) -> list[Tensor]:
        return [one for name, one in tensors.items() if name.split()[0] in words]

    inputs, rest = of("input"), (of("matrix"), of("scale", "extra"), torch.stack(of("state")))
    dy = torch.randn_like(inputs[0][..., :width])
    call = Call(step, "cuda", True, inputs, *rest, None)
    with only(form):
        saved = save(call, kernels.forward(call))._replace(dy_bti=dy)
        forward, kept = recorded(lambda: kernels.forward(call))
        back, kept_too = recorded(lambda: kernels.backward(saved))
    held = (kept, kept_too)  # for as long as anybody replays

    def replay(graph: torch.cuda.CUDAGraph, _: Any = held) -> None:
        graph.replay()

    return {"forward": partial(replay, forward), "backward": partial(replay, back)}


def cudnn_gru(width: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Return what runs both passes of cuDNN's GRU; the products around the recurrence are in it."""
    gru = torch.nn.GRU(width, width, batch_first=True, device="cuda", dtype=dtype)
    x = torch.randn(BATCH, TIME, width, device="cuda", dtype=dtype).requires_grad_()
    y, _ = gru(x)
    dy, read = torch.randn_like(y), [x, *gru.parameters()]
    return {
        "forward": lambda: gru(x),
        "backward": lambda: torch.autograd.grad(y, read, dy, retain_graph=True),
    }


def products_alone(step: str, width: int) -> dict[str, tuple[torch.cuda.CUDAGraph, Any]]:
    """Return the products of both passes as graphs: no form of steps can be faster."""
    matrix = torch.randn(matrix_shape(step, width), device="cuda").bfloat16() / width**0.5

    def repeat(left: Tensor, right: Tensor, to: Tensor) -> None:
        for _ in range(TIME):
            multiply(left, right, to)

    def product(right: Tensor) -> tuple[torch.cuda.CUDAGraph, Any]:
        *heads, channels, rows = right.shape
        left = torch.randn(*heads, BATCH, channels, device="cuda").bfloat16()
        to = torch.empty(*heads, BATCH, rows, device="cuda")
        made: tuple[torch.cuda.CUDAGraph, Any] = recorded(partial(repeat, left, right, to))
        return made

    return {"forward": product(matrix.mT), "backward": product(matrix)}


def model() -> dict[str, Any]:
    """Time a training step of E1 1280x6, replayed as a graph."""
    from elman.models.cells.dense.e1_layer import E1
    from elman.models.language_model import LanguageModel

    torch.manual_seed(0)
    layers = [E1(1280, backend="cuda", device="cuda") for _ in range(6)]
    net = LanguageModel(1280, layers, device="cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True, capturable=True)
    tokens = torch.randint(256, (BATCH, TIME + 1), device="cuda", dtype=torch.uint8)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = net.loss(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    torch.cuda.reset_peak_memory_stats()
    losses = [float(step()) for _ in range(2)]
    peak = torch.cuda.max_memory_allocated()
    eager = min(seconds(step) for _ in range(2))
    graph, loss = recorded(step)
    taken = statistics.median(seconds(graph.replay) for _ in range(ROUNDS))
    losses.append(float(loss))
    return {
        "eager_tok_s": round(BATCH * TIME / eager),
        "replayed_tok_s": round(BATCH * TIME / taken),
        "replayed_ms": round(taken * 1e3, 2),
        "peak_gb": round(peak / 1e9, 2),
        "losses": [round(one, 3) for one in losses],
        "passed": all(one == one for one in losses),
    }
