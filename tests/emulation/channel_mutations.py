"""Faults planted in the channel engine's CUDA sources, and whether the emulation notices.

    python -m tests.emulation.channel_mutations

Shape legend: b batch, t time, c channels.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from elman.kernels.sources import source_folder
from elman.ops.channel.abi import pointers, sequence
from elman.ops.channel.cuda import kernels
from elman.ops.channel.cuda.tile_config import Tuning
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS
from elman.ops.common.slices import Slice
from tests.emulation import channel_emulator, emulator
from tests.emulation.mutations import _in_process, _mutated, noticed, refusal

C = 37
PLAN = Plan(
    "e74_state_tanh",
    (("key", Slice(0, 0)), ("value", Slice(0, 40))),
    unit="key",
    query=Slice(0, 80),
    self_gate=True,
)
# A step with a norm over the channels, whose kernels have a block for every sequence.
ROWS = replace(PLAN, step="e74_state_rmsnorm")
SHORT = Tuning(steps=8, stages=3, warps=2)
# Sources that lie evenly, and numbers of two bytes that begin in the middle of a word.
CASES = {"even": (torch.float32, 0), "odd": (torch.bfloat16, 1)}
# File, old text, new text.
EDITS = {
    "wait left out": ("tiles", "wait_copies<STAGES - 2>();", ";"),
    "wait for one tile less": ("tiles", "<STAGES - 2>", "<STAGES - 1>"),
    "barrier left out": ("tiles", "sync_warp();", ";"),
    "copies into the tile in use": (
        "tiles",
        "fetch();\n    used = next(used);",
        "used = next(used);\n    filled = used;\n    fetch();",
    ),
    "one step too few": ("tiles", "step + row >= steps", "step + row + 1 >= steps"),
    "from the next step": ("tiles", "cursors[role] + step", "cursors[role] + (step + 1)"),
    "from the next step, whole": ("tiles", "+ step * stride)", "+ (step + 1) * stride)"),
    "row too short": ("tiles", "(32 + SHIFTS) * NUMBER", "31 * NUMBER"),
    "one number too few": (
        "tiles",
        "numbers * G::NUMBER",
        "(numbers - 1) * G::NUMBER",
    ),
    "shift left out": ("tiles", "at += (shift[role]", "at += 0 * (shift[role]"),
    "scale of the step after": ("tiles", "(from) + step)", "(from) + step + 1)"),
    "scales of the first tile": ("tiles", "scales += BACKWARD", "scales += 0 * BACKWARD"),
    "neighbour's number": ("tiles", "int at = lane;", "int at = lane ^ 1;"),
    "lane without a channel writes": ("passes", "if (!exists) {", "if (false) {"),
    "lane without a channel reads a parameter": (
        "passes",
        "return exists && from ? load_one",
        "return from ? load_one",
    ),
    "lane without a channel writes a state": ("passes", "if (exists) store_one", "store_one"),
    "lane without a channel sums a parameter": (
        "passes",
        "if (index >= parameters * a.channels) return;",
        "",
    ),
    "row of norms that is not there": ("unit", "  if (unit.exists()) {\n", "  {\n"),
    "row of norms that is written": (
        "unit",
        "if (!unit.exists() || unit.lane) return;",
        "if (unit.lane) return;",
    ),
    "checkpoint of the segment after": (
        "passes",
        "next_checkpoint -= a.channels",
        "next_checkpoint -= 0 * a.channels",
    ),
    "outputs of one step": ("passes", "at += stride;", "at += 0 * stride;"),
    "sum over one batch too few": ("passes", "b < a.batch; b++", "b < a.batch - 1; b++"),
    "norm of all lanes but one": ("unit", "mask < 32", "mask < 16"),
    "reset of the step after": ("tiles", "mask >> u & 1", "mask >> (u + 1) & 1"),
    "reset of the segment in front": (
        "tiles",
        "look(segment + (BACKWARD ? -1 : 1));",
        "look(segment);",
    ),
    "reset of the row after": ("tiles", "a.resets + batch", "a.resets + (batch + 1)"),
    "resets beyond the last step": ("tiles", "segment >= 0 && t < steps;", "segment >= 0;"),
    "resets before the first step": ("tiles", "segment >= 0 && t < steps;", "t < steps;"),
    "resets of half the lanes": ("tiles", "lanes < 32; lanes", "lanes < 2; lanes"),
    "state crosses a reset": ("passes", "c.h = resets.across(step, h);", "c.h = h;"),
    "gradient crosses a reset": ("passes", "lane.resets.across(u, d.h)", "d.h"),
    "resets of a segment left out": ("passes", "lane.resets.enter(segment);", ";"),
    "resets of a segment back left out": (
        "passes",
        "lane.resets.enter(segment);\n      h[0]",
        "h[0]",
    ),
    "rows: state crosses a reset": ("rows", "resets.across((int)(t % G::STEPS), old)", "old"),
    "rows: gradient crosses a reset": (
        "rows",
        "row.resets.across((int)(t % STEPS), d.h)",
        "d.h",
    ),
    "rows: resets of a segment left out": ("rows", "row.resets.enter(t / G::STEPS);", ";"),
    "rows: resets of a segment back left out": (
        "rows",
        "row.resets.enter(walk.segment);",
        ";",
    ),
    "rows: wait left out": ("rows", "wait_copies<STAGES - 3>();", ";"),
    "rows: wait for one row less": ("rows", "<STAGES - 3>", "<STAGES - 2>"),
    "rows: first wait left out": ("rows", "wait_copies<STAGES - 2>();", ";"),
    "rows: first barrier left out": ("rows", "sync_block();", ";"),
    "rows: barrier of the sum left out": ("rows", "sync_block();\n    fetch();", "fetch();"),
    "rows: copies before the barrier": (
        "rows",
        "sync_block();\n    fetch();",
        "fetch();\n    sync_block();",
    ),
    "rows: sums in one place": ("rows", "turn ^= 1;", ";"),
    "rows: sum of half the lanes": ("rows", "mask < 32", "mask < 16"),
    "rows: sum without the last warp": ("rows", "lane < G::WARPS", "lane < G::WARPS - 1"),
    "rows: one number too few": ("rows", "bytes - at < UNIT", "bytes - at <= UNIT && false"),
    "rows: shift left out": ("rows", "(channel + shift)", "(channel + 0 * shift)"),
    "rows: thread without a channel writes": ("rows", "if (exists(k)) store_one", "store_one"),
    "rows: thread without a channel reads": ("rows", "exists(k) && rows", "rows"),
    "rows: thread without an output writes": ("rows", "if (!row.exists(k)) continue;", ""),
    "rows: states of a segment in one place": (
        "rows",
        "states, row.ring.batch * STEPS + u",
        "states, row.ring.batch * STEPS",
    ),
    "rows: norm of the next step": (
        "rows",
        "load_one(norms + 2 * u)",
        "load_one(norms + 2 * u + 2)",
    ),
    "rows: gradient of the norm left out": ("rows", " - row.h[k] * along", ""),
    "rows: state of the step after": ("rows", "row.h[k] = old[k];", ""),
    "rows: checkpoint of the segment after": (
        "rows",
        "a.checkpoints, batch * segments + walk.segment",
        "a.checkpoints, batch * segments + walk.segment + (walk.segment + 1 < segments)",
    ),
}
# One fault of each kind, which are planted in every run.
QUICK = (
    "wait left out",
    "barrier left out",
    "copies into the tile in use",
    "shift left out",
    "neighbour's number",
    "lane without a channel writes",
    "checkpoint of the segment after",
    "sum over one batch too few",
    "norm of all lanes but one",
    "reset of the step after",
    "state crosses a reset",
    "rows: wait left out",
    "rows: barrier of the sum left out",
    "rows: gradient crosses a reset",
    "rows: thread without a channel writes",
)


def outcome(what: str | None) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "csrc")
        shutil.copytree(source_folder(), root)
        if what is not None:
            file, old, new = EDITS[what]
            path = root / "cuda/channel" / f"{file}.cuh"
            text = path.read_text()
            assert old in text, what
            path.write_text(text.replace(old, new, 1))
        plans = [PLAN, ROWS] if what is None else [ROWS if EDITS[what][0] == "rows" else PLAN]
        for plan, case in itertools.product(plans, CASES):
            said = _in_process(_run, (root, case, plan))
            if said != "-":
                return str(said)
    return "-"


def _run(root: Path, case: str, plan: Plan) -> str:
    """Run a mutated engine and compare with the one that is whole."""
    wanted = _results(case, emulator.loaded, plan)
    try:
        found = _results(case, functools.partial(_mutated, root=root), plan)
    except emulator.FaultError as fault:
        return str(fault)
    except AssertionError as refused:
        return refusal(refused)
    same = all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    return "-" if same else "wrong numbers"


def _results(case: str, library: Callable[[str], ctypes.CDLL], plan: Plan = PLAN) -> list[Tensor]:
    """Run both passes over the same numbers; what is written by nobody is 9."""
    dtype, start = CASES[case]
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    batch, steps = 3, 37  # rows of norms that are no multiple of the warps
    source = normal(batch, steps, 120 + 8).to(dtype)[..., start : start + 120]
    parameters = [normal(C) for _ in CELLS[plan.step].parameters]
    made = {
        name: torch.full(shape, 9.0)
        for name, shape in {
            "checkpoints": (batch, math.ceil(steps / SHORT.steps), C),
            "last": (batch, C),
            "dfirst": (batch, C),
            "workspace": (batch * (32 + 2 * C + steps * (2 + C) + SHORT.steps * C),),
        }.items()
    }
    first = normal(batch, C)
    # In every part of the time, at the borders of the segments too; none in the last row.
    resets_bt = torch.zeros(batch, steps, dtype=torch.bool)
    resets_bt[0, ::5] = resets_bt[1, 7:10] = resets_bt[1, 36] = True
    call = kernels._Call(plan, [source], parameters, first, resets_bt)
    call.point(first=call.like, dlast=normal(batch, C), **made)
    call.args.segment = SHORT.steps
    y, dsource = (torch.full((batch, steps, width), 9.0, dtype=dtype) for width in (40, 120))
    dparameters = [torch.full((C,), 9.0) for _ in parameters]
    dy = normal(batch, steps, 40).to(dtype)
    call.args.y, call.args.dy = sequence(y), sequence(dy)
    call.args.dp = pointers(dparameters)
    for slot, place in enumerate(plan.slices()):
        call.args.dx[slot] = sequence(dsource, place.start)
    for backward in (False, True):
        _run_pass(call, backward, library)
    return [y, dsource, *dparameters, made["last"], made["dfirst"]]


def _run_pass(call: kernels._Call, backward: bool, library: Callable[[str], ctypes.CDLL]) -> None:
    unit = call.tile_config(backward=backward).unit
    tile_config = kernels.tile_config_for(
        call.plan, call.dtype, torch.float32, SHORT, unit, C, resets=True
    )
    launches = kernels.launches(tile_config, call.args, backward)
    channel_emulator.run(library, tile_config, launches, call.args)


def main() -> int:
    """Print how every fault was noticed; 1 if one was not."""
    said = {what: outcome(what) for what in EDITS}
    for what, how in said.items():
        print(f"{what:40} {how}")
    return int(not all(map(noticed, said.values())))


if __name__ == "__main__":
    sys.exit(main())
