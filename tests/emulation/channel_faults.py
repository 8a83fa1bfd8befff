"""Faults planted in the channel engine's CUDA sources.

Shape legend: b batch, t time, c channels.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from elman.ops.channel.abi import pointers, sequence
from elman.ops.channel.cuda import kernels
from elman.ops.channel.cuda.tile_config import Tuning
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS
from elman.ops.common.slices import Slice
from tests.emulation import channel_emulator, emulator
from tests.emulation.faults import (
    BARRIER,
    BUFFER,
    INDEX,
    RESET,
    SUM,
    TAIL,
    Engine,
    Fault,
    faults_in,
    in_process,
    library_over,
    planted,
    verdict,
)

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
# The source, old text, new text.
FAULTS = {
    BARRIER: {
        "wait left out": ("tiles", "wait_copies<STAGES - 2>();", ";"),
        "barrier left out": ("tiles", "sync_warp();", ";"),
        "rows: barrier of the sum left out": ("rows", "sync_block();\n    fetch();", "fetch();"),
        "rows: wait left out": ("rows", "wait_copies<STAGES - 3>();", ";"),
        "rows: copies before the barrier": (
            "rows",
            "sync_block();\n    fetch();",
            "fetch();\n    sync_block();",
        ),
    },
    BUFFER: {
        "copies into the tile in use": (
            "tiles",
            "fetch();\n    used = next(used);",
            "used = next(used);\n    filled = used;\n    fetch();",
        ),
        "row too short": ("tiles", "(32 + SHIFTS) * NUMBER", "31 * NUMBER"),
        "rows: sums in one place": ("rows", "turn ^= 1;", ";"),
        "rows: states of a segment in one place": (
            "rows",
            "states, row.ring.batch * STEPS + u",
            "states, row.ring.batch * STEPS",
        ),
    },
    INDEX: {
        "neighbour's number": ("tiles", "int at = lane;", "int at = lane ^ 1;"),
        "checkpoint of the segment after": (
            "passes",
            "next_checkpoint -= a.channels",
            "next_checkpoint -= 0 * a.channels",
        ),
        "scale of the step after": ("tiles", "(from) + step)", "(from) + step + 1)"),
        "shift left out": ("tiles", "at += (shift[role]", "at += 0 * (shift[role]"),
        "rows: norm of the next step": (
            "rows",
            "load_one(norms + 2 * u)",
            "load_one(norms + 2 * u + 2)",
        ),
    },
    SUM: {
        "sum over one batch too few": ("passes", "b < a.batch; b++", "b < a.batch - 1; b++"),
        "norm of all lanes but one": ("unit", "mask < 32", "mask < 16"),
        "rows: sum without the last warp": ("rows", "lane < G::WARPS", "lane < G::WARPS - 1"),
        "rows: gradient of the norm left out": ("rows", " - row.h[k] * along", ""),
    },
    TAIL: {
        "rows: thread without a channel writes": ("rows", "if (exists(k)) store_one", "store_one"),
        "lane without a channel writes": ("passes", "if (!exists) {", "if (false) {"),
        "one step too few": ("tiles", "step + row >= steps", "step + row + 1 >= steps"),
        "lane without a channel reads a parameter": (
            "passes",
            "return exists && from ? load_one",
            "return from ? load_one",
        ),
        "row of norms that is not there": ("unit", "  if (unit.exists()) {\n", "  {\n"),
    },
    RESET: {
        "state crosses a reset": ("passes", "c.h = resets.across(step, h);", "c.h = h;"),
        "reset of the step after": ("tiles", "mask >> u & 1", "mask >> (u + 1) & 1"),
        "gradient crosses a reset": ("passes", "lane.resets.across(u, d.h)", "d.h"),
        "rows: gradient crosses a reset": (
            "rows",
            "row.resets.across((int)(t % STEPS), d.h)",
            "d.h",
        ),
        "resets beyond the last step": ("tiles", "segment >= 0 && t < steps;", "segment >= 0;"),
    },
}


def outcome(fault: Fault) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    plan = ROWS if Path(fault.file).stem == "rows" else PLAN
    with planted(fault) as root:
        for case in CASES:
            said = in_process(_run, root, case, plan)
            if said != "-":
                return said
    return "-"


def _run(root: Path, case: str, plan: Plan) -> str:
    """Run a mutated engine and compare with the one that is whole."""
    whole = results(case, emulator.loaded, plan)

    def same() -> bool:
        found = results(case, functools.partial(library_over, root=root), plan)
        return all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))

    return verdict(same)


def results(case: str, library: Callable[[str], ctypes.CDLL], plan: Plan = PLAN) -> list[Tensor]:
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
    call = kernels._KernelCall(plan, [source], parameters, first, resets_bt)
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


def _run_pass(
    call: kernels._KernelCall, backward: bool, library: Callable[[str], ctypes.CDLL]
) -> None:
    unit = call.tile_config(backward=backward).unit
    tile_config = kernels.tile_config_for(
        call.plan, call.dtype, torch.float32, SHORT, unit, C, resets=True
    )
    launches = kernels.launches(tile_config, call.args, backward)
    channel_emulator.run(library, tile_config, launches, call.args)


ENGINES = {"channel": Engine(faults_in("cuda/channel", FAULTS), outcome)}
