"""cuda/common/grid.cuh itself, its inline assembly too, run on a CPU as PTX's manual says.

See test_cluster_header.py. Every probe runs with the header as it is, with each planted fault, and
with the emulator's own header in its place.
"""

from __future__ import annotations

import ctypes
import functools
import re

import pytest
import torch

from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, rows
from tests.emulation.test_device import units

pytestmark = pytest.mark.compiler

SEEDS = range(1, 5)
BLOCKS, THREADS, STEPS, STRIDE = 4, 64, 5, 8
ALL = BLOCKS * THREADS
# What is wrong, old text, new text.
FAULTS = {
    "a flag that tells nothing": ("st.release.gpu", "st.relaxed.gpu"),
    "a look that learns nothing": ("ld.acquire.gpu", "ld.relaxed.gpu"),
    "a word too far": ("st.release.gpu.global.u32 [%0], %1", "st.release.gpu.global.u32 [%1], %0"),
    "every flag is the first": ('"l"(words + flag * STRIDE), "r"(turn)', '"l"(words), "r"(turn)'),
    "every look is at the first": (
        '"l"(words + flag * STRIDE)\n                 : "memory"',
        '"l"(words)\n                 : "memory"',
    ),
    "no wait": ("if (seen >= turn)", "if (seen >= turn || looks == 1)"),
    "a wait that never ends": ("if (now - begin >= PATIENCE) return false;", ""),
    "a wait without patience": ("now - begin >= PATIENCE", "now + 1 > 0"),
    "who left counts as come": ("return seen != GONE", "return true"),
    "a warp that is never asked": ("__all_sync(0xffffffffu, mine)", "mine"),
    "the barrier asks this thread alone": ("__syncthreads_or(mine)", "(__syncthreads(), mine)"),
    "a post without its number": ("(unsigned long long)number << 32 | turn", "turn"),
    "a post that tells nothing": ("st.release.gpu.global.u64", "st.relaxed.gpu.global.u64"),
    "a take that learns nothing": ("ld.acquire.gpu.global.u64", "ld.relaxed.gpu.global.u64"),
    "a number of another turn": ("(unsigned)seen[i][0] == turn", "(unsigned)seen[i][0] <= turn"),
    "a second number of another turn": ("(unsigned)seen[i][EACH - 1] == turn", "true"),
    "a second number that is the first": ("(seen[i][n] >> 32)", "(seen[i][0] >> 32)"),
    "a pair that learns nothing": ("ld.acquire.gpu.global.v2", "ld.relaxed.gpu.global.v2"),
    "every post is the first": ('"l"(words + at), "l"(word)', '"l"(words), "l"(word)'),
    "a take beyond the end": ("(at[i] >= 0) << i", "(N > 0) << i"),
    "a barrier of fewer threads": ('bar.sync 1, %0;" ::"n"(N)', 'bar.sync 1, %0;" ::"n"(N / 2)'),
    "a barrier of more threads": ('bar.sync 1, %0;" ::"n"(N)', 'bar.sync 1, %0;" ::"n"(N + 32)'),
    "a take that ends with its first": ("missing &= ~(1u << i)", "missing = 0"),
}
# Every thread has a word. In every step it becomes a sum over the words of all threads of all
# blocks, which stand in two halves in turn. A block may leave before its end: `leaver`.
PROBES = """
struct Given {
  unsigned *h, *flags, *out;
  unsigned long long* posts;
  int steps, leaver, says;
};
namespace NAME {
using namespace elman;
// The header alone does not watch memory.
DEVICE unsigned read(const unsigned* p) {
  elman::emulation::touch_global(p, 4, false);
  return *p;
}
DEVICE void write(unsigned* p, unsigned x) {
  elman::emulation::touch_global(p, 4, true);
  *p = x;
}
DEVICE void gather(const Given& a) {
  constexpr int N = 64, BLOCKS = 4, ALL = BLOCKS * N;
  const Flags flags{a.flags};
  const int t = thread_index(), rank = (int)block_index();
  bool come = true;
  unsigned sum = rank * N + t;
  for (int step = 0; step < a.steps; step++) {
    if (rank == a.leaver && step == 3) {
      if (a.says && t == 0) flags.raise(rank, Flags::GONE);
      return;
    }
    unsigned* here = a.h + step % 2 * ALL;
    write(here + (rank * N + t), sum);
    sync_block();
    if (t == 0) flags.raise(rank, step + 1);
    bool here_too = true;
    if (t % 32 < BLOCKS) here_too = flags.wait(t % 32, step + 1);
    sync_warp();
    here_too = all_of_warp(here_too);
    if (sync_block_any(t == N - 1 && !here_too)) {
      come = false;
      if (t == 0) flags.raise(rank, Flags::GONE);
      break;
    }
    sum = t;
    for (int i = 0; i < ALL; i++) sum += read(here + i) * (i % 7 + 1);
    sum %= 65521;
    sync_block();
  }
  store_one(a.out + (rank * N + t), come ? sum : 7777777u);
}
// The same by posts, of which each thread takes three at a time, or in every other step two pairs;
// with them is told what a thread wrote beside.
DEVICE void trade(const Given& a) {
  constexpr int N = 64, BLOCKS = 4, ALL = BLOCKS * N, EACH = 3, PAIRS = 2;
  const Posts posts{a.posts};
  Arena arena;
  const sptr<unsigned> all = arena.take<unsigned>(ALL);
  const int t = thread_index(), rank = (int)block_index();
  unsigned sum = rank * N + t;
  for (int step = 0; step < a.steps; step++) {
    unsigned* here = a.h + step % 2 * ALL;
    write(here + (rank * N + t), sum + 1);
    sync_block();
    const int turns = step % 2 * ALL;
    posts.template put<true>(turns + rank * N + t, step + 1, sum);
    for (int first = 2 * t; step % 2 && first < ALL; first += 2 * PAIRS * N) {
      unsigned numbers[2 * PAIRS];
      int places[PAIRS];
      for (int i = 0; i < PAIRS; i++)
        places[i] = first + 2 * i * N < ALL ? turns + first + 2 * i * N : -1;
      posts.template take<PAIRS, true, 2>(numbers, places, step + 1);
      for (int i = 0; i < 2 * PAIRS; i++)
        if (places[i / 2] >= 0) store_one(all + (first + i / 2 * 2 * N + i % 2), numbers[i]);
    }
    for (int first = t; step % 2 == 0 && first < ALL; first += EACH * N) {
      unsigned numbers[EACH];
      int places[EACH];
      for (int i = 0; i < EACH; i++) places[i] = first + i * N < ALL ? turns + first + i * N : -1;
      posts.template take<EACH, true>(numbers, places, step + 1);
      for (int i = 0; i < EACH; i++)
        if (places[i] >= 0) store_one(all + (first + i * N), numbers[i]);
    }
    sync_block();
    sum = t;
    for (int i = 0; i < ALL; i++) sum += load_one(all + i) * (i % 7 + 1);
    sum += read(here + (rank + 1) % BLOCKS * N) - load_one(all + (rank + 1) % BLOCKS * N) - 1;
    sum %= 65521;
    sync_block();
  }
  store_one(a.out + (rank * N + t), sum);
}
// The first half of a block computes; the other waits for its end.
DEVICE void halves(const Given& a) {
  constexpr int N = 32;
  split_block<N>();
  Arena arena;
  const sptr<unsigned> all = arena.take<unsigned>(N);
  const int t = thread_index(), rank = (int)block_index();
  sync_block();
  unsigned sum = rank + t;
  for (int step = 0; t < N && step < a.steps; step++) {
    store_one(all + t, sum);
    sync_first<N>();
    sum = t;
    for (int i = 0; i < N; i++) sum += load_one(all + i) * (i % 7 + 1);
    sum %= 65521;
    sync_first<N>();
  }
  if (t < N) store_one(all + t, sum);
  sync_block();
  store_one(a.out + (rank * 2 * N + t), load_one(all + t % N));
}
}
"""
RUNS = """ELMAN_GRID_KERNEL(NAME_gather, 64, Given, NAME::gather(a))
ELMAN_RUN_GRID(NAME_gather, Given)
ELMAN_GRID_KERNEL(NAME_trade, 64, Given, NAME::trade(a))
ELMAN_RUN_GRID(NAME_trade, Given)
ELMAN_GRID_KERNEL(NAME_halves, 64, Given, NAME::halves(a))
ELMAN_RUN_GRID(NAME_halves, Given)
"""
PROBE_NAMES = ("gather", "trade", "halves")
OWN = PROBES.replace("NAME", "Probe") + "".join(
    f"ELMAN_GRID_KERNEL({name}, 64, Given, Probe::{name}(a))\n" for name in PROBE_NAMES
)
GAVE_UP = 7777777


class Given(ctypes.Structure):
    """What the probe receives."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("h", "flags", "out", "posts")),
        *((name, ctypes.c_int) for name in ("steps", "leaver", "says")),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Return all probes, compiled at once."""
    head = f'#include "{emulator.CUDA_HEADER}"\n'
    return emulator.loaded(head + units(FAULTS, PROBES + RUNS, ("grid",)))


@functools.cache
def own_library() -> ctypes.CDLL:
    """Return the probe over the emulator's header."""
    return emulator.loaded(f'#include "{emulator.GRID_HEADER}"\n{OWN}')


def run(
    number: int | None, seed: int, leaver: int = -1, says: bool = False, probe: str = "gather"
) -> torch.Tensor:
    """Run a probe over a header, or over the emulator's own; return what it wrote.

    Raises:
        FaultError: the emulator found one.
    """
    h = torch.full((2, ALL), -1, dtype=torch.int32)
    flags = torch.zeros(BLOCKS * STRIDE, dtype=torch.int32)
    out = torch.zeros(ALL, dtype=torch.int32)
    posts = torch.zeros(2 * ALL, dtype=torch.int64)
    places = (one.data_ptr() for one in (h, flags, out, posts))
    args = Given(*places, STEPS, leaver, says)
    kernels = own_library() if number is None else library()
    tensors: list[Stretch | None] = [
        rows("h", args.h, h.nbytes, writable=True, exchanged=True),
        rows("flags", args.flags, flags.nbytes, writable=True),
        rows("out", args.out, out.nbytes, writable=True),
        rows("posts", args.posts, posts.nbytes, writable=True),
    ]
    declare(kernels, tensors)
    kernel = kernels[probe if number is None else f"run_P{number}_{probe}"]
    kernel.restype = ctypes.c_char_p
    blocks = ctypes.c_int64(0), ctypes.c_int64(BLOCKS)
    sizes = (ctypes.c_int(4 * ALL),) * (number is None) or (
        ctypes.c_int(THREADS),
        ctypes.c_int(4 * ALL),
    )
    if said := kernel(ctypes.byref(args), *blocks, *sizes, seed):
        raise emulator.FaultError(said.decode())
    return out


@functools.cache
def expected(probe: str) -> torch.Tensor:
    """Return what a probe writes where nobody leaves."""
    if probe == "halves":
        half = torch.arange(THREADS // 2)
        x = torch.arange(BLOCKS)[:, None] + half
        for _ in range(STEPS):
            x = ((x * (half % 7 + 1)).sum(1, keepdim=True) + half) % 65521
        return x.repeat(1, 2).flatten().int()
    h, weights = torch.arange(ALL), torch.arange(ALL) % 7 + 1
    for _ in range(STEPS):
        h = ((h * weights).sum() + torch.arange(THREADS).repeat(BLOCKS)) % 65521
    return h.int()


def wrong(number: int | None) -> str:
    """Return what is wrong in some order of threads; nothing is ``""``."""
    for seed in SEEDS:
        try:
            for probe in PROBE_NAMES:
                if not torch.equal(run(number, seed, probe=probe), expected(probe)):
                    return f"wrong numbers of {probe}"
            for says in (False, True):
                out = run(number, seed, leaver=2, says=says).view(BLOCKS, THREADS)
                if not (out[[0, 1, 3]] == GAVE_UP).all() or out[2].any():
                    return "a block that left is not noticed"
        except emulator.FaultError as fault:
            return str(fault)
    return ""


@pytest.mark.parametrize("number", [0, None])
def test_both_headers_do_what_kernels_ask_of_them(number) -> None:
    assert wrong(number) == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_header_is_noticed(fault) -> None:
    said = wrong(1 + list(FAULTS).index(fault))
    assert said
    assert not re.search("no such instruction|does not compile", said)
