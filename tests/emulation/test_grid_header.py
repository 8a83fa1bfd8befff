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
}
# Every thread has a word. In every step it becomes a sum over the words of all threads of all
# blocks, which stand in two halves in turn. A block may leave before its end: `leaver`.
PROBES = """
struct Given { unsigned* h; unsigned* flags; unsigned* out; int steps, leaver, says; };
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
}
"""
RUNS = """ELMAN_GRID_KERNEL(NAME_gather, 64, Given, NAME::gather(a))
ELMAN_RUN_GRID(NAME_gather, Given)
"""
OWN = PROBES.replace("NAME", "Probe") + "ELMAN_GRID_KERNEL(gather, 64, Given, Probe::gather(a))\n"
GAVE_UP = 7777777


class Given(ctypes.Structure):
    """What the probe receives."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("h", "flags", "out")),
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


def run(number: int | None, seed: int, leaver: int = -1, says: bool = False) -> torch.Tensor:
    """Run the probe over a header, or over the emulator's own; return what it wrote.

    Raises:
        FaultError: the emulator found one.
    """
    h = torch.full((2, ALL), -1, dtype=torch.int32)
    flags = torch.zeros(BLOCKS * STRIDE, dtype=torch.int32)
    out = torch.zeros(ALL, dtype=torch.int32)
    args = Given(h.data_ptr(), flags.data_ptr(), out.data_ptr(), STEPS, leaver, says)
    kernels = own_library() if number is None else library()
    tensors: list[Stretch | None] = [
        rows("h", args.h, h.nbytes, writable=True, exchanged=True),
        rows("flags", args.flags, flags.nbytes, writable=True),
        rows("out", args.out, out.nbytes, writable=True),
    ]
    declare(kernels, tensors)
    kernel = kernels["gather" if number is None else f"run_P{number}_gather"]
    kernel.restype = ctypes.c_char_p
    blocks = ctypes.c_int64(0), ctypes.c_int64(BLOCKS)
    sizes = (ctypes.c_int(64),) * (number is None) or (ctypes.c_int(THREADS), ctypes.c_int(64))
    if said := kernel(ctypes.byref(args), *blocks, *sizes, seed):
        raise emulator.FaultError(said.decode())
    return out


@functools.cache
def expected() -> torch.Tensor:
    """Return what the probe writes where nobody leaves."""
    h, weights = torch.arange(ALL), torch.arange(ALL) % 7 + 1
    for _ in range(STEPS):
        h = ((h * weights).sum() + torch.arange(THREADS).repeat(BLOCKS)) % 65521
    return h.int()


def wrong(number: int | None) -> str:
    """Return what is wrong in some order of threads; nothing is ``""``."""
    for seed in SEEDS:
        try:
            if not torch.equal(run(number, seed), expected()):
                return "wrong numbers"
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
