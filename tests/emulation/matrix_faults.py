"""Faults planted in the matrix-state engine's CUDA kernels.

Every barrier and every wait is left out once, and the rest is below.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.kernels.sources import source_folder
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda.heuristics import tile_config_of
from elman.ops.matrix_state.stacked import DELTA, E70, E75, stacked_plan
from tests.emulation import emulator
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
    left_out,
    library_over,
    planted,
    verdict,
)

FOLDER = "cuda/matrix_state"
PLANS = {
    "e88": ("delta", {**DELTA, "gate_act": "sigmoid", "gate_bias": True, "residual": True}),
    "e70": ("decayed", E70),
    "e73-full": (
        "full_gated_sigmoid",
        {"z_act": "sigmoid", "z_bias": True, "k_unit": True, "self_gate": True},
    ),
    "e75": ("row_gated_delta", E75),
}


@dataclass(frozen=True)
class Case:
    """What the kernels are run with.

    Args:
        lanes: Lanes to a row.
        tall: Rows of a lane.
        warps: Warps of a block; with more than one there are producer warps.
        n: Rows and columns of a state.
        batch: B.
        time: T.
    """

    lanes: int
    tall: int
    warps: int
    n: int
    batch: int
    time: int


# First what notices most faults, as each case is compiled for itself: several row tiles of two
# warps with padding and producer warps, over five segments, where every set of inputs and every
# buffer is used again. Then a warp alone with halves in order, and six rows to a warp.
CASES = (Case(8, 1, 2, 20, 1, 53), Case(4, 2, 1, 16, 2, 35), Case(16, 3, 2, 20, 1, 19))
SHORT = 7  # steps, of a sequence without kept states
# Of a segment. Steps are taken eight at once, so that both loops over them run; states are kept
# within a segment of the forward pass.
FORWARD_STEPS, BACKWARD_STEPS = 12, 10
SEEDS = (1, 2, 3)
_BARRIER = re.compile(
    r"\b(sync<G>\(\)|sync_(?:warp|block)\(\)|relay\.meet\(.*\)|crew\.meet\(\)|"
    r"(?:(?:relay|handover)\.)?(?:walked|prepared|recomputed)\.\w+\(.*\)|"
    r"signals_ready\(\)|commit_copies\(\)|wait_copies<0>\(\));"
)
# Of these, one is left out in every run.
_OFTEN = ("sync<G>()", "wait", "arrive", "wait_copies<0>()")
# The source, old text, new text.
FAULTS = {
    BARRIER: {
        "producers arrive before they have prepared": (
            "forward",
            """      if (round < segments) in.prepare(round * G::STEPS, buffer(round));
      if (round >= 2) write_outputs(output, y + (second ? READS : 0), round - 2);
      wait_copies<0>();
      if (round <= segments) relay.meet((unsigned)round + 1);
""",
            """      wait_copies<0>();
      if (round <= segments) relay.meet((unsigned)round + 1);
      if (round < segments) in.prepare(round * G::STEPS, buffer(round));
      if (round >= 2) write_outputs(output, y + (second ? READS : 0), round - 2);
""",
        ),
        "walkers walk before they wait": (
            "forward",
            """      relay.prepared.wait((unsigned)segment + 1);
      walk.run(segment, y + (second ? READS : 0));
""",
            """      walk.run(segment, y + (second ? READS : 0));
      relay.prepared.wait((unsigned)segment + 1);
""",
        ),
        "walkers start before they wait": (
            "backward",
            """      handover.recomputed.wait(round);
      walk.start(segment.length);
""",
            """      walk.start(segment.length);
      handover.recomputed.wait(round);
""",
        ),
        "walkers wait for the turn before": (
            "forward",
            "relay.prepared.wait((unsigned)segment + 1);",
            "relay.prepared.wait((unsigned)segment);",
        ),
        "walkers wait for the turn after": (
            "forward",
            "relay.prepared.wait((unsigned)segment + 1);",
            "relay.prepared.wait((unsigned)segment + 2);",
        ),
    },
    BUFFER: {
        "copies into the buffer in use": (
            "forward",
            "in.staging.fetch(length(round + 1), buffer(round + 1));",
            "in.staging.fetch(length(round + 1), buffer(round));",
        ),
        "one buffer too few": ("tile_config", "? 4 : 2;", "? 3 : 2;"),
        "state copied while it is walked": (
            "backward",
            """      if (round) handover.walked.wait(round - 1);
      recompute.copy_start(index - 1);
""",
            """      recompute.copy_start(index - 1);
      if (round) handover.walked.wait(round - 1);
""",
        ),
        "history one step short": (
            "tile_config",
            "HISTORY = (STEPS +",
            "HISTORY = (STEPS - 1 +",
        ),
        "two warps' parts on the same numbers": (
            "tile_config",
            "/ WARP_ROWS * WARP_PARTS",
            "/ WARP_ROWS * 0",
        ),
    },
    INDEX: {
        "history of the next thread": (
            "trail",
            "Checkpoint>(vector, history + history_at(step, m));",
            "Checkpoint>(vector, history + (history_at(step, m) ^ G::HISTORY_VECTOR));",
        ),
        "rows of v from the next step": ("step", "(v, in.v, step);", "(v, in.v, step + 1);"),
        "row of the raw inputs + 1": (
            "smem_staging",
            "+ step * G::row_bytes(ROLE);",
            "+ (step + 1) * G::row_bytes(ROLE);",
        ),
        "parts of the row beside": ("step", "G::part_at(row + e)", "G::part_at(row + (e ^ 1))"),
        "checkpoint of the segment after": (
            "recompute",
            "next_checkpoint -= trail.a.B",
            "next_checkpoint -= 0 * trail.a.B",
        ),
    },
    SUM: {
        "sums of one warp alone": ("gradients", "warp < G::WARPS; warp++", "warp < 1; warp++"),
        "half a warp without the sum": (
            "lane",
            "for (int mask = 1; mask < G::LANES; mask *= 2) {",
            "for (int mask = 1; mask < (thread_index() % 32 < 16 ? G::LANES : 1); mask *= 2) {",
        ),
        "sums of the step before": (
            "walk_back",
            "put_sums(step + 1, done, share);",
            "put_sums(step, done, share);",
        ),
        "sum over one batch too few": (
            "finish",
            "batch < a.B; batch++",
            "batch < a.B - 1; batch++",
        ),
    },
    TAIL: {
        "one step too many": (
            "step",
            "for (; step < to; step++) advance_to(step);",
            "for (; step <= to; step++) advance_to(step);",
        ),
        "no steps but whole eights": (
            "step",
            "for (; step < to; step++) advance_to(step);",
            "step = to;",
        ),
        "copies one step too many": (
            "smem_staging",
            "if (step < length) {",
            "if (step <= length) {",
        ),
        "state of rows that are not there": (
            "lane",
            "if (live && inside(m)) elman::load<V, T>",
            "if (inside(m)) elman::load<V, T>",
        ),
        "gradients of rows that are not there": (
            "gradients",
            "if (first >= rows_here<G>(at)) continue;",
            "",
        ),
    },
    RESET: {
        "reset of the next step": ("resets", "bits >> step & 1", "bits >> (step + 1) & 1"),
        "state across a reset": ("step", "if (visitor.starts(step)) clear_state<G>(S);", ";"),
        "gradient across a reset": (
            "walk_back",
            "clear_state<G>(dS);\n      trail.recall(step, S);",
            "trail.recall(step, S);",
        ),
        "mask behind its end": ("resets", " && t0 + step < a.T", ""),
        "mask of the first row": ("resets", "at.batch * a.T + t0", "t0"),
    },
}


def _barriers() -> list[Fault]:
    found, seen = [], set()
    for path in sorted((source_folder() / FOLDER).glob("*.cuh")):
        if path.stem in ("smem_staging", "slots"):  # E63m's slots have faults of their own
            continue
        for what, text in left_out(_BARRIER, f"{FOLDER}/{path.name}"):
            kind = next((kind for kind in _OFTEN if kind in what), "")
            often = bool(kind) and kind not in seen
            seen.add(kind)
            found.append(Fault(what, BARRIER, f"{FOLDER}/{path.name}", text, first=often))
    return found


def outcome(fault: Fault, plan: str = "e88") -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    resets = fault.mechanism == RESET
    with planted(fault) as root:
        for case in CASES:
            for time in (case.time, SHORT):
                _whole(plan, case, time, resets)  # here, so that every process has them
            said = in_process(_run, root, plan, case, resets)
            if said != "-":
                return said
    return "-"


def _run(root: Path, name: str, case: Case, resets: bool) -> str:
    """Run a mutated engine in all orders and compare with the one that is whole."""
    library = functools.cache(functools.partial(library_over, root=root))

    def same() -> bool:
        return all(
            torch.allclose(tensor, right, rtol=1e-4, atol=1e-5)
            for seed, time in [*((seed, case.time) for seed in SEEDS), (1, SHORT)]
            for tensor, right in zip(
                results(name, case, time, library, seed, resets=resets),
                _whole(name, case, time, resets),
                strict=True,
            )
        )

    return verdict(same)


@functools.cache
def _whole(name: str, case: Case, time: int, resets: bool) -> list[Tensor]:
    """Return the results of the engine that is whole; nobody writes to them."""
    return results(name, case, time, emulator.loaded, 1, resets=resets)


def _mask(batch: int, time: int) -> Tensor:
    """Return resets within segments of ten steps and on either side of their boundaries."""
    places = torch.arange(time) + 2 * torch.arange(batch).unsqueeze(1)
    return torch.isin(places % BACKWARD_STEPS, torch.tensor([0, 4, 9]))


def _framed(tensor: Tensor, frame: int) -> Tensor:
    """Return a copy with so many NaN around it in memory: what is read beside it is then seen."""
    room = torch.full((tensor.numel() + 2 * frame,), torch.nan)
    return room[frame : frame + tensor.numel()].view(tensor.shape).copy_(tensor)


def results(
    name: str,
    case: Case,
    time: int,
    library: Any,
    seed: int,
    frame: int = 1024,
    *,
    resets: bool = False,
) -> list[Tensor]:
    """Run both passes over the same numbers; return outputs and gradients."""
    cell, options = PLANS[name]
    plan = stacked_plan(cell, 2, case.n, case.n, **options)
    types = emulator.types_of(plan, torch.float32)
    chosen = tile_config_of(plan, types, case.lanes, case.warps, BACKWARD_STEPS, case.tall)
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return _framed(scale * torch.randn(*shape, generator=generator), frame)

    def empty(*shape: int) -> Tensor:
        return _framed(torch.full(shape, torch.nan), frame)

    ends = [place.start + plan.heads * plan.width(name) for name, place in plan.roles]
    source = normal(case.batch, time, max(ends) + -max(ends) % 8)
    parameters = [normal(*plan.parameter_shape(n), scale=0.5) for n in plan.parameter_names]
    state = (case.batch, plan.heads, plan.rows, plan.columns)
    made = {"out": empty(case.batch, time, plan.heads, plan.rows)}
    made |= {"last": empty(*state), "dfirst": empty(*state)}
    checkpoints = empty(chosen.checkpoint_numbers(case.batch, time))
    dsource = torch.zeros(source.shape)
    dparameters = [empty(*p.shape) for p in parameters]
    call = Call(plan, [source], parameters, chosen.steps)
    first, dlast = normal(*state, scale=0.5), normal(*state)
    call.point(first=first, dlast=dlast, checkpoints=checkpoints, **made)
    call.point_output_gradient(normal(*made["out"].shape))
    call.point_gradients([dsource], dparameters)
    if resets:
        call.point_resets(_mask(case.batch, time))
    chosen = replace(chosen, producers=case.warps > 1)
    forward = replace(chosen, steps=FORWARD_STEPS)
    for backward, tile_config in enumerate((forward, chosen)):
        emulator.run(library, call, tile_config, backward=bool(backward), seed=seed)
    return [*made.values(), dsource, *dparameters]


ENGINES = {"matrix": Engine(_barriers() + faults_in(FOLDER, FAULTS), outcome)}
