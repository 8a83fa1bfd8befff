"""Checks the Triton kernels of the matrix-state engine on a GPU, and times them beside CUDA's.

    python tools/gpu/gpu_triton.py --out FILE [--check] [--time] [--tiles] [--compile] [--warm]
        [--sizes 16 ...] [--cells E70 ...]

Without --check, --time, --tiles or --compile, the first two are done. Each result is one line of
JSON, printed and appended to FILE at once. Checks: outputs and all gradients of every cell in bf16
and fp32 against the fp64 reference, with NaN in every tensor that the engine allocates, with and
without a first state and resets; and that a replayed CUDA graph gives the same bits. Times: bf16, B
= 32 and T = 512, each pass replayed as a CUDA graph, both backends in turn in every round; "first"
are the seconds of the first call of both passes with an empty cache, which is compilation. --tiles
times other tiles of a program than those of spec.py. --compile only calls what --time would time,
once: processes that do so for a cell each fill one TRITON_CACHE_DIR with all cores. --time --warm
then compiles nothing that is in there, and leaves "first" out. --cells chooses some of the cells.
M2RNN, whose kernels are its own, has sizes of its own (triton_row_mix.py), which --sizes does not
change: --cells M2RNN checks and times it alone. Needs torch with triton, a GPU and this package on
PYTHONPATH. On an AMD GPU the CUDA kernels are left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton_row_mix  # type: ignore[import-not-found]
from instruments import (  # type: ignore[import-not-found]
    device_name,
    distance,
    equal,
    poisoned,
    recorded,
    seconds,
    write,
)
from torch import Tensor

from elman.kernels.triton_version import torch_is_for_rocm, triton_version
from elman.ops.matrix_state import custom_op, op
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.stacked import DELTA, E70, stacked_plan
from elman.ops.matrix_state.triton import launch
from elman.ops.matrix_state.triton.spec import folds_of, tile_of

BATCH, TIME = 32, 512
ROUNDS, WARMUP = 7, 2
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
Report = Callable[[dict[str, Any]], None]


def main() -> None:
    """Do what was asked for; the exit status is 1 if a check failed."""
    given = parse()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = partial(write, given.out)
    report(
        {"what": "machine", "device": device_name("cuda"), "torch": torch.__version__}
        | {"triton": triton_version(), "rocm": torch_is_for_rocm()}
    )
    parts = (given.check, given.time, given.tiles, given.compile)
    passed, everything = True, not any(parts)
    chosen = None if given.cells is None else [name for name in given.cells if name in CELLS]
    with_m2rnn = given.cells is None or triton_row_mix.NAME in given.cells
    if given.check or everything:
        cells = CELLS if chosen is None else chosen
        passed = checks(cells, given.sizes or CHECKED_SIZES, report)
        passed &= not with_m2rnn or triton_row_mix.checks(report)
    if given.compile:
        compile_all(TIMED if chosen is None else chosen, given.sizes or SIZES, report)
    if given.time or everything:
        times(TIMED if chosen is None else chosen, given.sizes or SIZES, report, warm=given.warm)
        if with_m2rnn:
            with empty_cache():
                triton_row_mix.times(report)
    if given.tiles:
        time_tiles(TILED if chosen is None else chosen, given.sizes or SIZES, report)
    report({"what": "end", "passed": passed})
    raise SystemExit(0 if passed else 1)


def parse() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of lines of JSON")
    for part in ("check", "time", "tiles", "compile"):
        parser.add_argument(f"--{part}", action="store_true", help="this part alone")
    parser.add_argument("--warm", action="store_true", help="--time with the cache as it is")
    parser.add_argument("--sizes", nargs="+", type=int, help="rows and columns of the state")
    names = (*CELLS, triton_row_mix.NAME)
    parser.add_argument("--cells", nargs="+", choices=names, metavar="CELL", help=", ".join(names))
    return parser.parse_args()


def plan_of(name: str, n: int, heads: int) -> Plan:
    """Return the plan of a model's recurrence."""
    cell, options = CELLS[name]
    return stacked_plan(cell, heads, n, n, **options)


# ---- checks


def checks(cells: Iterable[str], sizes: Iterable[int], report: Report) -> bool:
    """Compare every cell in every size with fp64; return whether all are close enough."""
    passed = True
    for name, n, dtype in itertools.product(cells, sizes, LIMITS):
        row: dict[str, Any] = {"what": "check", "cell": name, "n": n, "dtype": str(dtype)}
        began = time.perf_counter()
        try:
            row |= compared(plan_of(name, n, 3 if n <= 64 else 1), dtype)
        except Exception as error:
            row |= {"error": f"{type(error).__name__}: {error}"[:500], "passed": False}
        passed &= row["passed"]
        report(row | {"s": round(time.perf_counter() - began, 2)})
    return passed


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
            error = distance(found[name], wanted, wanted.norm())
            worst = max(worst, (error if error == error else float("inf"), f"{name} T={steps}"))
    leaves = drawn(plan, 3, 67, dtype, first=True)
    same = equal(run(plan, leaves, "triton"), replayed(plan, leaves))
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


def replayed(plan: Plan, leaves: Leaves) -> Leaves:
    """Return what a replayed CUDA graph of both passes computes."""
    run(plan, leaves, "triton")
    graph, held = recorded(partial(run, plan, leaves, "triton"))
    graph.replay()
    torch.cuda.synchronize()
    results: Leaves = held
    return results


# ---- times


def backends() -> tuple[str, ...]:
    """Return the backends that are timed."""
    return ("triton",) if torch_is_for_rocm() else ("triton", "cuda")


def timed_plan(name: str, n: int) -> Plan:
    """Return the plan of a model's recurrence, with the heads that it is timed with."""
    return plan_of(name, n, HEADS[n] if name == "E88" else 1)


def compile_all(cells: Iterable[str], sizes: Iterable[int], report: Report) -> None:
    """Call what is timed once, into the present cache."""
    for name, n, backend in itertools.product(cells, sizes, backends()):
        row: dict[str, Any] = {"what": "compile", "cell": name, "n": n, "backend": backend}
        began = time.perf_counter()
        try:
            passes(timed_plan(name, n), backend)
        except Exception as error:
            row |= {"error": f"{type(error).__name__}: {error}"[:500]}
        report(row | {"s": round(time.perf_counter() - began, 2)})


def times(
    cells: Iterable[str], sizes: Iterable[int], report: Report, *, warm: bool = False
) -> None:
    """Time both backends in every size, in turn; if ``warm``, with the present cache."""
    for name, n in itertools.product(cells, sizes):
        plan = timed_plan(name, n)
        made: dict[tuple[str, str], Any] = {}
        row = {"what": "time", "cell": name, "n": n, "heads": plan.heads}
        for backend in backends():
            try:
                with without() if warm or backend == "cuda" else empty_cache():
                    began = time.perf_counter()
                    graphs = passes(plan, backend)
                    first = round(time.perf_counter() - began, 2)
            except Exception as error:
                report(
                    row | {"backend": backend, "error": f"{type(error).__name__}: {error}"[:500]}
                )
                continue
            if not warm:
                report(row | {"backend": backend, "first_s": first})
            made |= {(backend, direction): graph for direction, graph in graphs.items()}
        for (backend, direction), us in in_turn(made).items():
            report(row | {"backend": backend, "pass": direction, "us_a_step": us})


@contextmanager
def without() -> Iterator[None]:
    """Change nothing."""
    yield


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


def in_turn(made: dict[Any, Any]) -> dict[Any, float]:
    """Return the median microseconds a step of graphs, all timed in every round."""
    rounds: dict[Any, list[float]] = {key: [] for key in made}
    for number in range(WARMUP + ROUNDS):
        for key, (graph, _) in made.items():
            taken = seconds(graph.replay)
            if number >= WARMUP:
                rounds[key].append(taken * 1e6 / TIME)
    return {key: round(statistics.median(us), 3) for key, us in rounds.items()}


def time_tiles(cells: Iterable[str], sizes: Iterable[int], report: Report) -> None:
    """Time cells with every tile that a program of one warp can have, each pass by itself."""
    for name, n, direction in itertools.product(cells, sizes, ("forward", "backward")):
        plan = timed_plan(name, n)
        for rows, group, keys in TILES:
            if rows > n or not 1 <= rows * n // 32 <= MOST_NUMBERS // group:
                continue
            backward = direction == "backward"
            if keys == "folded" and (backward or folds_of(rows, plan.columns) == 1):
                continue
            row = {"what": "tile", "cell": name, "n": n, "rows": rows, "group": group}
            row |= {"keys": keys, "pass": direction}
            try:
                with tiles(rows, group, keys, backward=backward):
                    made = {direction: passes(plan, "triton")[direction]}
                report(row | {"us_a_step": in_turn(made)[direction]})
            except Exception as error:
                report(row | {"error": f"{type(error).__name__}: {error}"[:300]})


@contextmanager
def tiles(rows: int, group: int, keys: str, *, backward: bool) -> Iterator[None]:
    """Let programs of a pass hold so many rows, load so many steps together, and take keys so."""

    def chosen(plan: Plan, *, backward: bool) -> Any:
        found = tile_of(plan, backward=backward)
        if backward != wanted:
            return found
        tiles = -(-plan.rows // rows)
        folds = folds_of(rows, plan.columns) if keys == "folded" else 1
        held = replace(found, rows=rows, row_tiles=tiles, group=group)
        return replace(held, spread=keys != "exchanged", folds=folds)

    wanted = backward
    vars(launch)["tile_of"] = chosen
    launch._tile.cache_clear()
    try:
        yield
    finally:
        vars(launch)["tile_of"] = tile_of
        launch._tile.cache_clear()


if __name__ == "__main__":
    main()
