"""The channel engine's kernels against fp64, and their times beside their floors.

parity   outputs and gradients of every step, in bf16 and fp32
time     the kernels, replayed as a CUDA graph; "eager" is a call from Python. The floor is the time
         to move the necessary bytes at the bandwidth of a copy.
sweep    the same with other tile and block sizes

    python tools/gpu/run.py channel [parity] [time] [sweep] [--only STEP,STEP]

Without parts, the first two are done. ``--only`` chooses steps.

Shape legend: b batch, t time, c channels, s channels of a source.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.kernels.nvrtc import Unit
from elman.ops.channel import op
from elman.ops.channel.cuda import kernels
from elman.ops.channel.cuda.tile_config import TileConfig, Tuning
from elman.ops.channel.passes import Call, Saved
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS
from elman.ops.common.slices import Slice, row_blocks
from tools.gpu.instruments import copy_bytes_per_us, furthest, median_us, recorded
from tools.gpu.job import Check, Job, Row

BATCH, TIME, CHANNELS = 32, 512, 1536
SETS = 2  # of tensors, so that little of a call is in the cache from the call before
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
# Compared with fp64: batch, steps, channels. The last lie unevenly, so that copies have 4 bytes.
SHAPES = ((3, 37, 40), (2, TIME, CHANNELS), (3, 37, 35))
WIDTHS = ((40, 16), (CHANNELS, 16), (35, 4))  # channels of SHAPES and bytes of their copies
SWEPT = [Tuning(*sizes) for sizes in itertools.product((8, 16), (2, 3, 4), (1, 2, 4, 6))]


def plan_of(step: str, channels: int) -> Plan:
    """Return a plan with the step's inputs in one source, keys normalized, y silu(y)."""
    inputs = CELLS[step].inputs
    unit = "key" if "key" in inputs else None
    places = row_blocks(dict.fromkeys(inputs, channels))
    query = Slice(0, len(inputs) * channels) if unit else None
    return Plan(step, tuple(places.items()), unit=unit, query=query, self_gate=True)


def compile_all(tile_configs: Iterable[TileConfig]) -> None:
    """Compile kernels side by side, so that none is compiled while another is timed."""
    major, minor = torch.cuda.get_device_capability()

    def compiled(one: TileConfig) -> None:
        fast = one.io == torch.bfloat16
        Unit(kernels.unit_text(one), one.plan.step, f"sm_{major}{minor}", fast).cubin()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, tile_configs))


def leaves_of(plan: Plan, batch: int, time: int, channels: int, dtype: torch.dtype) -> list[Tensor]:
    """Return a source, the parameters and a first state, at random."""
    draw = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device="cuda")

    width = max(place.start for place in plan.slices()) + channels
    leaves = [normal(batch, time, width).to(dtype)]
    cell = CELLS[plan.step]
    leaves += [0.5 * normal(1 if name in cell.scalars else channels) for name in cell.parameters]
    leaves.append(normal(batch, channels))
    return [leaf.requires_grad_() for leaf in leaves]


def per_channel(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return parameters as a kernel reads them, a number for every channel."""
    return [parameter.expand(CHANNELS) for parameter in parameters]


def run(plan: Plan, leaves: list[Tensor], backend: str) -> tuple[Tensor, Tensor]:
    """Run a plan."""
    source, *parameters, first = leaves
    named = dict(zip(CELLS[plan.step].parameters, parameters, strict=True))
    return op.run(plan, [source], named, first, backend=backend)


def error_of(step: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> float:
    """Return the largest relative L2 error of outputs and gradients against fp64."""
    plan = plan_of(step, shape[2])
    narrow = leaves_of(plan, *shape, dtype)
    wide = [leaf.detach().double().requires_grad_() for leaf in narrow]
    results = []
    for leaves, backend in ((narrow, "cuda"), (wide, "reference")):
        outputs = run(plan, leaves, backend)
        pulls = [torch.linspace(-1, 1, out.numel(), device="cuda").to(dtype) for out in outputs]
        shaped = [p.reshape(o.shape).to(o.dtype) for p, o in zip(pulls, outputs, strict=True)]
        gradients = torch.autograd.grad(outputs, leaves, shaped)
        results.append([tensor.detach().double() for tensor in (*outputs, *gradients)])
    return furthest(*results)


def compared(step: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> Row:
    """Compare a step with fp64."""
    error = error_of(step, dtype, shape)
    return {"error_l2": error, "passed": error <= LIMITS[dtype]}


def parity(job: Job) -> None:
    """Compare steps with fp64."""
    steps = job.chosen(CELLS)
    compile_all(
        kernels.tile_config_for(plan_of(step, 1), dtype, torch.float32, kernels.TUNING, unit, c)
        for step, dtype, (c, unit) in itertools.product(steps, LIMITS, WIDTHS)
    )
    for step, dtype, shape in itertools.product(steps, LIMITS, SHAPES):
        row = {"step": step, "dtype": str(dtype), "shape": str(shape)}
        job.attempt(row, partial(compared, step, dtype, shape))


def replayed_us(calls: list[Callable[[], Any]]) -> float:
    """Return the time of a call, from one graph of them all."""
    graph, _ = recorded(lambda: [call() for call in calls])
    return median_us(graph.replay) / len(calls)


class Timed:
    """A step's tensors in bf16, and its passes as calls.

    Args:
        step: Its name.
    """

    def __init__(self, step: str) -> None:
        self.plan = plan_of(step, CHANNELS)
        self.sets = [
            leaves_of(self.plan, BATCH, TIME, CHANNELS, torch.bfloat16) for _ in range(SETS)
        ]
        self.dy = torch.randn(BATCH, TIME, CHANNELS, device="cuda").to(torch.bfloat16)

    def kernels_us(self) -> tuple[float, float]:
        """Return the times of the forward and of the backward pass."""
        detached = [[leaf.detach() for leaf in leaves] for leaves in self.sets]

        def forward(source: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            given = ([source], per_channel(rest[:-1]), rest[-1], None)
            return kernels.forward(Call(self.plan.text, "cuda", *given))

        def backward(source: Tensor, *rest: Tensor) -> Any:
            given = ([source], per_channel(rest[:-1]), rest[-1], None)
            return kernels.backward(Saved(self.plan.text, "cuda", self.dy, None, *given))

        kept = [[*leaves[:-1], forward(*leaves)[2]] for leaves in detached]
        return (
            replayed_us([partial(forward, *leaves) for leaves in detached]),
            replayed_us([partial(backward, *leaves) for leaves in kept]),
        )

    def eager_us(self) -> tuple[float, float]:
        """Return the times of a call, and of a call with its gradients."""
        leaves = self.sets[0]

        def both() -> Any:
            return torch.autograd.grad(run(self.plan, leaves, "cuda")[0], leaves, self.dy)

        return median_us(lambda: run(self.plan, leaves, "cuda")), median_us(both)

    def floors_us(self, bytes_per_us: float) -> tuple[float, float]:
        """Return the least times that memory allows."""
        numbers, inputs = BATCH * TIME * CHANNELS, len(self.plan.slices())
        kept = numbers * 4 / kernels.TUNING.steps
        return (
            ((inputs + 1) * numbers * 2 + kept) / bytes_per_us,
            ((2 * inputs + 1) * numbers * 2 + kept) / bytes_per_us,
        )


def times_of(step: str, bytes_per_us: float) -> dict[str, float]:
    """Time a step beside its floors."""
    timed = Timed(step)
    eager, floors = timed.eager_us(), timed.floors_us(bytes_per_us)
    row: dict[str, float] = {}
    for name, time, floor in zip(("forward", "backward"), timed.kernels_us(), floors, strict=True):
        row[f"{name}_us"] = round(time, 1)
        row[f"{name}_floor_us"] = round(floor, 1)
        row[f"{name}_over_floor"] = round(time / floor, 2)
    return row | {"eager_forward_us": round(eager[0], 1), "eager_both_us": round(eager[1], 1)}


def time(job: Job) -> None:
    """Time every step."""
    bytes_per_us = copy_bytes_per_us()
    copy = {"tb_s": round(bytes_per_us / 1e6, 3), "tuning": str(kernels.TUNING)}
    job.report({"what": "copy"} | copy)
    for step in job.chosen(CELLS):
        job.measure({"step": step}, partial(times_of, step, bytes_per_us))


def sweep(job: Job) -> None:
    """Time every step's kernels with every tuning, and report the fastest sum first."""
    for step in job.chosen(CELLS):
        for row in tunings_of(step):
            job.report({"step": step} | row)


def tunings_of(step: str) -> list[Row]:
    """Return the times of a step's kernels with every tuning, the fastest sum first."""
    before, timed, rows = kernels.TUNING, Timed(step), []
    given = (timed.plan, torch.bfloat16, torch.float32)
    compile_all(kernels.tile_config_for(*given, one, 16, CHANNELS) for one in SWEPT)
    for one in SWEPT:
        kernels.TUNING = one
        forward, backward = timed.kernels_us()
        rows.append({"tuning": str(one), "forward_us": forward, "backward_us": backward})
    kernels.TUNING = before
    return sorted(rows, key=lambda row: float(row["forward_us"] + row["backward_us"]))


CHECK = Check(
    {"parity": parity, "time": time, "sweep": sweep},
    default=("parity", "time"),
    names=lambda: CELLS,
)
