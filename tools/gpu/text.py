"""Text by one kernel for whole steps: the eager loop's bits, and where the time of a step goes.

    python tools/gpu/run.py text [check] [alone] [loop] [--only e88f_h32n16] [texts=1,2,4]
        [shapes=12.2.1,12.2.0] [steps=256] [rounds=5]

``check`` compares text and states with the eager loop's to the bit, in every shape. ``alone`` times
launches of the kernel in every shape, by CUDA events. ``loop`` times the loop of ``mode=generate``,
by the kernel and by a graph in turns: ``us`` is a step's share of the wall time, ``kernel_us`` of
the launches, and ``between_us`` is how long the GPU waits from one launch to the next. Before a
time is taken the GPU works for a second, since its clock rises with its work. A shape is warps of a
block, slots of weights, and 1 where the copy engine brings weights.

Shape legend: k steps, b texts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.evaluation.generation import Writer
from elman.evaluation.sampling import Sampling
from elman.layers import E88
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.models.text_step import text_kernel
from elman.ops.decode import step
from elman.ops.decode.step import TextKernel
from tools.gpu.job import Check, Job, Row

SMALL: dict[str, dict[str, Any]] = {
    "small": {},
    "gate and convolution": {"use_gate": True, "use_conv": True},
    "heads of 32": {"n_state": 32, "n_heads": 8},
    "heads of 64": {"n_state": 64, "n_heads": 4},
    "write gate": {"use_write_gate": True, "use_self_gate": True},
    "mlp": {"mlp": 512},
}
"""Options of E88 in models of 256 by 4."""
NAMED = ("e88f_h32n16", "mega_100m/e88f_h32n16_2432x20")
SAMPLING = Sampling(0.8, 40, 1.0)
Shape = tuple[int, ...]


def model_of(name: str) -> LanguageModel:
    """Return a model whose text is not of one byte."""
    torch.manual_seed(1)
    if name in SMALL:
        options = {"n_heads": 8, "n_state": 16} | SMALL[name]
        hidden = options.pop("mlp", 0)
        layers = [E88(256, device="cuda", **options) for _ in range(4)]
        model = LanguageModel(256, layers, mlp_widths=[hidden] * 4, device="cuda").eval()
    else:
        config = compose_config([f"model={name}"]).model
        model = build_model(config, backend="auto", device="cuda").eval()
    with torch.no_grad():
        model.embedding.mul_(8)
        for layer in model.layers:
            layer.get_parameter("out_proj").mul_(3)
    return model


def numbers(words: str, mark: str = ",") -> tuple[int, ...]:
    """Return the numbers of a setting."""
    return tuple(map(int, words.split(mark)))


def shapes(job: Job) -> list[Shape]:
    """Return the shapes that are requested."""
    return [numbers(word, ".") for word in job.settings["shapes"].split(",")]


@contextmanager
def shaped(shape: Shape | None) -> Iterator[None]:
    """Let kernels have a shape; None: the one that is chosen."""
    names = ("SHAPES", "SEVERAL_SHAPES", "BULK_SINCE")
    before = {name: getattr(step, name) for name in names}
    if shape is not None:
        *sizes, bulk = shape
        step.SHAPES = step.SEVERAL_SHAPES = (tuple(sizes),)  # type: ignore[assignment]
        step.BULK_SINCE = before["BULK_SINCE"] if bulk else 1000
    try:
        yield
    finally:
        for name, one in before.items():
            setattr(step, name, one)


def writer_of(model: LanguageModel, texts: int, **how: Any) -> Writer:
    """Return a writer that has read a prompt for each text."""
    writer = Writer(model, SAMPLING, seed=7, bf16=True, kernels=True, **how)
    writer.read([bytes([65 + number % 60, 66]) for number in range(texts)])
    return writer


def text_of(writer: Writer, count: int) -> list[bytes]:
    """Let a writer write."""
    return [b"".join(row) for row in zip(*writer.write(count), strict=True)]


# ---- to the bit


def check(job: Job) -> None:
    """Compare every model, number of texts and shape."""
    for name in job.chosen((*SMALL, *NAMED)):
        model = job.made({"model": name}, partial(model_of, name))
        if model is None:
            continue
        for texts in numbers(job.settings["texts"]):
            eager = writer_of(model, texts, graph=False)
            expected = text_of(eager, 300 if name in SMALL else 150)
            for shape in [None, *shapes(job)]:
                row = {"model": name, "texts": texts, "shape": shape}
                job.attempt(row, partial(compare, model, texts, shape, eager, expected))


def compare(
    model: LanguageModel, texts: int, shape: Shape | None, eager: Writer, expected: list[bytes]
) -> Row:
    """Compare a kernel with what an eager writer has written."""
    with shaped(shape):
        writer = writer_of(model, texts, graph=None, fused=True)
        try:
            found = text_of(writer, len(expected[0]))
        except UserError as error:
            return {"none": str(error)}
    states, others = (one.state()[0][0].states for one in (writer, eager))
    assert states is not None
    assert others is not None
    same = all(
        torch.equal(ours[part], theirs[part])
        for ours, theirs in zip(states, others, strict=True)
        for part in theirs
    )
    return {
        "text": found == expected,
        "states": same,
        "kinds_of_bytes": len(set(expected[0])),
        "passed": found == expected and same,
    }


# ---- times


def warm() -> None:
    """Let the GPU work for a second."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    began = time.perf_counter()
    while time.perf_counter() - began < 1:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize()


def warmed(job: Job) -> Iterator[tuple[str, LanguageModel, int]]:
    """Yield each chosen model with its name and each number of texts, after the GPU has worked."""
    for name in job.chosen(NAMED):
        model = job.made({"model": name}, partial(model_of, name))
        if model is None:
            continue
        for texts in numbers(job.settings["texts"]):
            warm()
            yield name, model, texts


def alone(job: Job) -> None:
    """Time launches of the kernel."""
    for name, model, texts in warmed(job):
        for shape in [None, *shapes(job)]:
            row = {"model": name, "texts": texts, "shape": shape}
            job.measure(row, partial(kernel_times, job, model, texts, shape))


@torch.no_grad()
def kernel_times(job: Job, model: LanguageModel, texts: int, shape: Shape | None) -> Row:
    """Return microseconds of a step."""
    with shaped(shape):
        writer = writer_of(model, texts)
        text_of(writer, 2)
        states = writer.state()[0][0].states
        assert states is not None
        with writer._autocast(), writer._weights.read():
            kernel = text_kernel(model, states, writer._weights.copy_of)
    if isinstance(kernel, str):
        return {"none": kernel}
    steps = job.settings["steps"]
    uniform_kb = torch.rand(steps, texts, device="cuda")
    last_b = torch.full((texts,), 65, device="cuda")
    drawn_kb = torch.zeros(steps, texts, dtype=torch.long, device="cuda")
    launches: list[float] = []
    for _ in range(1 + job.settings["rounds"]):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        kernel.write(uniform_kb, last_b, drawn_kb, **asdict(SAMPLING))
        end.record()
        torch.cuda.synchronize()
        launches.append(1e3 * begin.elapsed_time(end) / steps)
    found = kernel.config
    return {
        "us": round(statistics.median(launches[1:]), 1),
        "range": [round(min(launches[1:]), 1), round(max(launches[1:]), 1)],
        "chosen": [found.warps, found.slots, found.bulk],
        "shared": found.shared_bytes,
    }


class Launches:
    """What the GPU and the host did for the launches of a loop, by events and by the clock."""

    def __init__(self) -> None:
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.steps: list[int] = []
        self.host: list[float] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note every launch."""
        write = TextKernel.write

        def noted(kernel: TextKernel, uniform_kb: Tensor, *rest: Tensor, **how: Any) -> None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began = time.perf_counter()
            begin.record()
            write(kernel, uniform_kb, *rest, **how)
            end.record()
            self.events.append((begin, end))
            self.steps.append(len(uniform_kb))
            self.host.append(time.perf_counter() - began)

        TextKernel.write = noted  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            TextKernel.write = write  # type: ignore[method-assign]

    def row(self) -> Row:
        """Return the medians of the launches behind the first."""
        if len(self.events) < 3:
            return {}
        torch.cuda.synchronize()
        kernel = [
            1e3 * begin.elapsed_time(end) / steps
            for (begin, end), steps in zip(self.events, self.steps, strict=True)
        ]
        between = [
            1e3 * one[1].elapsed_time(other[0])
            for one, other in zip(self.events[1:], self.events[2:], strict=False)
        ]
        return {
            "kernel_us": round(statistics.median(kernel[1:]), 1),
            "between_us": round(statistics.median(between), 1),
            "host_us_of_a_launch": round(1e6 * statistics.median(self.host[1:])),
        }


def loop(job: Job) -> None:
    """Time the loop of ``mode=generate``, by the kernel and by a graph in turns."""
    for name, model, texts in warmed(job):
        for turn in range(2):
            for fused in (True, False):
                row = {"model": name, "texts": texts, "kernel": fused, "turn": turn}
                job.measure(row, partial(loop_times, job, model, texts, fused))


def loop_times(job: Job, model: LanguageModel, texts: int, fused: bool) -> Row:
    """Return microseconds of a step, the median of pieces behind the first."""
    launches = Launches()
    writer = writer_of(model, texts, graph=None, fused=fused)
    marks, total = [], 0
    with launches.watched():
        for piece in writer.write(2 + (3 + job.settings["rounds"]) * job.settings["steps"]):
            total += len(piece[0])
            marks.append((time.perf_counter(), total))
    marks = marks[2:]  # behind eager steps, and what is compiled or recorded
    us = [1e6 * (b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(marks)]
    mid = statistics.median(us)
    return {"us": round(mid, 1), "bytes_s": round(1e6 * texts / mid), **launches.row()}


CHECK = Check(
    {"check": check, "alone": alone, "loop": loop},
    names=lambda: (*SMALL, *NAMED),
    settings={"texts": "1,2,4", "shapes": "12.2.1,12.2.0", "steps": 256, "rounds": 5},
)
