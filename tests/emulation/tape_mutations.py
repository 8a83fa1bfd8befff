"""Faults planted in the tape engine's CUDA kernels, and whether the emulation notices.

python -m tests.emulation.tape_mutations
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import torch

from elman.ops.tape.cuda import stepwise
from tests.emulation import emulator, tape_emulator
from tests.emulation.mutations import _in_process, _mutated, print_outcomes, verdict, with_fault
from tests.ops.tape import test_tape_kernels as kernels
from tests.ops.tape.test_tape_kernels import Leaves, check, draw, everything

FILE = "cuda/tape/stepwise.cuh"
SIZE = (2, 5, 9, 35)
"""Batch, steps, slots, channels: two warps have channels, two segments, nine slots."""
# By what is wrong: old text, new text, and a write that shows it.
EDITS = {
    "the barrier before the weights is left out": (
        "    sync_block();\n    if (warp == 0) attend_all();",
        "    if (warp == 0) attend_all();",
        "full",
    ),
    "the barrier behind the weights is left out": (
        "attend_all();\n    sync_block();",
        "attend_all();",
        "full",
    ),
    "the barrier before the next kernel's sums is left out": (
        "    sync_block();\n    if (warp == 0)\n      for",
        "    if (warp == 0)\n      for",
        "full",
    ),
    "the slots of all rows in turn": (
        "((b * slots + k) * a.channels + ch)",
        "((k * a.batch + b) * a.channels + ch)",
        "identity",
    ),
    "one tape too few is replayed": (
        "t < a.step + a.count",
        "t < a.step + a.count - 1",
        "shared",
    ),
    "the next read has the scores of the tape before the write": (
        "return t ? tape::next_score(before, load_one(write + k), of_value) : before;",
        "return before;",
        "full",
    ),
    "the softmax of the write has no gradient": (
        "e[i] += dscore * m[s][i];",
        "",
        "full",
    ),
    "the gradient of the written value replaces that of the next step": (
        "delta[i] += dq[i];",
        "delta[i] = dq[i];",
        "shared",
    ),
    "the gradient of a state that is written is dropped": (
        "if (!PRODUCT_VALUE) carried[i] += dq[i];",
        "",
        "identity",
    ),
    "a sum over one warp": ("w < WARPS; w++", "w < 1; w++", "full"),
    "a channel too many": ("ch < a.channels; ch += TILE", "ch <= a.channels; ch += TILE", "full"),
    "no checkpoint is kept": (
        "if (a.checkpoint) store<V, A>(slot(a.checkpoint, first + s, ch), m[s]);",
        "",
        "full",
    ),
    "the value's gradient has the weights of the read": (
        "weight(a.step - 1, WRITE, first + s)",
        "weight(a.step - 1, READ, first + s)",
        "full",
    ),
    "the last slot is left out": (
        "for (; k < slots; k++) sum_some<1>(tape, k, left, right);",
        "for (; k < slots - 1; k++) sum_some<1>(tape, k, left, right);",
        "identity",
    ),
}
# The same, seen where rows have resets.
WITH_RESETS = {
    "a reset is that of another row": (
        "load_one(a.resets + (b * a.steps + t))",
        "load_one(a.resets + (t * a.batch + b))",
        "full",
    ),
    "a tape passes a reset": ("if (anew) clear(m[s]);", "", "full"),
    "a state passes a reset by its product": ("if (!anew) add(h,", "add(h,", "identity"),
    "a tape is replayed over a reset": ("if (reset(t + 1)) clear(m);", "", "full"),
    "a gradient of the tape passes a reset": ("if (anew) clear(g[s]);", "", "shared"),
    "a gradient passes a reset by the product": ("      clear(delta);\n", "", "full"),
}
QUICK = (
    "the barrier behind the weights is left out",
    "one tape too few is replayed",
    "a channel too many",
    "a tape is replayed over a reset",
)


def outcome(what: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    old, new, write = (EDITS | WITH_RESETS)[what]
    with with_fault(FILE, old, new) as root:
        return _in_process(_run, (root, write, what in WITH_RESETS))


def resets_within(leaves: Leaves) -> torch.Tensor:
    """Return resets inside a segment, where the slots differ before it, and at both ends."""
    resets = torch.zeros(leaves["input"].shape[:2], dtype=torch.bool)
    resets[0, 2] = resets[1, 0] = resets[1, 3] = resets[1, 4] = True
    return resets


def _run(root: Path, write: str, resets: bool) -> str:
    """Run a mutated engine with NaN wherever nothing was written, and compare with fp64."""
    kernels.SIZES["mutated"] = SIZE
    leaves = draw(write, "mutated", torch.float32)
    mask = resets_within(leaves) if resets else None
    exact = everything(write, draw(write, "mutated"), "reference", resets=mask)
    library = functools.partial(_mutated, root=root)
    stepwise.STARTER = functools.partial(tape_emulator.starter, library=library)
    emulator.poison(setattr)

    def same() -> bool:
        found = everything(write, leaves, "cuda", resets=mask)
        return not emulator.noticed(lambda: check(found, exact, 2e-5))

    return verdict(same)


if __name__ == "__main__":
    sys.exit(print_outcomes(outcome, EDITS | WITH_RESETS))
