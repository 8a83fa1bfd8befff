"""Faults planted in the dense and tape engines' stepwise CUDA kernels."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from elman.ops.dense.cuda import stepwise as dense_stepwise
from elman.ops.tape.cuda import stepwise as tape_stepwise
from tests.emulation import dense_emulator, emulator, tape_emulator
from tests.emulation.faults import (
    BARRIER,
    BUFFER,
    INDEX,
    RESET,
    SUM,
    TAIL,
    Engine,
    Fault,
    Table,
    faults_of,
    library_over,
    outcome,
    verdict,
)
from tests.ops import recurrent

# The case is a step and a size.
DENSE = {
    BARRIER: {
        "the barrier of a row's sum is left out": (
            "    sync_block();\n    x = A(0);",
            "    x = A(0);",
            "normalized",
            "one-thread",
        ),
    },
    BUFFER: {
        "the scale's gradient is added to what was there": (
            "if (a.step + 1 < a.steps) add(dscale",
            "add(dscale",
            "normalized_scalar",
            "one-thread",
        ),
        "the update gate is not kept for the second kernel": (
            "store<V, A>(row<A>(a.between, ch), m[0]);",
            "",
            "gru",
            "one-thread",
        ),
    },
    INDEX: {
        "gates of another row": (
            "((b * a.steps + t) * MEMO + k)",
            "((t * a.batch + b) * MEMO + k)",
            "lstm",
            "one-thread",
        ),
        "c of the step itself instead of the one before": (
            "memo(a.step - 1, MEMO - KEPT + k, ch)",
            "memo(a.step, MEMO - KEPT + k, ch)",
            "lstm",
            "one-thread",
        ),
        "heads of a row lie side by side for the product": (
            "row += ch / a.head * a.batch, wide",
            "row = row * (a.channels / a.head) + ch / a.head, wide",
            "slstm",
            "even-heads",
        ),
        "an input has its blocks side by side, not its heads": (
            "ch / a.head * (BLOCKS * a.head) + block * a.head + ch % a.head",
            "block * a.channels + ch",
            "slstm",
            "odd-heads",
        ),
    },
    SUM: {
        "the carried gradient is dropped": (
            "if (a.product) add(e, of_product<A>(a.product, ch, 0, 1));",
            "if (a.product) load<V, A>(e, of_product<A>(a.product, ch, 0, 1));",
            "mix",
            "one-thread",
        ),
        "a row's sum over one warp too few": (
            "warp < G::WARPS; warp++",
            "warp < 1; warp++",
            "normalized",
            "wide",
        ),
        "the norm's gradient without its mean": (
            "(e[i] - y[i] * mean) * factor",
            "e[i] * factor",
            "normalized",
            "one-thread",
        ),
    },
    TAIL: {
        "a block writes behind its last channel": (
            "Cell::NORM || begin + TILE > a.channels ? a.channels : begin + TILE",
            "begin + TILE",
            "tanh",
            "one-thread",
        ),
    },
    RESET: {
        "c passes a reset": (
            "if (reset(a.step + 1)) clear(c_new[k - 1]);",
            "",
            "lstm",
            "one-thread",
        ),
        "a reset is that of another row": (
            "load_one(a.resets + (b * a.steps + t))",
            "load_one(a.resets + (t * a.batch + b))",
            "tanh",
            "one-thread",
        ),
        "a reset behind the last step": (
            "return t < a.steps && load_one",
            "return load_one",
            "tanh",
            "one-thread",
        ),
        "the derivative reads the state before a reset": (
            "if (anew) clear(h);",
            "",
            "mix",
            "one-thread",
        ),
        "a gradient passes a reset by the product": (
            "if (anew) clear(da[k]);",
            "",
            "tanh",
            "one-thread",
        ),
    },
}
# The case is what is written, and a size.
TAPE = {
    BARRIER: {
        "the barrier behind the weights is left out": (
            "attend_all();\n    sync_block();",
            "attend_all();",
            "full",
            "odd-35",
        ),
        "the barrier before the weights is left out": (
            "    sync_block();\n    if (warp == 0) attend_all();",
            "    if (warp == 0) attend_all();",
            "full",
            "odd-35",
        ),
        "the barrier before the next kernel's sums is left out": (
            "    sync_block();\n    if (warp == 0)\n      for",
            "    if (warp == 0)\n      for",
            "full",
            "odd-35",
        ),
    },
    BUFFER: {
        "no checkpoint is kept": (
            "if (a.checkpoint) store<V, A>(slot(a.checkpoint, first + s, ch), m[s]);",
            "",
            "full",
            "odd-35",
        ),
    },
    INDEX: {
        "the slots of all rows in turn": (
            "((b * slots + k) * a.channels + ch)",
            "((k * a.batch + b) * a.channels + ch)",
            "identity",
            "odd-35",
        ),
        "the value's gradient has the weights of the read": (
            "weight(a.step - 1, WRITE, first + s)",
            "weight(a.step - 1, READ, first + s)",
            "full",
            "odd-35",
        ),
    },
    SUM: {
        "a sum over one warp": ("w < WARPS; w++", "w < 1; w++", "full", "odd-35"),
        "the softmax of the write has no gradient": (
            "e[i] += dscore * m[s][i];",
            "",
            "full",
            "odd-35",
        ),
        "the gradient of a state that is written is dropped": (
            "if (!PRODUCT_VALUE) carried[i] += dq[i];",
            "",
            "identity",
            "odd-35",
        ),
    },
    TAIL: {
        "a channel too many": (
            "ch < a.channels; ch += TILE",
            "ch <= a.channels; ch += TILE",
            "full",
            "odd-35",
        ),
        "one tape too few is replayed": (
            "t < a.step + a.count",
            "t < a.step + a.count - 1",
            "shared",
            "odd-35",
        ),
        "the last slot is left out": (
            "for (; k < slots; k++) sum_some<1>(tape, k, left, right);",
            "for (; k < slots - 1; k++) sum_some<1>(tape, k, left, right);",
            "identity",
            "odd-35",
        ),
    },
    RESET: {
        "a tape is replayed over a reset": (
            "if (reset(t + 1)) clear(m);",
            "",
            "full",
            "odd-35",
        ),
        "a reset is that of another row": (
            "load_one(a.resets + (b * a.steps + t))",
            "load_one(a.resets + (t * a.batch + b))",
            "full",
            "odd-35",
        ),
        "a gradient of the tape passes a reset": (
            "if (anew) clear(g[s]);",
            "",
            "shared",
            "odd-35",
        ),
        "a gradient passes a reset by the product": (
            "      clear(delta);\n",
            "",
            "full",
            "odd-35",
        ),
    },
}


def resets_within(leaves: recurrent.Leaves) -> torch.Tensor:
    """Return resets inside a segment, where the slots differ before it, and at both ends."""
    resets = torch.zeros(leaves["input"].shape[:2], dtype=torch.bool)
    resets[0, 2] = resets[1, 0] = resets[1, 3] = resets[1, 4] = True
    return resets


def _planted(engine: recurrent.Engine, launch: Any, emulated: Any, table: Table) -> Engine:
    """Return an engine; with NaN wherever nothing was written, it is compared with fp64."""

    def run(root: Path, fault: Fault) -> str:
        step, size = fault.case
        leaves, mask = engine.draw(step, size, torch.float32), None
        if fault.mechanism == RESET:
            mask = resets_within(leaves) if engine.name == "tape" else engine.resets_of(leaves)
        exact = engine.everything(step, engine.draw(step, size), "reference", resets=mask)
        library = functools.partial(library_over, root=root)
        launch.STARTER = functools.partial(emulated.starter, library=library)
        emulator.poison(setattr)

        def same() -> bool:
            found = engine.everything(step, leaves, "cuda", resets=mask)
            return not emulator.noticed(lambda: recurrent.check(found, exact, 2e-5))

        return verdict(same)

    faults = faults_of(table, f"cuda/{engine.name}/stepwise.cuh")
    return Engine(faults, functools.partial(outcome, run))


ENGINES = {
    "dense": _planted(recurrent.DENSE, dense_stepwise, dense_emulator, DENSE),
    "tape": _planted(recurrent.TAPE, tape_stepwise, tape_emulator, TAPE),
}
