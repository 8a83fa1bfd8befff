"""Times of the matrix-state kernels with other tile configurations than the chosen ones.

The heuristics of the matrix-state engine's CUDA folder come from these times.

    python tools/gpu/run.py tile_configs [forward] [backward] [--only "E88 h32n16,E70 n64"]

``--only`` takes names of the configurations that ``kernels`` times, or others as "delta h24 n48":
cell, heads, rows and columns. The rows of a configuration stand from the fastest to the slowest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from elman.kernels.driver import device_limits
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import tile_config_of
from elman.ops.matrix_state.cuda.tile_config import TileConfig
from elman.ops.matrix_state.stacked import DELTA, E70, E75
from tools.gpu.job import Check, Job, Row
from tools.gpu.kernels import (
    BATCH,
    TIMED,
    Timed,
    compile_units,
    inputs_of,
    passes,
    replayed_us,
    shape,
    unit_of,
)

_OPTIONS: dict[str, dict[str, Any]] = {"delta": DELTA, "decayed": E70, "row_gated_delta": E75}


def case_of(name: str) -> Timed:
    """Return the configuration of a name, or of any cell and size, for which no floor is known."""
    for case in TIMED:
        if case.name == name:
            return case
    cell, heads, size = name.split()
    numbers = (int(heads.removeprefix("h")), int(size.removeprefix("n")))
    return Timed(name, cell, *numbers, _OPTIONS[cell], math.nan, math.nan)


def sweep(job: Job, *, backward: bool) -> None:
    """Time a pass of every configuration with many tile configs; report the fastest first."""
    cases = [case_of(name) for name in job.only or [case.name for case in TIMED]]
    tried = [(c, chosen) for c in cases for chosen in alternatives(c, backward=backward)]
    compile_units({unit_of(chosen, backward, fast=True) for _, chosen in tried})
    for case in cases:
        rows = [try_tile_config(case, one, backward) for other, one in tried if other is case]
        for row in sorted(rows, key=lambda row: float(row.get("us", math.inf))):
            job.report(row)


def try_tile_config(case: Timed, chosen: TileConfig, backward: bool) -> Row:
    """Time a pass with a tile config."""
    bytes_ = chosen.backward_bytes if backward else chosen.forward_bytes
    floor = case.backward_floor if backward else case.forward_floor
    row: Row = {"name": case.name}
    row |= {"tile config": f"{shape(chosen)} K{chosen.steps}", "bytes": bytes_}
    try:
        # A forward pass keeps states as often as the backward pass of the engine's choice wants.
        kept = chosen if backward else passes(case.plan, BATCH, torch.bfloat16)[True]
        row["us"] = round(replayed_us(inputs_of(kept), chosen, backward=backward), 1)
        if not math.isnan(floor):
            row["over_floor"] = round(row["us"] / floor, 2)
    except Exception as error:
        row |= {"error": repr(error), "passed": False}
    return row


def alternatives(case: Timed, *, backward: bool) -> Iterator[TileConfig]:
    """Yield tile configs of a pass that fit the GPU and keep it busy."""
    for chosen in all_tile_configs(case):
        threads = BATCH * case.heads * chosen.row_tiles * chosen.threads
        shared = device_limits(0).shared_bytes
        short = not backward and chosen.steps < 16
        if short or chosen.warps > 16 or not 8_000 <= threads <= 300_000:
            continue
        ways = producer_ways(chosen, backward=backward) if threads <= 100_000 else []
        long = backward and chosen.steps > 16  # without producer warps states are kept more often
        for one in ways if long else [chosen, *ways]:
            if (one.backward_bytes if backward else one.shares * one.forward_bytes) <= shared:
                yield one


def producer_ways(chosen: TileConfig, *, backward: bool) -> list[TileConfig]:
    """Return a tile config with producer warps, in the forward pass with blocks that share one."""
    if backward:
        return [replace(chosen, producers=True)] if chosen.warps <= 10 else []
    ways = [replace(chosen, producers=True, shares=shares) for shares in (1, 2, 4)]
    return [one for one in ways if one.shares == 1 or one.shares * one.warps <= 4]


def all_tile_configs(case: Timed) -> Iterator[TileConfig]:
    """Yield tile configs of a plan."""
    plan, found = case.plan, kernels.types(case.plan, torch.bfloat16)
    for lanes, tall, steps in itertools.product((1, 2, 4, 8, 16), (1, 2, 3, 4), (8, 12, 16, 32)):
        whole = -(-plan.rows // (32 // lanes * tall))
        for row_tiles in {1, 2, 4, 8} & set(range(1, whole + 1)):
            chosen = tile_config_of(plan, found, lanes, -(-whole // row_tiles), steps, tall)
            piece = chosen.columns * tall
            if 2 <= chosen.columns <= 32 and 4 <= piece <= 64:
                yield chosen


CHECK = Check(
    {"forward": partial(sweep, backward=False), "backward": partial(sweep, backward=True)}
)
