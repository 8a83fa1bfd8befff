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
        "thread \\d+ of block \\d+ uses the box at byte \\d+ of block \\d+ before it was made and the cluster met",
        "  sync_cluster();\n  if (t < 2)",
        "  sync_block();\n  if (t < 2)",
    ),
    "no wait": (
        "race: shared byte \\d+ of block \\d+: thread \\d+ reads it without a wait for what is delivered there|race: shared byte \\d+ of block \\d+: thread \\d+ of block \\d+ delivers there without knowing that .* has read|the box at byte \\d+ of block \\d+: thread \\d+ of block \\d+ delivers without knowing that the turn before is over|the box .* expects bytes",
        "if (step) boxes.wait(now, (step - 1) / 2);",
        "",
    ),
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
