"""Faults planted in the kernels' sources, and whether the emulation notices.

Every barrier and every wait is left out once, and an index or a size is wrong in each of the other
ways. A planted fault runs in a process of its own: what the emulator does not stop may crash.

    python -m tests.emulation.mutations [plan ...]
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import multiprocessing
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.kernels.build import digest
from elman.kernels.sources import source_folder
from elman.ops.matrix_state.arguments import Call
from elman.ops.matrix_state.cells import CELLS
from elman.ops.matrix_state.choice import geometry_of
from elman.ops.matrix_state.geometry import Geometry
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.stacked import DELTA, E70, E75, stacked_plan
from tests.emulation import emulator

PLANS = {
    "e88": ("delta", {**DELTA, "gate_act": "sigmoid"}),
    "e70": ("decayed", E70),
    "e73-full": (
        "full_gated_sigmoid",
        {"z_act": "sigmoid", "z_bias": True, "k_unit": True, "self_gate": True},
    ),
    "e75": ("row_gated_delta", E75),
}
# Lanes, rows of a lane and warps: a warp alone with halves in order, and several slabs of two warps
# with padding and helpers.
GEOMETRIES = ((4, 2, 1), (8, 1, 2))
SEEDS = (1, 2, 3)
_BARRIER = re.compile(
    r"\b(sync<G>\(\)|sync_(?:warp|block)\(\)|(?:relay\.)?(?:walked|prepared)\.\w+\(.*\)|"
    r"relay\.meet\(.*\)|wait_copies<0>\(\));"
)
# A barrier of those cells alone that have a flag, or of plans with parameters that a block sums.
_GUARD = re.compile(r"if constexpr \(Cell::(\w+)\) $")
_FLAGS = {"READ": "reads"}
_GROUP_SUM = "group_sum"
# File, old text, new text.
EDITS = {
    "copies into the buffer in use, alone": (
        "matrix_forward",
        "in.raw.fetch(length(segment + 1), buffer(segment + 1));",
        "in.raw.fetch(length(segment + 1), buffer(segment));",
    ),
    "set in use prepared": (
        "matrix_forward",
        "in.turn(second);\n    }\n  }",
        "}\n  }",
    ),
    "copies into the buffer in use": (
        "matrix_forward",
        "in.raw.fetch(length(round + 1), buffer(round + 1));",
        "in.raw.fetch(length(round + 1), buffer(round));",
    ),
    "copies one step too many": ("raw", "if (step < length) {", "if (step <= length) {"),
    "copies from the next step": ("raw", "(step - first) * stride", "(step - first + 1) * stride"),
    "row of the raw inputs + 1": (
        "raw",
        "+ step * G::row_bytes(ROLE);",
        "+ (step + 1) * G::row_bytes(ROLE);",
    ),
    "prepared one vector too far": (
        "inputs",
        "store<V, A>(row + first, y);",
        "store<V, A>(row + (first + 4), y);",
    ),
    "rows of v from the next step": ("step", "(v, in.v, step);", "(v, in.v, step + 1);"),
    "one step too many": (
        "step",
        "for (int step = from; step < to; step++) {",
        "for (int step = from; step <= to; step++) {",
    ),
    "reads of the step after": (
        "step",
        "lane.read(q, in.q, step);",
        "lane.read(q, in.q, step + 1);",
    ),
    "history of the next thread": (
        "matrix_backward",
        "Kept>(vector, history + history_at(step, m));",
        "Kept>(vector, history + (history_at(step, m) ^ G::KEPT_VECTOR));",
    ),
    "history one step short": (
        "geometry",
        "HISTORY = STEPS * KEPT_NUMBERS",
        "HISTORY = (STEPS - 1) * KEPT_NUMBERS",
    ),
    "sums of the step before": (
        "matrix_backward",
        "put_sums(step + 1, done, share);",
        "put_sums(step, done, share);",
    ),
    "sums of one warp alone": ("gradients", "warp < G::WARPS; warp++", "warp < 1; warp++"),
    "half a warp without the sum": (
        "lane",
        "for (int mask = 1; mask < G::LANES; mask *= 2) {",
        "for (int mask = 1; mask < (thread_index() % 32 < 16 ? G::LANES : 1); mask *= 2) {",
    ),
    "copies of a vector too close": (
        "geometry",
        "COPY_STRIDE = STEPS * WIDTH +",
        "COPY_STRIDE = STEPS * WIDTH - 32 +",
    ),
    "state kept a step too late": (
        "matrix_forward",
        "due = pass.a.K;",
        "due = pass.a.K + 1;",
    ),
    "rows of the lanes before": (
        "lane",
        "lane / G::LANES * TALL;",
        "lane / G::LANES * (TALL - 1);",
    ),
    "checkpoint of the segment after": ("matrix_backward", "kept -= a.B", "kept -= 0 * a.B"),
    "gradient one number too far": (
        "gradients",
        "store<V, IO>((IO*)to + numbers, x);",
        "store<V, IO>((IO*)to + numbers + V, x);",
    ),
    "sum over one batch too few": (
        "matrix_finish",
        "batch < a.B; batch++",
        "batch < a.B - 1; batch++",
    ),
    "sum over one slab too few": (
        "matrix_finish",
        "slab < G::SLABS; slab++",
        "slab < G::SLABS - 1; slab++",
    ),
}


@dataclass(frozen=True)
class Mutation:
    """One planted fault.

    Args:
        what: In words.
        file: The source under csrc/cuda, without its suffix.
        text: The whole source with the fault.
        guard: The cell's flag without which the place is not compiled, if it stands behind one.
    """

    what: str
    file: str
    text: str
    guard: str = ""

    def compiled_for(self, plan: str) -> bool:
        """Return whether a plan's kernels contain the place at all."""
        cell, options = PLANS[plan]
        if self.guard == _GROUP_SUM:
            return options.get("z_bias", False) or options.get("decay", "none") != "none"
        return not self.guard or getattr(CELLS[cell], _FLAGS[self.guard])


def mutations() -> list[Mutation]:
    """Return all of them, those of barriers first."""
    folder = source_folder() / "cuda"
    found = []
    for path in sorted(folder.glob("*.cuh")):
        if path.stem in ("device", "raw", "add_norm") or path.stem.startswith("channel"):
            continue
        source = path.read_text()
        for number, match in enumerate(_BARRIER.finditer(source), 1):
            without = source[: match.start()] + ";" + source[match.end() :]
            what = f"{path.stem}: {match[1]} no. {number} left out"
            found.append(Mutation(what, path.stem, without, _guard(source[: match.start()])))
    for what, (file, old, new) in EDITS.items():
        source = (folder / f"{file}.cuh").read_text()
        assert source.count(old) >= 1, what
        found.append(Mutation(f"{file}: {what}", file, source.replace(old, new, 1)))
    return found


def _guard(before: str) -> str:
    """Return what the place after a text needs, to be compiled at all."""
    if re.findall(r"DEVICE \w+ (\w+)\(", before)[-1:] == [_GROUP_SUM]:
        return _GROUP_SUM
    guard = _GUARD.search(before)
    return guard[1] if guard else ""


def outcome(mutation: Mutation | None, plan: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "csrc")
        shutil.copytree(source_folder(), root)
        if mutation:
            (root / "cuda" / f"{mutation.file}.cuh").write_text(mutation.text)
        for geometry in GEOMETRIES:
            said = _in_process(_run, (root, plan, *geometry))
            if said != "-":
                return said
    return "-"


def _in_process(function: Any, arguments: tuple[Any, ...]) -> str:
    """Call a function in a forked process: it may crash or never end."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def call() -> None:
        send.send(function(*arguments))

    process = context.Process(target=call)
    process.start()
    send.close()
    said = "crash"
    # The end of the pipe without a word is a process that died.
    with contextlib.suppress(EOFError):
        said = receive.recv() if receive.poll(120) else "never ends"
    process.kill()
    process.join()
    return said


def _run(root: Path, name: str, lanes: int, tall: int, warps: int) -> str:
    """Run a mutated engine in all orders and compare with the one that is whole."""
    cell, options = PLANS[name]
    # The second geometry has padding: 20 columns on 8 lanes, 20 rows in slabs of 8.
    n = 16 if warps == 1 else 20
    plan = stacked_plan(cell, 2, n, n, **options)
    types = emulator.types_of(plan, torch.float32)
    chosen = replace(geometry_of(plan, types, lanes, warps, 4, tall), helped=warps > 1)
    wanted = _results(plan, chosen, emulator.loaded, 1)
    library = functools.cache(lambda text: _mutated(text, root))
    for seed in SEEDS:
        try:
            found = _results(plan, chosen, library, seed)
        except emulator.FaultError as fault:
            return str(fault)
        except AssertionError as refused:
            return f"does not compile: {str(refused)[:60]}"
        for name, tensor in found.items():
            if not torch.allclose(tensor, wanted[name], rtol=1e-4, atol=1e-5):
                return "wrong numbers"
    return "-"


def _mutated(text: str, root: Path) -> ctypes.CDLL:
    library = root.parent / f"{digest(text.encode())}.so"
    if not library.exists():
        emulator.compile_unit(text, root, library)
    return ctypes.CDLL(str(library))


def _results(plan: Plan, chosen: Geometry, library: Any, seed: int) -> dict[str, Tensor]:
    """Run both passes over the same numbers."""
    generator = torch.Generator().manual_seed(4)
    batch, steps = 2, 10

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def empty(*shape: int) -> Tensor:
        return torch.full(shape, torch.nan)

    ends = [place.start + plan.heads * plan.width(name) for name, place in plan.roles]
    width = max(ends) + -max(ends) % 8
    source = normal(batch, steps, width)
    parameters = [0.5 * normal(*plan.parameter_shape(n)) for n in plan.parameter_names]
    state = (batch, plan.heads, plan.rows, plan.columns)
    out = empty(batch, steps, plan.heads, plan.rows)
    results = {"out": out, "last": empty(*state), "dfirst": empty(*state)}
    results["checkpoints"] = empty(chosen.checkpoint_numbers(batch, steps))
    dsource = torch.zeros(source.shape)
    dparameters = [empty(*p.shape) for p in parameters]
    call = Call(plan, [source], parameters, chosen.steps)
    call.point(first=0.5 * normal(*state), dlast=normal(*state), **results)
    call.point_output_gradient(normal(*out.shape))
    call.point_gradients([dsource], dparameters)
    forward = replace(chosen, steps=6)  # states are kept within a segment, too
    for backward, geometry in enumerate((forward, chosen)):
        emulator.run(library, call, geometry, backward=bool(backward), seed=seed)
    del results["checkpoints"]
    return results | {"dsource": dsource} | {f"d{i}": p for i, p in enumerate(dparameters)}


def main() -> int:
    """Print how every fault was noticed; 1 if one was not."""
    missed = 0
    for plan, mutation in itertools.product(sys.argv[1:] or ["e88"], mutations()):
        if not mutation.compiled_for(plan):
            continue
        said = outcome(mutation, plan)
        missed += said == "-"
        print(f"{plan:10} {mutation.what:60} {said}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
