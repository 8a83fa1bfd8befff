"""The matrix-state engine's Triton kernels against fp64; times beside the CUDA kernels.

check    outputs and all gradients of every cell in bf16 and fp32 against the fp64 reference, with
         NaN in every tensor that the engine allocates, with and without a first state and resets;
         and that a replayed CUDA graph gives the same bits
time     bf16, B = 32 and T = 512, each pass replayed as a CUDA graph, both backends in turn in
         every round; "first" are the seconds of the first call of both passes with an empty cache,
         which is compilation
tiles    other tiles of a program than those of spec.py
compile  calls once what ``time`` would time: processes that do so for a cell each fill one
         TRITON_CACHE_DIR with all cores

    python tools/gpu/run.py triton [check] [time] [tiles] [compile] [--only E70,M2RNN] [sizes=16,32]
        [warm=true]

Without parts, the first two are done. ``--only`` chooses cells. ``time warm=true`` compiles nothing
that ``compile`` left in the cache, and leaves "first" out. M2RNN, whose kernels are its own, has
sizes of its own (triton_row_mix.py), which ``sizes`` does not change. On an AMD GPU the CUDA
kernels are left out.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from elman.kernels.triton_version import torch_is_for_rocm, triton_version
from elman.ops.matrix_state import custom_op, op
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.stacked import DELTA, E70, stacked_plan
from elman.ops.matrix_state.triton import launch
from elman.ops.matrix_state.triton.tiles import folds_of, tile_of
from tools.gpu import triton_row_mix
from tools.gpu.instruments import distance, equal, in_turn, poisoned, recorded, replayed
from tools.gpu.job import Check, Job, Row

BATCH, TIME = 32, 512
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
SIZES = (16, 32, 64, 128)
CHECKED_SIZES = (16, 20, 32, 64, 96, 128, 256)
_LINEAR = {"nonlinearity": "linear", "self_gate": True}
_Z = {"z_act": "sigmoid", "z_bias": True, "self_gate": True}
_DELTA_Z = {"key": "zk", "k_unit": True} | _Z | {"z_act": "none"}
# Cell of the engine and what stands around it, by the model's name.
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "E70": ("decayed", E70),
    "E71": ("read_gated", _LINEAR),
    "E72": ("value_gated", _LINEAR),
    "E72 inverse": ("value_gated_inverse", _LINEAR),
    "E73 column": ("column_gated", _Z),
    "E73 row": ("row_gated_sigmoid", {"self_gate": True}),
    "E73 full": ("full_gated_tanh", _Z | {"z_act": "tanh"}),
    "E73cp": ("delta", _DELTA_Z),
    "E73cp full": ("scaled_read_delta_none", _DELTA_Z),
    "E88": ("delta", DELTA),
    "E88 gated": ("delta", DELTA | {"write": "sigmoid", "residual": True, "gate_act": "silu"}),
}
TILED = ("E70", "E72", "E88")
TIMED = ("E70", "E71", "E72", "E73 column", "E73cp", "E88")
HEADS = {16: 32, 32: 16, 64: 8, 128: 4, 256: 2}  # of E88; the others have one
# Rows of a program of one warp, steps of a group, and how a key comes to its threads.
TILES = tuple(itertools.product((1, 2, 4, 8, 16), (2, 4, 8), ("exchanged", "spread", "folded")))
MOST_NUMBERS = 64  # of the states of a group, in a thread: more do not fit into its registers
Leaves = dict[str, Tensor]


def chosen(job: Job, cells: Iterable[str]) -> list[str]:
    """Return the engine's cells of a part: those that were requested, else its own."""
    return [name for name in job.only if name in CELLS] if job.only else list(cells)


def sizes_of(job: Job, sizes: tuple[int, ...]) -> list[int]:
    """Return the sizes that were requested, else those of a part."""
    return [int(text) for text in job.settings["sizes"].split(",") if text] or list(sizes)


def with_m2rnn(job: Job) -> bool:
    """Return whether M2RNN is among the cells."""
    return bool(job.chosen([triton_row_mix.NAME]))


def plan_of(name: str, n: int, heads: int) -> Plan:
    """Return the plan of a model's recurrence."""
    cell, options = CELLS[name]
    return stacked_plan(cell, heads, n, n, **options)


# ---- checks


def check(job: Job) -> None:
    """Compare every cell in every size with fp64."""
    job.report({"what": "versions", "triton": triton_version(), "rocm": torch_is_for_rocm()})
    cells = chosen(job, CELLS)
    for name, n, dtype in itertools.product(cells, sizes_of(job, CHECKED_SIZES), LIMITS):
        plan = plan_of(name, n, 3 if n <= 64 else 1)
        row = {"cell": name, "n": n, "dtype": str(dtype)}
        job.attempt(row, partial(compared, plan, dtype))
    if with_m2rnn(job):
        triton_row_mix.checks(job)


def compared(plan: Plan, dtype: torch.dtype) -> dict[str, Any]:
    """Return the largest error of a plan over several shapes, with what it belongs to."""
    worst: tuple[float, str] = (0.0, "nothing")
    for batch, steps, first, resets in ((2, 1, True, False), (3, 67, True, False), (2, 37, 0, 1)):
        leaves = drawn(plan, batch, steps, dtype, first=bool(first))
        resets_bt = torch.rand(batch, steps, device="cuda") < 1 / 8 if resets else None
        exact = run(plan, {n: leaf.double() for n, leaf in leaves.items()}, "reference", resets_bt)
        with poisoned():
            found = run(plan, leaves, "triton", resets_bt)
        for name, wanted in exact.items():
            worst = max(worst, (distance(found[name], wanted), f"{name} T={steps}"))
    leaves = drawn(plan, 3, 67, dtype, first=True)
    call = partial(run, plan, leaves, "triton")
    same = equal(call(), replayed(call))
    passed = worst[0] <= LIMITS[dtype] and same
    return {"error": worst[0], "of": worst[1], "graph_equal": same, "passed": passed}


def drawn(plan: Plan, batch: int, steps: int, dtype: torch.dtype, *, first: bool) -> Leaves:
    """Return the tensors of a call by name."""
    torch.manual_seed(1)
    leaves = {
        f"source {number}": torch.randn(batch, steps, channels, device="cuda").to(dtype)
        for number, channels in enumerate(plan.channels)
    }
    for name, shape in plan.parameter_shapes.items():
        leaves[name] = torch.rand(shape, device="cuda") * 0.8
    if first:
        leaves["first"] = torch.randn(batch, plan.heads, plan.rows, plan.columns, device="cuda") / 2
    return leaves


def run(plan: Plan, leaves: Leaves, backend: str, resets_bt: Tensor | None = None) -> Leaves:
    """Return outputs and gradients by name."""
    given = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    out_bthv, last_bhvn = op.run(
        plan,
        [leaf for name, leaf in given.items() if name.startswith("source")],
        {name: given[name] for name in plan.parameter_names},
        given.get("first"),
        backend=backend,
        resets_bt=resets_bt,
    )
    outputs = {"out": out_bthv, "last": last_bhvn}
    pulls = [pulled(tuple(one.shape)).to(one.dtype) for one in outputs.values()]
    found = torch.autograd.grad(list(outputs.values()), list(given.values()), pulls)
    named = {f"d {name}": gradient for name, gradient in zip(given, found, strict=True)}
    return {name: one.detach() for name, one in outputs.items()} | named


@cache
def pulled(shape: tuple[int, ...]) -> Tensor:
    """Return the gradient of an output: the same for all, and drawn before a graph is recorded."""
    generator = torch.Generator("cuda").manual_seed(3)
    return torch.randn(shape, device="cuda", generator=generator).bfloat16()


# ---- times


def backends() -> tuple[str, ...]:
    """Return the backends that are timed."""
    return ("triton",) if torch_is_for_rocm() else ("triton", "cuda")


def timed_plan(name: str, n: int) -> Plan:
    """Return the plan of a model's recurrence, with the heads that it is timed with."""
    return plan_of(name, n, HEADS[n] if name == "E88" else 1)


def compile_all(job: Job) -> None:
    """Call what is timed once, into the present cache."""
    sizes = sizes_of(job, SIZES)
    for name, n, backend in itertools.product(chosen(job, TIMED), sizes, backends()):
        row = {"cell": name, "n": n, "backend": backend}
        job.measure(row, partial(first_calls, timed_plan(name, n), backend))


def first_calls(plan: Plan, backend: str) -> Row:
    """Record both passes, for what that compiles."""
    passes(plan, backend)
    return {}


def time(job: Job) -> None:
    """Time both backends in every size, in turn; if warm, with the present cache."""
    warm = job.settings["warm"]
    for name, n in itertools.product(chosen(job, TIMED), sizes_of(job, SIZES)):
        plan = timed_plan(name, n)
        made: dict[tuple[str, str], Any] = {}
        row = {"cell": name, "n": n, "heads": plan.heads}
        for backend in backends():
            began = perf_counter()
            with nullcontext() if warm or backend == "cuda" else empty_cache():
                graphs = job.made(row | {"backend": backend}, partial(passes, plan, backend)) or {}
            if graphs and not warm:
                job.report(row | {"backend": backend, "first_s": round(perf_counter() - began, 2)})
            made |= {(backend, direction): graph for direction, graph in graphs.items()}
        for (backend, direction), us in in_turn(made, TIME).items():
            job.report(row | {"backend": backend, "pass": direction, "us_a_step": us})
    if with_m2rnn(job):
        with empty_cache():
            triton_row_mix.times(job)


@contextmanager
def empty_cache() -> Iterator[None]:
    """Let Triton compile everything anew."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TRITON_CACHE_DIR")
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before


def passes(plan: Plan, backend: str) -> dict[str, Any]:
    """Return both passes as graphs, after a first call of each."""
    leaves = drawn(plan, BATCH, TIME, torch.bfloat16, first=False)
    sources = [leaf for name, leaf in leaves.items() if name.startswith("source")]
    parameters = [leaves[name] for name in plan.parameter_names]
    forwards = partial(
        custom_op.MATRIX_STATE.operator, plan.text, backend, True, sources, parameters, None, None
    )
    out_bthv, _, *kept = forwards()
    backwards = partial(
        custom_op.MATRIX_STATE.backward_operator,
        plan.text,
        backend,
        torch.randn_like(out_bthv),
        None,
        sources,
        parameters,
        None,
        *kept,
        None,
    )
    backwards()
    torch.cuda.synchronize()
    return {"forward": recorded(forwards), "backward": recorded(backwards)}


def time_tiles(job: Job) -> None:
    """Time cells with every tile that a program of one warp can have, each pass by itself."""
    directions = ("forward", "backward")
    sizes = sizes_of(job, SIZES)
    for name, n, direction in itertools.product(chosen(job, TILED), sizes, directions):
        plan = timed_plan(name, n)
        for rows, group, keys in TILES:
            if rows > n or not 1 <= rows * n // 32 <= MOST_NUMBERS // group:
                continue
            backward = direction == "backward"
            if keys == "folded" and (backward or folds_of(rows, plan.columns) == 1):
                continue
            row = {"cell": name, "n": n, "rows": rows, "group": group, "keys": keys}
            row |= {"pass": direction}
            with tiles(rows, group, keys, backward=backward):
                made = job.made(row, partial(passes, plan, "triton"))
            if made is not None:
                us = in_turn({direction: made[direction]}, TIME)[direction]
                job.report(row | {"us_a_step": us})


@contextmanager
def tiles(rows: int, group: int, keys: str, *, backward: bool) -> Iterator[None]:
    """Let programs of a pass hold so many rows, load so many steps together, and take keys so."""

    def other(plan: Plan, *, backward: bool) -> Any:
        found = tile_of(plan, backward=backward)
        if backward != wanted:
            return found
        tiles = -(-plan.rows // rows)
        folds = folds_of(rows, plan.columns) if keys == "folded" else 1
        held = replace(found, rows=rows, row_tiles=tiles, group=group)
        return replace(held, spread=keys != "exchanged", folds=folds)

    wanted = backward
    vars(launch)["tile_of"] = other
    launch._tile.cache_clear()
    try:
        yield
    finally:
        vars(launch)["tile_of"] = tile_of
        launch._tile.cache_clear()


CHECK = Check(
    {"check": check, "time": time, "tiles": time_tiles, "compile": compile_all},
    default=("check", "time"),
    names=lambda: (*CELLS, triton_row_mix.NAME),
    settings={"sizes": "", "warm": False},
)
