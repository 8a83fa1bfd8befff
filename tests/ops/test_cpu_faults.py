"""Faults planted in the CPU kernels of the dense and tape engines are noticed.

By what test_recurrent_kernels.py and test_recurrent_resets.py compare.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import elman.kernels.build
from elman.kernels.compiler import BASE_FLAGS
from elman.ops.dense import cpu as dense_cpu
from elman.ops.dense import source as dense_source
from elman.ops.tape import cpu as tape_cpu
from elman.ops.tape import source as tape_source
from tests.emulation import emulator
from tests.emulation.faults import BARRIER, INDEX, RESET, SUM, TAIL, Fault, faults_of
from tests.ops.recurrent import ENGINES, check

# Old text, new text, and a step and a size that show it.
DENSE = {
    BARRIER: {
        "threads do not meet between steps": (
            "    if constexpr (Cell::EXTRA) candidate(team, s, t, h, h_stride);\n"
            "    team.meet(s.me, s.of);",
            "    if constexpr (Cell::EXTRA) candidate(team, s, t, h, h_stride);",
            "linear",
            "channels",
        ),
        "threads do not meet before they read a factor's product": (
            "    team.meet(s.me, s.of);\n    stride = low_stride();",
            "    stride = low_stride();",
            "tanh",
            "channels-low-rank",
        ),
    },
    INDEX: {
        "the matrix is not transposed": (
            "Product::template pack<true>(static_cast<const T*>(a.matrix), packed(), k_of_r(),",
            "Product::template pack<false>(static_cast<const T*>(a.matrix), packed(), k_of_r(),",
            "tanh",
            "one-thread",
        ),
        "c of the step itself instead of the one before": (
            "t ? memo(b, t - 1) + (C + k)",
            "t ? memo(b, t) + (C + k)",
            "lstm",
            "one-thread",
        ),
        "a head's memo lies as if it were alone": (
            "(b * a.steps + t) * Cell::MEMO * a.pitch;",
            "(b * a.steps + t) * Cell::MEMO * a.channels;",
            "slstm",
            "even-heads",
        ),
    },
    SUM: {
        "the carried gradient is dropped": (
            "carried + by_product",
            "by_product",
            "mix",
            "one-thread",
        ),
        "the norm's gradient without its mean": (
            "L::load(at(a.y, b, t) + ch, n) * mean) * factor",
            "L::load(at(a.y, b, t) + ch, n) * T(0)) * factor",
            "normalized",
            "one-thread",
        ),
        "the scale's gradient of the last step alone": (
            "L::store(to, L::load(to, n) + d.scale, n);",
            "L::store(to, d.scale, n);",
            "normalized_scalar",
            "one-thread",
        ),
        "the stabilizer's gradient is dropped": (
            "const T left = ec[2] - ec[0] * m[5] - ec[1] * m[6];",
            "const T left = zero;",
            "slstm",
            "one-thread",
        ),
    },
    TAIL: {
        "the last channels are not packed": (
            "for (int64_t j = 0; j < there; j++)",
            "for (int64_t j = 0; j + 1 < there; j++)",
            "tanh",
            "one-thread",
        ),
        "a row of the tile is left out": (
            "r += rows;",
            "r += rows + (rows == 2);",
            "linear",
            "channels",
        ),
        "the gradient of the last state is ignored": (
            "copy_part(k, a.dfirst, a.dlast);",
            "copy_part(k, a.dfirst, nullptr);",
            "tanh",
            "one-thread",
        ),
    },
    RESET: {
        "c before a reset is read": (
            "reset(b, t) ? V{} : L::load(part(a.last, k, b) + ch, n);",
            "L::load(part(a.last, k, b) + ch, n);",
            "lstm",
            "one-thread",
        ),
        "a reset is that of another row": (
            "return a.resets[b * a.steps + t];",
            "return a.resets[t];",
            "tanh",
            "one-thread",
        ),
        "a gradient passes a reset by the product": (
            "reset(b, t + 1) ? V{} : cpu::load<V>(out[0] + place)",
            "cpu::load<V>(out[0] + place)",
            "tanh",
            "one-thread",
        ),
        "what is read of an empty memory counts": (
            "x.c[1] == zero ? zero - 1e30f : x.c[2] - lost - x.a[2];",
            "x.c[2] - lost - x.a[2];",
            "slstm",
            "one-thread",
        ),
    },
}
# Old text, new text, and what is written, and a size that shows it.
TAPE = {
    BARRIER: {
        "threads do not meet before a product": (
            "    team.meet(s.me, s.of);\n    multiply(s, t);",
            "    multiply(s, t);",
            "identity",
            "odd",
        ),
        "threads do not meet before they sum what they share": (
            "if (PRODUCT_VALUE) team.meet(s.me, s.of);",
            "",
            "full",
            "odd",
        ),
        "threads do not meet between steps back": (
            "    team.meet(s.me, s.of);\n    scores_bwd(s, t, READ);",
            "    scores_bwd(s, t, READ);",
            "full",
            "odd",
        ),
    },
    INDEX: {
        "the matrices are not transposed": (
            "pack<true>(team, s, of);",
            "pack<false>(team, s, of);",
            "shared",
            "one-thread",
        ),
        "the write has the weights of the read": (
            "one = tape::written(one, w[k], q)",
            "one = tape::written(one, r[k], q)",
            "full",
            "one-thread",
        ),
        "a segment is replayed a step too late": (
            "(t + 1) % a.interval == 0) replay",
            "(t + 2) % a.interval == 0) replay",
            "full",
            "channels",
        ),
    },
    SUM: {
        "the softmax of the write has no gradient": (
            "    scores_bwd(s, t, WRITE);\n    multiply_bwd",
            "    scores_bwd(s, t, WRITE);\n"
            "    for (int64_t b = s.rows0; b < s.rows1; b++)\n"
            "      for (int64_t k = 0; k < a.slots; k++) kept(s, WRITE, b)[k] = 0;\n"
            "    multiply_bwd",
            "full",
            "one-thread",
        ),
        "a score's gradient without the mean": (
            "scale * w * (dw - mean)",
            "scale * w * dw",
            "full",
            "one-thread",
        ),
        "the first state gets nothing through its products": (
            "multiply_bwd(s, -1);",
            "",
            "full",
            "one-thread",
        ),
    },
    TAIL: {
        "the last slots have no sum": (
            "for (; k < a.slots; k++) sum_some<1>",
            "for (; k + 1 < a.slots; k++) sum_some<1>",
            "full",
            "many-slots",
        ),
        "the gradient of the last tape is ignored": (
            "take(s, static_cast<const T*>(a.dlast_tape), working());",
            "take(s, nullptr, working());",
            "full",
            "one-thread",
        ),
    },
    RESET: {
        "a tape is replayed over a reset": (
            "if (reset(b, t + 1))\n          clear(s, b, replayed(t + 1, start));",
            "if (false)\n          ;",
            "full",
            "odd",
        ),
        "a reset is that of another row": (
            "a.resets[b * a.steps + t];",
            "a.resets[t];",
            "full",
            "one-thread",
        ),
        "the tape before a reset is read": (
            "if (anew) one = V{};",
            "",
            "full",
            "one-thread",
        ),
        "a gradient passes a reset by the product": (
            "reset(b, t) ? V{} : delta, n);",
            "delta, n);",
            "full",
            "one-thread",
        ),
    },
}
FAULTS = {
    "dense": faults_of(DENSE, "cpu/dense/engine.h", "cpu/common/product.h", "cells/dense.h"),
    "tape": faults_of(TAPE, "cpu/tape/engine.h", "cells/tape.h"),
}
# Each mechanism in one of the two engines, which share their threads and products.
OFTEN = {"dense": (BARRIER, TAIL), "tape": (INDEX, SUM, RESET)}
KERNELS = {"dense": dense_source.kernel_for, "tape": tape_source.kernel_for}
REPEATS = 50  # a race is not lost every time
pytestmark = pytest.mark.compiler
ROOT = Path(__file__).parents[2]


def expect_noticed(folder: Path, *planted: str) -> None:
    """Plant faults in a process of its own: a fork would have none of OpenMP's threads."""
    command = [sys.executable, "-m", "tests.ops.test_cpu_faults", str(folder), *planted]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = done.stdout.splitlines()
    assert found == [f"noticed {one}" for one in planted], done.stdout + done.stderr


def test_a_fault_of_each_mechanism_is_noticed(tmp_path: Path) -> None:
    planted = [
        f"{engine}: {fault.what}"
        for engine, faults in FAULTS.items()
        for fault in faults
        if fault.first and fault.mechanism in OFTEN[engine]
    ]
    assert len(planted) == 5
    expect_noticed(tmp_path, *planted)


@pytest.mark.slow
@pytest.mark.parametrize("engine", FAULTS)
def test_every_planted_fault_is_noticed(engine: str, tmp_path: Path) -> None:
    expect_noticed(tmp_path, *(f"{engine}: {fault.what}" for fault in FAULTS[engine]))


def is_noticed(name: str, fault: Fault, folder: Path) -> bool:
    """Compile the kernels with a fault, and return whether the comparison fails."""
    engine, (step, size) = ENGINES[name], fault.case
    leaves, resets = engine.draw(step, size), None
    if fault.mechanism == RESET:
        resets = engine.resets_of(leaves)
        for part in engine.carried(leaves):
            leaves[part].data[resets[:, 0]] = torch.nan  # which nothing may read
    exact = engine.everything(step, leaves, "reference", resets=resets)
    emulator.plant_in_cpu_engines(folder, fault.file, lambda whole: fault.text)
    KERNELS[name](step, torch.float64, resets=resets is not None)
    try:
        for _ in range(REPEATS):
            found = engine.everything(step, leaves, "cpu", resets=resets)
            check(found, exact, 1e-12)
    except AssertionError:
        return True
    return False


def main(folder: str, *planted: str) -> None:
    """Print which faults are noticed."""
    elman.kernels.build._FLAGS = (*BASE_FLAGS, "-Wno-psabi", "-O1")
    dense_cpu.kernel_threads = tape_cpu.kernel_threads = lambda of_torch: 2
    for number, one in enumerate(planted):
        engine, what = one.split(": ")
        (fault,) = (fault for fault in FAULTS[engine] if fault.what == what)
        place = Path(folder, str(number))
        place.mkdir()
        if is_noticed(engine, fault, place):
            print(f"noticed {one}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
