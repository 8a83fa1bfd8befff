"""Faults planted in the dense engine's stepwise CUDA kernels, and whether the emulation notices.

python -m tests.emulation.dense_mutations
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from elman.ops.dense.cuda import stepwise
from tests.emulation import dense_emulator, emulator
from tests.emulation.mutations import _in_process, _mutated, print_outcomes, verdict, with_fault
from tests.ops.dense.test_dense_kernels import check, draw, everything, torch
from tests.ops.dense.test_dense_resets import resets_of

FILE = "cuda/dense/stepwise.cuh"
# By what is wrong: old text, new text, and a step and size that show it.
EDITS = {
    "the carried gradient is dropped": (
        "if (a.product) add(e, of_product<A>(a.product, ch, 0, 1));",
        "if (a.product) load<V, A>(e, of_product<A>(a.product, ch, 0, 1));",
        ("mix", "one-thread"),
    ),
    "the product of the step after is dropped": (
        "if (a.product) add(e, of_product<A>(a.product, ch, 0, 1));",
        "",
        ("tanh", "one-thread"),
    ),
    "the state before the step is the one after it": (
        "at(a.y, a.step - 1, ch)",
        "at(a.y, a.step, ch)",
        ("mix", "one-thread"),
    ),
    "c of the step itself instead of the one before": (
        "memo(a.step - 1, MEMO - KEPT + k, ch)",
        "memo(a.step, MEMO - KEPT + k, ch)",
        ("lstm", "one-thread"),
    ),
    "gates of another row": (
        "((b * a.steps + t) * MEMO + k)",
        "((t * a.batch + b) * MEMO + k)",
        ("lstm", "one-thread"),
    ),
    "the blocks of a row lie apart by one channel": (
        "(row * blocks + block) * wide + ch",
        "(row * wide + ch) * blocks + block",
        ("gru", "one-thread"),
    ),
    "heads of a row lie side by side for the product": (
        "row += ch / a.head * a.batch, wide",
        "row = row * (a.channels / a.head) + ch / a.head, wide",
        ("slstm", "even-heads"),
    ),
    "an input has its blocks side by side, not its heads": (
        "ch / a.head * (BLOCKS * a.head) + block * a.head + ch % a.head",
        "block * a.channels + ch",
        ("slstm", "odd-heads"),
    ),
    "n before the step is c": (
        "x.c[k] = c[k][i];",
        "x.c[k] = c[0][i];",
        ("slstm", "one-thread"),
    ),
    "a block writes behind its last channel": (
        "Cell::NORM || begin + TILE > a.channels ? a.channels : begin + TILE",
        "begin + TILE",
        ("tanh", "one-thread"),
    ),
    "the barrier of a row's sum is left out": (
        "    sync_block();\n    x = A(0);",
        "    x = A(0);",
        ("normalized", "one-thread"),
    ),
    "a row's sum over one warp too few": (
        "warp < G::WARPS; warp++",
        "warp < 1; warp++",
        ("normalized", "wide"),
    ),
    "the norm's gradient without its mean": (
        "(e[i] - y[i] * mean) * factor",
        "e[i] * factor",
        ("normalized", "one-thread"),
    ),
    "the scale's gradient of the first step alone": (
        "if (a.step + 1 < a.steps) add(dscale, row<A>(a.dscale, ch));",
        "",
        ("normalized_scalar", "one-thread"),
    ),
    "the scale's gradient is added to what was there": (
        "if (a.step + 1 < a.steps) add(dscale",
        "add(dscale",
        ("normalized_scalar", "one-thread"),
    ),
    "the update gate is not kept for the second kernel": (
        "store<V, A>(row<A>(a.between, ch), m[0]);",
        "",
        ("gru", "one-thread"),
    ),
}
# The same, seen where rows have resets.
WITH_RESETS = {
    "a reset is that of another row": (
        "load_one(a.resets + (b * a.steps + t))",
        "load_one(a.resets + (t * a.batch + b))",
        ("tanh", "one-thread"),
    ),
    "a reset behind the last step": (
        "return t < a.steps && load_one",
        "return load_one",
        ("tanh", "one-thread"),
    ),
    "the state passes a reset": (
        "next[i] = anew ? A(0) : h[i];",
        "next[i] = h[i];",
        ("mix", "one-thread"),
    ),
    "c passes a reset": (
        "if (reset(a.step + 1)) clear(c_new[k - 1]);",
        "",
        ("lstm", "one-thread"),
    ),
    "the derivative reads the state before a reset": (
        "if (anew) clear(h);",
        "",
        ("mix", "one-thread"),
    ),
    "the derivative reads c before a reset": (
        "if (anew) clear(c[k]);",
        "",
        ("lstm", "one-thread"),
    ),
    "a gradient passes a reset by the product": (
        "if (anew) clear(da[k]);",
        "",
        ("tanh", "one-thread"),
    ),
    "a gradient passes a reset beside the product": (
        "if (anew) clear(dh);",
        "",
        ("mix", "one-thread"),
    ),
    "a gradient of c passes a reset": (
        "if (anew) clear(dc[k - 1]);",
        "",
        ("lstm", "one-thread"),
    ),
}
QUICK = (
    "gates of another row",
    "a block writes behind its last channel",
    "the barrier of a row's sum is left out",
    "the scale's gradient is added to what was there",
    "c passes a reset",
)


def outcome(what: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    old, new, (step, size) = (EDITS | WITH_RESETS)[what]
    with with_fault(FILE, old, new) as root:
        return _in_process(_run, (root, step, size, what in WITH_RESETS))


def _run(root: Path, step: str, size: str, resets: bool) -> str:
    """Run a mutated engine with NaN wherever nothing was written, and compare with fp64."""
    leaves = draw(step, size, torch.float32)
    mask = resets_of(leaves) if resets else None
    exact = everything(step, draw(step, size), "reference", resets=mask)
    library = functools.partial(_mutated, root=root)
    stepwise.STARTER = functools.partial(dense_emulator.starter, library=library)
    emulator.poison(setattr)

    def same() -> bool:
        found = everything(step, leaves, "cuda", resets=mask)
        return not emulator.noticed(lambda: check(found, exact, 2e-5))

    return verdict(same)


if __name__ == "__main__":
    sys.exit(print_outcomes(outcome, EDITS | WITH_RESETS))
