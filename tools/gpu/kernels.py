"""The matrix-state engine's CUDA kernels against fp64, and their times beside their floors.

machine    the limits of the machine, of which floors are made
parity     every cell, and the delta rule with every option and odd sizes, in bf16 and fp32
operator   the custom operator again, on a side stream, replayed and compiled, to the bit
times      forward and backward beside their floors (``tile_configs`` times other tile configs)
small      parity of a few plans at the smallest sizes: what NVIDIA's checkers have patience for

    python tools/gpu/run.py kernels [machine] [parity] [operator] [times] [small]

Without parts, all but ``small`` are done. It needs PyTorch for CUDA, cuda-bindings and NVRTC. If
elman is not installed: ln -s ../../csrc src/elman/csrc, and PYTHONPATH=src.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns, v state rows.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.kernels.driver import load
from elman.kernels.nvrtc import Unit, nvrtc_version
from elman.ops.matrix_state import op, reference
from elman.ops.matrix_state.abi import Call, kept_dtype
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.tile_config import TileConfig
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.recurrences import CELLS
from elman.ops.matrix_state.stacked import DELTA, E70, E75, stacked_plan
from tools.gpu.instruments import (
    copy_bytes_per_us,
    distance,
    equal,
    filled,
    median_us,
    on_side_stream,
    replayed,
)
from tools.gpu.job import Check, Job, Row

DEVICE = "cuda:0"
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
BATCH, TIME = 32, 512
SETS = 3  # several sets of inputs, so that no pass finds its own in the L2


@dataclass(frozen=True)
class Timed:
    """A configuration whose times are compared with floors in microseconds."""

    name: str
    cell: str
    heads: int
    size: int
    options: dict[str, Any] = field(hash=False)
    forward_floor: float
    backward_floor: float

    @property
    def plan(self) -> Plan:
        """Return its plan."""
        return stacked_plan(self.cell, self.heads, self.size, self.size, **self.options)


# Floors: what the special function units and the memory of an H200 need, B=32, T=512, bf16.
TIMED = (
    Timed("E88 h32n16", "delta", 32, 16, DELTA, 38, 80),
    Timed("E88 h8n32", "delta", 8, 32, DELTA, 36, 80),
    Timed("E88 h24n24", "delta", 24, 24, DELTA, 61, 130),
    Timed("E88 h16n32", "delta", 16, 32, DELTA, 70, 150),
    Timed("E88 h32n32", "delta", 32, 32, DELTA, 140, 300),
    Timed("E88 h16n64", "delta", 16, 64, DELTA, 270, 590),
    Timed("E88 h8n128", "delta", 8, 128, DELTA, 525, 1180),
    Timed("E70 n64", "decayed", 1, 64, E70, 16, 45),
    Timed("E70 n96", "decayed", 1, 96, E70, 36, 90),
    Timed("E70 n128", "decayed", 1, 128, E70, 64, 160),
    Timed("E75 h4n16", "row_gated_delta", 4, 16, E75, 36, 80),
    Timed("E75 h8n16", "row_gated_delta", 8, 16, E75, 36, 80),
    Timed("E75 h4n32", "row_gated_delta", 4, 32, E75, 36, 80),
    Timed("E75 h8n24", "row_gated_delta", 8, 24, E75, 36, 80),
)


@dataclass
class Tensors:
    """Inputs and outputs of one call, which keeps every K-th state."""

    plan: Plan
    segment_steps: int
    source_btc: Tensor
    parameters: list[Tensor]
    first_bhvn: Tensor | None
    dout_bthv: Tensor
    dlast_bhvn: Tensor | None
    results: dict[str, Tensor]

    def call(self) -> Call:
        """Return a call that reads the inputs and writes the results."""
        call = Call(self.plan, [self.source_btc], self.parameters, self.segment_steps)
        results = self.results
        states = ("out", "last", "checkpoints", "dfirst")
        call.point(first=self.first_bhvn, dlast=self.dlast_bhvn, **{n: results[n] for n in states})
        call.point_output_gradient(self.dout_bthv)
        names = self.plan.parameter_names
        call.point_gradients([results["dsource"]], [results[f"d{name}"] for name in names])
        return call


def make_tensors(
    chosen: TileConfig, batch: int, time_steps: int, dtype: torch.dtype, *, seed: int, states: bool
) -> Tensors:
    """Return random inputs, and results that are full of NaN.

    Args:
        chosen: The backward pass's tile config, which says how far apart checkpoints are.
        batch: B.
        time_steps: T.
        dtype: Of the sources and of the output.
        seed: Of the random numbers.
        states: Whether there is a first state, and a gradient of the last one.
    """
    plan = chosen.plan
    device = torch.device(DEVICE)
    draw = torch.Generator(device).manual_seed(seed)
    channels = max(place.start + plan.heads * plan.width(name) for name, place in plan.roles)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=draw, device=device).to(dtype)

    def poison(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return filled(torch.empty(shape, dtype=dtype, device=device))

    wide = -(-channels // 8) * 8
    state = (batch, plan.heads, plan.rows, plan.columns)
    shapes = {name: plan.parameter_shape(name) for name in plan.parameter_names}
    parameters = [0.5 * normal(*shapes[name]) for name in plan.parameter_names]
    if plan.decay == "parameter":
        index = plan.parameter_names.index("decay")
        parameters[index] = torch.sigmoid(parameters[index] + 2)
    kept = max(1, chosen.checkpoint_numbers(batch, time_steps))
    return Tensors(
        plan,
        chosen.steps,
        normal(batch, time_steps, wide, dtype=dtype)[..., :channels],
        parameters,
        0.5 * normal(*state) if states else None,
        normal(batch, time_steps, plan.heads, plan.rows, dtype=dtype),
        normal(*state) if states else None,
        {
            "out": poison(batch, time_steps, plan.heads, plan.rows, dtype=dtype),
            "last": poison(*state),
            "checkpoints": poison(kept, dtype=kept_dtype(plan, dtype)),
            "dfirst": poison(*state),
            "dsource": poison(batch, time_steps, wide, dtype=dtype)[..., :channels],
            **{f"d{name}": poison(*shape) for name, shape in shapes.items()},
        },
    )


# ---- ceilings of the machine


def machine(job: Job) -> None:
    """Measure what the kernels' floors are made of."""
    properties = torch.cuda.get_device_properties(0)
    job.report(
        {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "nvrtc": nvrtc_version(),
            "copy_tb_s": round(copy_bytes_per_us() / 1e6, 3),
            "tera_tanh_per_s": special_functions(properties),
        }
    )


_TANH_LOOP = """
struct Where { float* out; };
extern "C" __global__ void tanh_loop(const __grid_constant__ Where a) {
  float x[8];
  for (int i = 0; i < 8; i++) x[i] = threadIdx.x * 0.01f + i;
#pragma unroll 1
  for (int n = 0; n < 1000; n++) {
#pragma unroll
    for (int i = 0; i < 8; i++) asm volatile("tanh.approx.f32 %0, %0;" : "+f"(x[i]));
  }
  float sum = 0;
  for (int i = 0; i < 8; i++) sum += x[i];
  a.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""


def special_functions(properties: Any) -> float:
    """Measure how many tanh the GPU computes in a second, in units of 1e12."""

    class Where(ctypes.Structure):
        _fields_ = (("out", ctypes.c_void_p),)

    blocks, threads = properties.multi_processor_count * 4, 512
    out = torch.empty(blocks * threads, device="cuda")
    kernel = load(Unit(_TANH_LOOP, "tanh loop", architecture(), True))

    def run() -> None:
        kernel.launch(
            "tanh_loop",
            blocks=blocks,
            threads=threads,
            shared_bytes=0,
            arguments=Where(out.data_ptr()),
            device=0,
            stream=torch.cuda.current_stream().cuda_stream,
        )

    rate: float = round(blocks * threads * 8000 / median_us(run) / 1e6, 3)
    return rate


def architecture() -> str:
    """Return the GPU's architecture as NVRTC names it."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


# ---- parity


def parity_plans() -> Iterator[tuple[str, Plan]]:
    """Yield what is compared: every cell, and the delta rule with every option and odd sizes."""
    for cell, needs in CELLS.items():
        if needs.type is not None:
            options: dict[str, Any] = {"k_unit": True, "q_unit": True}
            if needs.column:
                options |= {"z_act": "sigmoid", "z_bias": True}
            if cell == "decayed":
                options |= {"decay": "parameter", "self_gate": True}
            yield cell, stacked_plan(cell, 2, 16, 16, **options)
            yield f"{cell} n32", stacked_plan(cell, 2, 32, 32, **options)
    for n in (8, 13, 20, 24, 28, 48, 64, 96, 128, 256):
        yield f"delta n{n}", stacked_plan("delta", 2, n, n, **DELTA)
    extras: dict[str, dict[str, Any]] = {
        "gate": {"gate_act": "silu", "gate_bias": True, "residual": True, "self_gate": True},
        "write": {"write": "sigmoid", "gate_act": "sigmoid"},
        "zk": {"key": "zk", "z_act": "sigmoid", "z_bias": True},
        "read": {"key": "read"},
        "linear": {"nonlinearity": "linear"},
        "sigmoid decay": {"decay": "sigmoid"},
    }
    for name, extra in extras.items():
        yield f"delta {name}", stacked_plan("delta", 4, 16, 16, **{**DELTA, **extra})
    yield "delta 40x24", stacked_plan("delta", 2, 40, 24, **DELTA)


Pair = tuple[TileConfig, TileConfig]
"""How the forward and the backward pass run."""


def passes(plan: Plan, batch: int, dtype: torch.dtype) -> Pair:
    """Return the tile configs that the engine chooses."""
    forward, backward = (
        kernels.tile_config(plan.text, batch, dtype, backward=backward)
        for backward in (False, True)
    )
    return forward, backward


def parity(job: Job) -> None:
    """Compare every plan with fp64, in bf16 (fast and exact) and in fp32."""
    plans = list(parity_plans())
    modes = ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, True))
    tile_configs = {
        (name, dtype): passes(plan, 3, dtype)
        for name, plan in plans
        for dtype in (torch.bfloat16, torch.float32)
    }
    compile_all(tile_configs.values())
    for (name, _), (dtype, exact) in itertools.product(plans, modes):
        row = {"plan": name, "dtype": str(dtype)[6:], "fast": not exact}
        job.attempt(row, partial(compare, tile_configs[name, dtype], dtype, exact))


def small(job: Job) -> None:
    """Compare a few plans at the smallest sizes: what NVIDIA's checkers have patience for."""
    for name, plan in (one for one in parity_plans() if one[0] in SMALL):
        pair = passes(plan, 3, torch.bfloat16)
        job.attempt({"plan": name}, partial(compare, pair, torch.bfloat16, exact=False))


def compare(chosen: Pair, dtype: torch.dtype, exact: bool) -> Row:
    """Return relative L2 errors of every output and gradient against fp64."""
    given = make_tensors(chosen[True], 3, 37, dtype, seed=1, states=True)
    call = given.call()
    if exact:
        with kernels.exact():
            run_both(call, chosen)
    else:
        run_both(call, chosen)
    torch.cuda.synchronize()
    errors = {n: distance(given.results[n], one) for n, one in in_double(given).items()}
    worst = max(errors, key=lambda name: errors[name])
    passed = errors[worst] <= LIMITS[dtype]
    return {"worst": errors[worst], "of": worst, "errors": errors, "passed": passed}


def run_both(call: Call, chosen: Pair) -> None:
    """Run a call forward and backward."""
    for backward in (False, True):
        kernels.launch_as(call, chosen[backward], backward=backward)


def in_double(given: Tensors) -> dict[str, Tensor]:
    """Return what a call has to give, from the reference in fp64."""
    plan = given.plan
    assert given.first_bhvn is not None
    assert given.dlast_bhvn is not None
    inputs = [given.source_btc, *given.parameters, given.first_bhvn]
    source, *parameters, first = (x.double().requires_grad_() for x in inputs)
    named = dict(zip(plan.parameter_names, parameters, strict=True))
    out, last = reference.run(plan, [source], named, first)
    loss = (out * given.dout_bthv.double()).sum() + (last * given.dlast_bhvn.double()).sum()
    grads = torch.autograd.grad(loss, [source, *parameters, first])
    names = ["dsource", *(f"d{name}" for name in plan.parameter_names), "dfirst"]
    return {"out": out.detach(), "last": last.detach(), **dict(zip(names, grads, strict=True))}


# ---- compilation, by several processes


def compile_all(tile_configs: Any, exact: bool = True) -> None:
    """Compile the kernels of many tile configs into the cache, on all cores."""
    units = set()
    for pair, backward in itertools.product(tile_configs, (False, True)):
        chosen = pair[backward]
        narrow = chosen.types.io == "elman::bf16"
        for fast in {narrow, narrow and not exact}:
            units.add(unit_of(chosen, backward, fast=fast))
    compile_units(units)


def unit_of(chosen: TileConfig, backward: bool, *, fast: bool) -> Unit:
    """Return the unit that a launch will ask for."""
    aligned = replace(chosen, align=max(4, min(16, chosen.align)))
    return kernels.unit_of(aligned, backward, architecture(), fast=fast)


def compile_units(units: Iterable[Unit]) -> None:
    """Compile translation units into the cache."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        pool.map(compile_one, sorted(units, key=lambda unit: unit.text), chunksize=1)


def compile_one(unit: Unit) -> None:
    """Compile one translation unit; an error is met again, and recorded, where it is used."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        unit.cubin()
    except Exception:
        traceback.print_exc()


# ---- times


def times(job: Job) -> None:
    """Time every configuration with the tile configs that the engine chooses."""
    chosen = {case.name: passes(case.plan, BATCH, torch.bfloat16) for case in TIMED}
    compile_all(chosen.values(), exact=False)
    for case in TIMED:
        job.attempt({"name": case.name}, partial(time_case, case, chosen[case.name]))


def time_case(case: Timed, chosen: Pair) -> Row:
    """Time one configuration."""
    row: Row = {"tile config": describe(chosen)}
    given = inputs_of(chosen[True])
    for backward, name in enumerate(("forward", "backward")):
        floor = case.backward_floor if backward else case.forward_floor
        found = replayed_us(given, chosen[backward], backward=bool(backward))
        row |= {f"{name}_us": round(found, 1), f"{name}_over_floor": round(found / floor, 2)}
    row["launch_us"] = round(launch_us(given[0].call(), chosen[False]), 1)
    row["resources"] = registers(chosen)
    return row


def inputs_of(chosen: TileConfig) -> list[Tensors]:
    """Return different inputs for both passes; the checkpoints are zeros.

    Args:
        chosen: The backward pass's tile config.
    """
    given = [
        make_tensors(chosen, BATCH, TIME, torch.bfloat16, seed=n, states=False) for n in range(SETS)
    ]
    for tensors in given:
        tensors.results["checkpoints"].zero_()
    return given


def replayed_us(given: list[Tensors], chosen: TileConfig, *, backward: bool) -> float:
    """Return the time of a pass on the GPU: of a graph of one launch per call, over their number.

    A launch from Python takes longer than some of the kernels, so events around it would tell how
    long Python takes.
    """
    calls = [tensors.call() for tensors in given]
    graph = torch.cuda.CUDAGraph()
    kernels.launch_as(calls[0], chosen, backward=backward)  # loaded before the capture
    with torch.cuda.graph(graph):
        for call in calls:
            kernels.launch_as(call, chosen, backward=backward)
    return median_us(graph.replay) / len(calls)


def launch_us(call: Call, chosen: TileConfig, repeats: int = 200) -> float:
    """Return what a launch of the forward pass costs Python."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        kernels.launch_as(call, chosen, backward=False)
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / repeats * 1e6


def describe(pair: Pair) -> str:
    """Return a pair of tile configs in a few words."""
    forward, backward = pair
    return (
        f"K{backward.steps}: {shape(forward)} {forward.forward_bytes >> 10}K, "
        f"{shape(backward)} {backward.backward_bytes >> 10}K"
    )


def shape(chosen: TileConfig) -> str:
    """Return a tile config in words: lanes, their rows and columns, warps, row tiles of a head."""
    producers = f"+ P{chosen.shares}" if chosen.producers else ""
    block = f"L{chosen.lanes} {chosen.tall}x{chosen.columns} W{chosen.warps}"
    return f"{block}{producers} S{chosen.row_tiles}"


def registers(chosen: Pair) -> dict[str, Any]:
    """Return registers and spilled bytes of a tile config's kernels."""
    found = {}
    for backward in (False, True):
        unit = kernels.unit_of(chosen[backward], backward, architecture(), fast=True)
        for name, used in unit.resources().items():
            found[name] = [used.registers, used.spilled]
    return found


# ---- the operator, as layers call it


def operator(job: Job) -> None:
    """Run the custom operator in the ways in which PyTorch runs it; all must agree to the bit."""
    plan = stacked_plan("delta", 4, 16, 16, **DELTA, gate_act="sigmoid")
    chosen = passes(plan, BATCH, torch.bfloat16)[True]
    given = make_tensors(chosen, BATCH, 100, torch.bfloat16, seed=3, states=False)
    leaves = [given.source_btc.contiguous().requires_grad_()]
    leaves += [parameter.requires_grad_() for parameter in given.parameters]

    def step(source: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(plan.parameter_names, parameters, strict=True))
        out, _ = op.run(plan, [source], named, None, backend="cuda")
        return out

    def both(function: Callable[..., Tensor]) -> list[Tensor]:
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, given.dout_bthv)]

    expected = both(step)
    ways: dict[str, Callable[[], list[Tensor]]] = {
        "again": lambda: both(step),
        "side stream": lambda: on_side_stream(lambda: both(step)),
        "graph": lambda: replayed(lambda: both(step)),
        "compiled": lambda: both(torch.compile(step, fullgraph=True)),
    }
    for name, way in ways.items():
        job.attempt({"way": name}, partial(agrees, way, expected))


def agrees(way: Callable[[], list[Tensor]], expected: list[Tensor]) -> Row:
    """Compare what a way of running computes with what is expected."""
    results = way()
    torch.cuda.synchronize()
    same = equal(results, expected)
    return {"same_bits": same, "passed": same}


SMALL = ("delta", "decayed", "row_gated_delta", "delta gate", "delta n13", "delta 40x24")

CHECK = Check(
    {
        "machine": machine,
        "parity": parity,
        "operator": operator,
        "times": times,
        "small": small,
    },
    default=("machine", "parity", "operator", "times"),
)
