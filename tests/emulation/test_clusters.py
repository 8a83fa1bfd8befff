"""Clusters in the emulator: what is delivered arrives, and what could go wrong is reported."""

from __future__ import annotations

import ctypes
import functools
import re

import pytest
import torch

from elman.kernels.launching import Launch
from tests.emulation import emulator

pytestmark = pytest.mark.compiler

SEEDS = range(1, 9)
SIZE, THREADS, STEPS = 4, 64, 7
WORDS = SIZE * THREADS
SHARED_BYTES = 4 * (2 * WORDS + 4)
# Every thread has a word. In every step it becomes a sum over the words of all threads of the
# cluster, each of which holds a copy of all words, in two buffers in turn.
UNIT = """
struct Given { const unsigned* x; unsigned* y; int steps; };
namespace elman {
inline void NAME(const Given& a) {
  constexpr int BLOCKS = 4, N = 64, ALL = BLOCKS * N;
  Arena arena;
  const sptr<unsigned> h = arena.take<unsigned>(2 * ALL);
  const Boxes boxes(arena, 2);
  const int t = thread_index(), rank = cluster_rank(), lane = t % 32;
  for (int r = 0; r < BLOCKS; r++)
    store_one(h + (r * N + t), load_one(a.x + (cluster_index() * ALL + r * N + t)));
  if (t < 2) boxes.make(t);
  sync_cluster();
  if (t < 2) boxes.expect(t, ALL * 4);
  unsigned sum = 0;
  for (int step = 0; step < a.steps; step++) {
    const int now = step % 2, then = 1 - now;
    if (step) boxes.wait(now, (step - 1) / 2);
    sum = t;
    for (int i = 0; i < ALL; i++) sum += load_one(h + (now * ALL + i)) * (i % 7 + 1);
    if (step && t == 0) boxes.expect(now, ALL * 4);
    sync_block();
    if (step + 1 == a.steps) break;
    for (int r = 0; r < BLOCKS; r++)
      deliver(remote_place(h + (then * ALL + rank * N + t), r), boxes.of(then, r), sum);
  }
  store_one(a.y + block_index() * N + t, sum);
  sync_cluster();
}
}
ELMAN_CLUSTER_KERNEL(run_NAME, 4, 64, 1, Given, elman::NAME(a))
"""
# What is wrong: what is said of it, old text, new text.
FAULTS = {
    "boxes used before the cluster has met": (
        "thread \\d+ of block \\d+ uses the box at byte \\d+ of block \\d+ before it was made",
        "  sync_cluster();\n  if (t < 2)",
        "  sync_block();\n  if (t < 2)",
    ),
    "a box that nobody makes": ("before it was made", "if (t < 2) boxes.make(t);", "if (t < 1) boxes.make(t);"),
    "a box that is made twice": ("makes the box at byte", "if (t < 2) boxes.make(t);", "if (t < 4) boxes.make(t / 2);"),
    "an odd place": ("is not aligned", "deliver(remote_place(h + (then * ALL + rank * N + t), r)", "deliver(remote_place(h + (then * ALL + rank * N + t), r) + 2"),
    "two words at an odd place": ("is not aligned", "boxes.of(then, r), sum)", "boxes.of(then, r), sum, sum)"),
    "a place behind the array": ("outside its array", "(then * ALL + rank * N + t), r)", "(then * ALL + rank * N + t), r) + 8 * N * then * BLOCKS"),
    "another block": ("counts it in block", "boxes.of(then, r), sum)", "boxes.of(then, r ^ 1), sum)"),
    "a rank too many": ("of rank 4 of a cluster of 4", "int r = 0; r < BLOCKS; r++)\n      deliver", "int r = 1; r <= BLOCKS; r++)\n      deliver"),
    "no final meeting": ("ends without sync_cluster", "sum);\n  sync_cluster();", "sum);"),
    "a block that leaves early": ("ends without sync_cluster", "    if (step + 1 == a.steps) break;", "    if (rank == 1 && step == 3) return;\n    if (step + 1 == a.steps) break;"),
    "a thread that misses the meeting": ("deadlock", "sum);\n  sync_cluster();", "sum);\n  if (t == 5) sync_block(); else sync_cluster();"),
    "a warp that misses the meeting": ("deadlock", "sum);\n  sync_cluster();", "sum);\n  if (t < 32) sync_block(); else sync_cluster();"),
    "a warp that leaves before the meeting": ("left before", "  if (t < 2) boxes.make(t);\n", "  if (t >= 32) return;\n  if (t < 2) boxes.make(t);\n"),
    "bytes expected by all": ("twice in a turn", "if (step && t == 0) boxes.expect", "if (step && t < 2) boxes.expect"),
    "bytes expected twice": ("twice in a turn", "  unsigned sum = 0;", "  if (t == 0) boxes.expect(0, ALL * 4);\n  unsigned sum = 0;"),
    "bytes expected too early": ("without knowing", "sum = t;", "if (step < 3 && t == 40) boxes.expect(then, ALL * 4);\nsum = t;"),
    "too few bytes expected": ("would get", "boxes.expect(t, ALL * 4);", "boxes.expect(t, ALL * 4 - 4);"),
    "too many bytes expected": ("deadlock", "boxes.expect(t, ALL * 4);", "boxes.expect(t, ALL * 4 + 4);"),
    "bytes never expected": ("deadlock", "if (step && t == 0) boxes.expect(now, ALL * 4);", ""),
    "half a word expected": ("expects", "if (t < 2) boxes.expect(t, ALL * 4);", "if (t < 2) boxes.expect(t, ALL * 4 + 2);"),
    "deliveries twice": ("would get|earlier delivery", "  }\n  store_one(a.y", "    if (step == 2) deliver(remote_place(h + (then * ALL + rank * N + t), rank), boxes.of(then, rank), sum);\n  }\n  store_one(a.y"),
    "the wrong parity": ("deadlock|without", "(step - 1) / 2);", "(step - 1) / 2 + 1);"),
    "the wrong box": ("deadlock", "boxes.wait(now, ", "boxes.wait(then, "),
    "no wait": ("x", "if (step) boxes.wait(now, (step - 1) / 2);", ""),
    "one warp without a wait": ("x", "if (step) boxes.wait", "if (step && t < 32) boxes.wait"),
    "a wait behind the reads": ("x", "    if (step) boxes.wait(now, (step - 1) / 2);\n    sum = t;\n    for (int i = 0; i < ALL; i++) sum += load_one(h + (now * ALL + i)) * (i % 7 + 1);\n", "    sum = t;\n    for (int i = 0; i < ALL; i++) sum += load_one(h + (now * ALL + i)) * (i % 7 + 1);\n    if (step) boxes.wait(now, (step - 1) / 2);\n"),
    "one buffer": ("x", "(then * ALL + rank * N + t), r)", "(now * ALL + rank * N + t), r)"),
    "no barrier between reading and sending": ("x", "    sync_block();\n    if (step + 1", "    if (step + 1"),
    "one box for both": ("x", "boxes.of(then, r)", "boxes.of(0, r)"),
    "a write to what is delivered": ("x", "sum = t;", "sum = t; if (step == 3 && t == 9) store_one(h + then * ALL, 0u);"),
    "the last delivery that nobody waits for": ("x", "    if (step + 1 == a.steps) break;", ""),
    "a delivery after the end": ("x", "sum);\n  sync_cluster();", "sum);\n  sync_cluster();\n  deliver(remote_place(h, rank), boxes.of(a.steps % 2, rank), sum);"),
}


class Given(ctypes.Structure):
    """What the kernel receives."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("steps", ctypes.c_int),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Return the kernel as it is and with each fault, compiled at once."""
    given, _, kernel = UNIT.partition("namespace elman")
    kernel = "namespace elman" + kernel
    text = f'#include "{emulator.CLUSTER_HEADER}"\n' + given
    for number, (_, old, new) in enumerate([("", "", ""), *FAULTS.values()]):
        assert kernel.count(old) == 1 or not number, old
        text += (kernel.replace(old, new) if number else kernel).replace("NAME", f"gather_{number}")
    return emulator.loaded(text)


def run(number: int, seed: int, clusters: int = 2) -> torch.Tensor:
    """Run a kernel; return what it wrote."""
    x = torch.arange(clusters * WORDS, dtype=torch.int32) * 2654435 + 1
    y = torch.zeros(clusters * WORDS, dtype=torch.int32)
    emulator.declare_tensors(library(), {"x": x}, {"y": y})
    wanted = Launch(f"run_gather_{number}", clusters * SIZE, THREADS, SHARED_BYTES)
    emulator.start(library(), wanted, Given(x.data_ptr(), y.data_ptr(), STEPS), seed)
    return y


@functools.cache
def expected(clusters: int = 2) -> torch.Tensor:
    """Return what the kernel writes."""
    h = (torch.arange(clusters * WORDS, dtype=torch.int32) * 2654435 + 1).view(clusters, WORDS)
    weights = torch.arange(WORDS, dtype=torch.int32) % 7 + 1
    for _ in range(STEPS):
        sums = (h * weights).sum(1, keepdim=True, dtype=torch.int32)
        h = sums + torch.arange(THREADS, dtype=torch.int32).repeat(SIZE)
    return h.flatten()


def test_an_exchange_within_clusters_is_right_in_every_order() -> None:
    for seed in SEEDS:
        assert torch.equal(run(0, seed), expected())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_whatever_the_order(fault) -> None:
    number = 1 + list(FAULTS).index(fault)
    for seed in SEEDS:
        with pytest.raises(emulator.FaultError) as caught:
            run(number, seed)
        assert re.search(FAULTS[fault][0], str(caught.value)), (seed, str(caught.value))
