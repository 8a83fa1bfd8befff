"""Times the matrix-state kernels on a GPU with other tile configurations than the chosen ones.

The heuristics of the matrix-state engine's CUDA folder come from these times. Needs the same
packages as gpu_kernels.py.

    python tools/gpu/gpu_tile_configs.py --out DIR [--plans "E88 h32n16,E70 n64"] [--passes forward]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_kernels import (  # type: ignore[import-not-found]
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

from elman.kernels.driver import device_limits
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.cuda.heuristics import tile_config_of
from elman.ops.matrix_state.cuda.tile_config import TileConfig
from elman.ops.matrix_state.stacked import DELTA, E70, E75


def main() -> int:
    """Time tile configs, write ``gpu_tile_configs.json``, print the five fastest of each pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plans", default=",".join(case.name for case in TIMED), help=_PLANS)
    parser.add_argument("--passes", default="forward,backward")
    given = parser.parse_args()
    passes = [name == "backward" for name in given.passes.split(",")]
    given.out.mkdir(parents=True, exist_ok=True)
    rows = sweep([case_of(name) for name in given.plans.split(",")], passes)
    (given.out / "gpu_tile_configs.json").write_text(json.dumps(rows, indent=1) + "\n")
    rows.sort(key=lambda row: (row["name"], row["pass"], row.get("us", float("inf"))))
    for _, group in itertools.groupby(rows, key=lambda row: (row["name"], row["pass"])):
        for row in itertools.islice(group, 5):
            print(" ".join(f"{key}={value}" for key, value in row.items()))
    return int(any("error" in row for row in rows))


_PLANS = "names of gpu_kernels.py, or others as 'delta h24 n48': cell, heads, rows and columns"
_OPTIONS = {"delta": DELTA, "decayed": E70, "row_gated_delta": E75}


def case_of(name: str) -> Timed:
    """Return the configuration of a name, or of any cell and size, for which no floor is known."""
    for case in TIMED:
        if case.name == name:
            return case
    cell, heads, size = name.split()
    numbers = (int(heads.removeprefix("h")), int(size.removeprefix("n")))
    return Timed(name, cell, *numbers, _OPTIONS[cell], math.nan, math.nan)


def sweep(cases: Sequence[Timed], passes: Sequence[bool]) -> list[dict[str, Any]]:
    """Time every configuration's passes (True: backward) with many tile configs."""
    tried = [
        (case, chosen, backward)
        for case, backward in itertools.product(cases, passes)
        for chosen in alternatives(case, backward=backward)
    ]
    compile_units({unit_of(chosen, backward, fast=True) for _, chosen, backward in tried})
    return [try_tile_config(*one) for one in tried]


def try_tile_config(case: Timed, chosen: TileConfig, backward: bool) -> dict[str, Any]:
    """Time a pass with a tile config."""
    bytes_ = chosen.backward_bytes if backward else chosen.forward_bytes
    floor = case.backward_floor if backward else case.forward_floor
    row: dict[str, Any] = {"name": case.name, "pass": "backward" if backward else "forward"}
    row |= {"tile config": f"{shape(chosen)} K{chosen.steps}", "bytes": bytes_}
    try:
        # A forward pass keeps states as often as the backward pass of the engine's choice wants.
        kept = chosen if backward else passes(case.plan, BATCH, torch.bfloat16)[True]
        row["us"] = round(replayed_us(inputs_of(kept), chosen, backward=backward), 1)
        if not math.isnan(floor):
            row["over_floor"] = round(row["us"] / floor, 2)
    except Exception as error:
        row["error"] = repr(error)
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


if __name__ == "__main__":
    sys.exit(main())
