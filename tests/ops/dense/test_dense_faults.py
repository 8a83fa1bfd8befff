"""Faults planted in the dense engine's sources are seen by what test_dense_kernels.py compares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elman.ops.dense import cpu
from tests.emulation import emulator
from tests.ops.dense import test_dense_kernels as kernels
from tests.ops.dense.test_dense_resets import resets_of

ENGINE, PRODUCT, CELLS = "cpu/dense/engine.h", "cpu/common/product.h", "cells/dense.h"
# By what is wrong: the file under csrc, old text, new text, and a step and size that show it.
FAULTS = {
    "the matrix is not transposed": (
        ENGINE,
        "Product::template pack<true>(static_cast<const T*>(a.matrix), packed(), k_of_r(),",
        "Product::template pack<false>(static_cast<const T*>(a.matrix), packed(), k_of_r(),",
        ("tanh", "one-thread"),
    ),
    "the last channels are not packed": (
        PRODUCT,
        "for (int64_t j = 0; j < there; j++)",
        "for (int64_t j = 0; j + 1 < there; j++)",
        ("tanh", "one-thread"),
    ),
    "a row of the tile is left out": (
        PRODUCT,
        "r += rows;",
        "r += rows + (rows == 2);",
        ("linear", "channels"),
    ),
    "the gradient of the last state is ignored": (
        ENGINE,
        "copy_part(k, a.dfirst, a.dlast);",
        "copy_part(k, a.dfirst, nullptr);",
        ("tanh", "one-thread"),
    ),
    "the carried gradient is dropped": (
        ENGINE,
        "carried + by_product",
        "by_product",
        ("mix", "one-thread"),
    ),
    "c of the step itself instead of the one before": (
        ENGINE,
        "t ? memo(b, t - 1) + (C + k)",
        "t ? memo(b, t) + (C + k)",
        ("lstm", "one-thread"),
    ),
    "the norm's gradient without its mean": (
        ENGINE,
        "L::load(at(a.y, b, t) + ch, n) * mean) * factor",
        "L::load(at(a.y, b, t) + ch, n) * T(0)) * factor",
        ("normalized", "one-thread"),
    ),
    "the scale's gradient of the last step alone": (
        ENGINE,
        "L::store(to, L::load(to, n) + d.scale, n);",
        "L::store(to, d.scale, n);",
        ("normalized_scalar", "one-thread"),
    ),
    "the reset gate is left out of the carried gradient": (
        CELLS,
        "d.h = e - e * m[0] + drh[0] * m[1];",
        "d.h = e - e * m[0] + drh[0];",
        ("gru", "one-thread"),
    ),
    "a head's memo lies as if it were alone": (
        ENGINE,
        "(b * a.steps + t) * Cell::MEMO * a.pitch;",
        "(b * a.steps + t) * Cell::MEMO * a.channels;",
        ("slstm", "even-heads"),
    ),
    "the stabilizer's gradient is dropped": (
        CELLS,
        "const T left = ec[2] - ec[0] * m[5] - ec[1] * m[6];",
        "const T left = zero;",
        ("slstm", "one-thread"),
    ),
    "the stabilizer's gradient goes to the other argument": (
        CELLS,
        "past = zero < m[2] ? zero : left;",
        "past = zero < m[2] ? left : zero;",
        ("slstm", "one-thread"),
    ),
    "threads do not meet before they read a factor's product": (
        ENGINE,
        "    team.meet(s.me, s.of);\n    stride = low_stride();",
        "    stride = low_stride();",
        ("tanh", "channels-low-rank"),
    ),
    "threads do not meet between steps": (
        ENGINE,
        "    if constexpr (Cell::EXTRA) candidate(team, s, t, h, h_stride);\n"
        "    team.meet(s.me, s.of);",
        "    if constexpr (Cell::EXTRA) candidate(team, s, t, h, h_stride);",
        ("linear", "channels"),
    ),
}
# The same, seen where rows have resets.
WITH_RESETS = {
    "a reset is that of another row": (
        ENGINE,
        "return a.resets[b * a.steps + t];",
        "return a.resets[t];",
        ("tanh", "one-thread"),
    ),
    "the product of the state before a reset is read": (
        ENGINE,
        "(reset(b, t) ? V{} : cpu::load<V>(out[k] + place))",
        "cpu::load<V>(out[k] + place)",
        ("tanh", "one-thread"),
    ),
    "the state before a reset is read": (
        ENGINE,
        "x.h = reset(b, t) ? V{} : L::load(h + ch, n);",
        "x.h = L::load(h + ch, n);",
        ("gru", "one-thread"),
    ),
    "c before a reset is read": (
        ENGINE,
        "reset(b, t) ? V{} : L::load(part(a.last, k, b) + ch, n);",
        "L::load(part(a.last, k, b) + ch, n);",
        ("lstm", "one-thread"),
    ),
    "the derivative reads c before a reset": (
        ENGINE,
        "x.c[k] = reset(b, t) ? V{} : L::load(c + ch, n);",
        "x.c[k] = L::load(c + ch, n);",
        ("lstm", "one-thread"),
    ),
    "what is read of an empty memory counts": (
        CELLS,
        "x.c[1] == zero ? zero - 1e30f : x.c[2] - lost - x.a[2];",
        "x.c[2] - lost - x.a[2];",
        ("slstm", "one-thread"),
    ),
    "a gradient passes a reset by the product": (
        ENGINE,
        "reset(b, t + 1) ? V{} : cpu::load<V>(out[0] + place)",
        "cpu::load<V>(out[0] + place)",
        ("tanh", "one-thread"),
    ),
    "a gradient passes a reset beside the product": (
        ENGINE,
        "reset(b, t) ? V{} : d.h, n);",
        "d.h, n);",
        ("mix", "one-thread"),
    ),
    "a gradient of c passes a reset": (
        ENGINE,
        "reset(b, t) ? V{} : d.c[k - 1], n);",
        "d.c[k - 1], n);",
        ("lstm", "one-thread"),
    ),
}
QUICK = (
    "threads do not meet between steps",
    "c before a reset is read",
)
REPEATS = 50  # a race is not lost every time
pytestmark = pytest.mark.compiler
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=[pytest.mark.slow] * (what not in QUICK))
        for what in FAULTS | WITH_RESETS
    ],
)
def test_a_planted_fault_is_noticed(what: str, tmp_path: Path) -> None:
    """In a process of its own: a fork would have none of OpenMP's threads."""
    command = [sys.executable, "-m", "tests.ops.dense.test_dense_faults", what, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["noticed"], done.stdout + done.stderr


def main(what: str, folder: str) -> None:
    """Compile the kernels with a fault, and print ``noticed`` if the comparison fails."""
    file, old, new, (step, size) = (FAULTS | WITH_RESETS)[what]
    leaves = kernels.draw(step, size)
    resets = resets_of(leaves) if what in WITH_RESETS else None
    wanted = kernels.everything(step, leaves, "reference", resets=resets)
    cpu.kernel_threads = lambda of_torch: 2
    emulator.plant_in_cpu_engines(Path(folder), file, lambda whole: whole.replace(old, new))
    kernels.source.kernel_for(step, kernels.torch.float64, resets=resets is not None)
    try:
        for _ in range(REPEATS):
            found = kernels.everything(step, leaves, "cpu", resets=resets)
            kernels.check(found, wanted, 1e-12)
    except AssertionError:
        print("noticed")


if __name__ == "__main__":
    main(*sys.argv[1:])
