"""What blocks wait for when they hand numbers to each other through the L2 cache, beside copies.

    python tools/gpu/run.py exchange [turns] [looks] [paces=0,6,8] [count=2000]

``turns``: every block posts twelve numbers of bf16 and waits for those of all others, turn after
turn. The words are ``scattered`` (a line of the cache has words of 16 blocks), ``adjacent`` (one
instruction posts six words side by side) or ``wide`` (two words of 16 bytes). ``looks``: how long
one look at a word takes. Meanwhile a warp of each block copies weights into shared memory, so many
bytes a clock; 0: none. csrc/cuda/decode hands over its numbers so.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial

import torch

from elman.kernels.launching import Launch
from elman.ops.common.cuda_kernels import CudaKernels, multiprocessors
from tools.gpu.job import Check, Job, Row
from tools.gpu.text import numbers, warm

LAYOUTS = ("scattered", "adjacent", "wide")
WORDS, COPIED, WARPS = 6, 3072, 12  # of a block, bytes of a copy, warps that wait
SHARED_BYTES = 64 + 8 * COPIED
_TEXT = """
#include "cuda/common/device.cuh"
#include "cuda/common/cluster.cuh"
#include "cuda/common/grid.cuh"

namespace elman {
struct ExchangeArgs {
  void *posts, *clocks;
  const void* weights;
  long long turns, bytes;
};
constexpr int LAYOUT = @layout@, PACE = @pace@, BLOCKS = @blocks@, WORDS = @words@;
constexpr int COPIED = @copied@, WARPS = @warps@, SLOTS = 4, AREA = BLOCKS * 8;

// A block whose last warp copies until the others are done.
struct Block {
  Arena arena;
  const sptr<int> over;
  const Boxes boxes;
  const sptr<unsigned char> room;

  DEVICE Block()
      : over(arena.take<int>(1)),
        boxes(arena, SLOTS),
        room(arena.take<unsigned char>(SLOTS * COPIED)) {
    if (thread_index() < SLOTS) boxes.make(thread_index());
    if (thread_index() == 0) *over = 0;
    sync_block();
  }
  // Whether the warp is another one; the last one returns when all that it began has come.
  DEVICE bool waits(const ExchangeArgs& a) const {
    if (warp_index() < WARPS) return true;
    if (PACE > 0 && thread_index() % 32 == 0) copy_along(a);
    return false;
  }
  DEVICE void end() const { *(volatile int*)over = 1; }

  // SLOTS copies are on their way.
  DEVICE void copy_along(const ExchangeArgs& a) const {
    long long at = block_index() * COPIED;
    unsigned began = clock();
    unsigned n = 0;
    for (; !*(const volatile int*)over || n % SLOTS; n++) {
      const int slot = n % SLOTS;
      if (n >= SLOTS) boxes.wait(slot, n / SLOTS - 1);
      pause(began, COPIED / (PACE > 0 ? PACE : 1));
      began = clock();
      boxes.expect(slot, COPIED);
      boxes.copy(slot, room + slot * COPIED, (const unsigned char*)a.weights + at, COPIED);
      at += (long long)BLOCKS * COPIED;
      if (at + COPIED > a.bytes) at = block_index() * COPIED;
    }
    for (int slot = 0; n > 0 && slot < SLOTS; slot++) boxes.wait(slot, n / SLOTS - 1);
  }
};

DEVICE void post_all(const Posts& posts, int area, unsigned turn) {
  const int block = (int)block_index(), lane = thread_index() % 32, warp = warp_index();
  if (LAYOUT == 0) {
    if (lane == 0 && warp < WORDS) posts.put(area + block + warp * BLOCKS, turn, 1);
  } else if (LAYOUT == 1) {
    if (thread_index() < WORDS) posts.put(area + block * WORDS + lane, turn, 1);
  } else if (thread_index() < 2) {
    const unsigned long long word = turn;
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %1};" ::"l"(
                     posts.words + area + (block * 2 + lane) * 2),
                 "l"(word)
                 : "memory");
  }
}

DEVICE void exchange(const ExchangeArgs& a) {
  const Block block;
  if (!block.waits(a)) return;
  constexpr int PAIRS = LAYOUT == 2 ? 2 * BLOCKS : (WORDS * BLOCKS + 1) / 2;
  static_assert(PAIRS <= 64 * WARPS, "two pairs a thread");
  const Posts posts{(unsigned long long*)a.posts};
  unsigned long long before = 0;
  for (long long turn = 1; turn <= a.turns; turn++) {
    if (turn == 2) before = clock64();
    const int area = turn % 2 * AREA;
    post_all(posts, area, (unsigned)turn);
    unsigned taken[4];
    int at[2];
    for (int i = 0; i < 2; i++) {
      const int pair = thread_index() + i * 32 * WARPS;
      at[i] = pair < PAIRS ? area + 2 * pair : -1;
    }
    posts.template take<2, false, 2>(taken, at, (unsigned)turn);
    sync_first<32 * WARPS>();
  }
  if (thread_index() == 0) {
    ((unsigned long long*)a.clocks)[block_index()] = clock64() - before;
    block.end();
  }
}

// One thread of a block looks at one word after another.
DEVICE void look(const ExchangeArgs& a) {
  const Block block;
  if (!block.waits(a)) return;
  if (thread_index() > 0) return;
  unsigned long long sum = 0;
  for (long long n = 0; n < a.turns; n++) {
    const unsigned long long* word =
        (const unsigned long long*)a.posts + (n * 37 + block_index() * 11) % 96 * 16;
    unsigned began, ended;
    unsigned long long seen;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(began)::"memory");
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
    if (seen == 77) block.end();  // waits for what was seen
    asm volatile("mov.u32 %0, %%clock;" : "=r"(ended)::"memory");
    sum += ended - began;
  }
  ((unsigned long long*)a.clocks)[block_index()] = sum;
  block.end();
}
}  // namespace elman
ELMAN_GRID_KERNEL(exchange, 32 * (elman::WARPS + 1), elman::ExchangeArgs, elman::exchange(a))
ELMAN_GRID_KERNEL(look, 32 * (elman::WARPS + 1), elman::ExchangeArgs, elman::look(a))
"""


@dataclass(frozen=True)
class Exchange:
    """How blocks hand over their numbers.

    Args:
        layout: Which of :data:`LAYOUTS`.
        pace: Bytes that each block copies a clock.
        blocks: Blocks of the grid, one on each multiprocessor.
    """

    layout: int
    pace: int
    blocks: int


class ExchangeArgs(ctypes.Structure):
    """One launch."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("posts", "clocks", "weights")),
        *((name, ctypes.c_int64) for name in ("turns", "bytes")),
    )


def unit_text(one: Exchange) -> str:
    """Return the text of a translation unit."""
    values = {
        "layout": one.layout,
        "pace": one.pace,
        "blocks": one.blocks,
        "words": WORDS,
        "copied": COPIED,
        "warps": WARPS,
    }
    text = _TEXT
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


KERNELS: CudaKernels[Exchange] = CudaKernels(unit_text, "exchange")


def turns(job: Job) -> None:
    """Time turns of all layouts."""
    warm()
    for pace in numbers(job.settings["paces"]):
        for layout, name in enumerate(LAYOUTS):
            row = {"words": name, "bytes_a_clock": pace}
            job.measure(row, partial(clocks_of, job, "exchange", layout, pace))


def looks(job: Job) -> None:
    """Time looks."""
    warm()
    for pace in numbers(job.settings["paces"]):
        job.measure({"bytes_a_clock": pace}, partial(clocks_of, job, "look", 1, pace))


def clocks_of(job: Job, kernel: str, layout: int, pace: int) -> Row:
    """Return clocks of a turn or a look: the mean of all blocks, in the second of two launches."""
    device = torch.device("cuda", torch.cuda.current_device())
    one = Exchange(layout, pace, multiprocessors(device))
    count = job.settings["count"]
    posts = torch.zeros(1 << 16, dtype=torch.int64, device=device)
    clocks = torch.zeros(one.blocks, dtype=torch.int64, device=device)
    weights = torch.zeros(128 << 20, dtype=torch.uint8, device=device)
    args = ExchangeArgs(
        *(tensor.data_ptr() for tensor in (posts, clocks, weights)), count, len(weights)
    )
    wanted = Launch(kernel, one.blocks, 32 * (WARPS + 1), SHARED_BYTES, together=True)
    for _ in range(2):
        posts.zero_()
        KERNELS.launch(one, [wanted], args, device)
        torch.cuda.synchronize()
    return {"clocks": round(float(clocks.double().mean()) / (count - (kernel == "exchange")))}


CHECK = Check({"turns": turns, "looks": looks}, settings={"paces": "0,6,8", "count": 2000})
