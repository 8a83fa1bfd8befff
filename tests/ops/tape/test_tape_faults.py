"""Faults planted in the tape engine's sources are seen by what test_tape_kernels.py compares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elman.ops.tape import cpu
from tests.emulation import emulator
from tests.ops.tape import test_tape_kernels as kernels
from tests.ops.tape.test_tape_resets import resets_of

ENGINE, CELLS = "cpu/tape/engine.h", "cells/tape.h"
# By what is wrong: the file under csrc, old text, new text, and a write and size that show it.
FAULTS = {
    "the matrices are not transposed": (
        ENGINE,
        "pack<true>(team, s, of);",
        "pack<false>(team, s, of);",
        ("shared", "one-thread"),
    ),
    "the write has the weights of the read": (
        ENGINE,
        "one = tape::written(one, w[k], q)",
        "one = tape::written(one, r[k], q)",
        ("full", "one-thread"),
    ),
    "the next read has the scores of the tape before the write": (
        CELLS,
        "return score + w * (value_score - score);",
        "return score;",
        ("identity", "one-thread"),
    ),
    "the softmax of the write has no gradient": (
        ENGINE,
        "    scores_bwd(s, t, WRITE);\n    multiply_bwd",
        "    scores_bwd(s, t, WRITE);\n"
        "    for (int64_t b = s.rows0; b < s.rows1; b++)\n"
        "      for (int64_t k = 0; k < a.slots; k++) kept(s, WRITE, b)[k] = 0;\n"
        "    multiply_bwd",
        ("full", "one-thread"),
    ),
    "a score's gradient without the mean": (
        CELLS,
        "scale * w * (dw - mean)",
        "scale * w * dw",
        ("full", "one-thread"),
    ),
    "the gradient of the last tape is ignored": (
        ENGINE,
        "take(s, static_cast<const T*>(a.dlast_tape), working());",
        "take(s, nullptr, working());",
        ("full", "one-thread"),
    ),
    "the gradient of the last state is ignored": (
        ENGINE,
        "LAST && a.dlast ?",
        "LAST && !a.batch ?",
        ("full", "one-thread"),
    ),
    "the first state gets nothing through its products": (
        ENGINE,
        "multiply_bwd(s, -1);",
        "",
        ("full", "one-thread"),
    ),
    "the read's scores pass nothing on": (
        ENGINE,
        "carried += dscore[k] * cpu::load<V>(m_next + k * W);",
        "",
        ("identity", "one-thread"),
    ),
    "a replay writes with the weights of the read": (
        ENGINE,
        "rewrite(s, b, t, weights(b, t, WRITE), replayed(t, start)",
        "rewrite(s, b, t, weights(b, t, READ), replayed(t, start)",
        ("full", "channels"),
    ),
    "a segment is replayed a step too late": (
        ENGINE,
        "(t + 1) % a.interval == 0) replay",
        "(t + 2) % a.interval == 0) replay",
        ("full", "channels"),
    ),
    "the last slots have no sum": (
        ENGINE,
        "for (; k < a.slots; k++) sum_some<1>",
        "for (; k + 1 < a.slots; k++) sum_some<1>",
        ("full", "many-slots"),
    ),
    "threads do not meet before a product": (
        ENGINE,
        "    team.meet(s.me, s.of);\n    multiply(s, t);",
        "    multiply(s, t);",
        ("identity", "odd"),
    ),
    "threads do not meet before they sum what they share": (
        ENGINE,
        "if (PRODUCT_VALUE) team.meet(s.me, s.of);",
        "",
        ("full", "odd"),
    ),
    "threads do not meet between steps back": (
        ENGINE,
        "    team.meet(s.me, s.of);\n    scores_bwd(s, t, READ);",
        "    scores_bwd(s, t, READ);",
        ("full", "odd"),
    ),
}
# The same, seen where rows have resets.
WITH_RESETS = {
    "a reset is that of another row": (
        ENGINE,
        "a.resets[b * a.steps + t];",
        "a.resets[t];",
        ("full", "one-thread"),
    ),
    "the product of the state before a reset is read": (
        ENGINE,
        "const V product = anew ? V{} : L::load(row(b) + ch, n);",
        "const V product = L::load(row(b) + ch, n);",
        ("full", "one-thread"),
    ),
    "the tape before a reset is read": (
        ENGINE,
        "if (anew) one = V{};",
        "",
        ("full", "one-thread"),
    ),
    "the scores before a reset are kept": (
        ENGINE,
        "if (reset(b, t + 1)) std::fill(scores, scores + a.slots, T(0));",
        "",
        ("full", "one-thread"),
    ),
    "the first tape is replayed where it is dropped": (
        ENGINE,
        "if (reset(b, start)) clear(s, b, replayed(start, start));",
        "(void)s;",
        ("full", "one-thread"),
    ),
    "a tape is replayed over a reset": (
        ENGINE,
        "if (reset(b, t + 1))\n          clear(s, b, replayed(t + 1, start));",
        "if (false)\n          ;",
        ("full", "odd"),
    ),
    "a gradient of the tape passes a reset": (
        ENGINE,
        "one = anew ? V{} : tape::read_bwd",
        "one = tape::read_bwd",
        ("full", "one-thread"),
    ),
    "a gradient passes a reset by the product": (
        ENGINE,
        "reset(b, t) ? V{} : delta, n);",
        "delta, n);",
        ("full", "one-thread"),
    ),
}
QUICK = (
    "threads do not meet before a product",
    "a tape is replayed over a reset",
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
    command = [sys.executable, "-m", "tests.ops.tape.test_tape_faults", what, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["noticed"], done.stdout + done.stderr


def main(what: str, folder: str) -> None:
    """Compile the kernels with a fault, and print ``noticed`` if the comparison fails."""
    file, old, new, (write, size) = (FAULTS | WITH_RESETS)[what]
    leaves = kernels.draw(write, size)
    resets = resets_of(leaves) if what in WITH_RESETS else None
    if resets is not None:
        for name in ("tape", "state"):
            leaves[name].data[resets[:, 0]] = kernels.torch.nan  # which nothing may read
    wanted = kernels.everything(write, leaves, "reference", resets=resets)
    cpu.kernel_threads = lambda of_torch: 2
    emulator.plant_in_cpu_engines(Path(folder), file, lambda whole: whole.replace(old, new))
    kernels.source.kernel_for(write, kernels.torch.float64, resets=resets is not None)
    try:
        for _ in range(REPEATS):
            found = kernels.everything(write, leaves, "cpu", resets=resets)
            kernels.check(found, wanted, 1e-12)
    except AssertionError:
        print("noticed")


if __name__ == "__main__":
    main(*sys.argv[1:])
