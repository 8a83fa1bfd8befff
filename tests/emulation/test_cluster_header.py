"""cuda/common/cluster.cuh itself, its inline assembly too, run on a CPU as PTX's manual says.

See test_device.py. Every probe runs with the header as it is and with each planted fault, all of
them in one translation unit.
"""

from __future__ import annotations

import ctypes
import functools

import pytest
import torch

from tests.emulation import emulator
from tests.emulation.stretches import declare, rows
from tests.emulation.test_device import units

SEEDS = range(1, 5)
SIZE, THREADS, CLUSTERS, STEPS = 4, 64, 2, 9
# What is wrong, old text, new text.
FAULTS = {
    "the cluster for the rank": ("%%cluster_ctarank", "%%clusterid.x"),
    "the rank for the cluster": ("%%clusterid.x", "%%cluster_ctarank"),
    "a meeting without arrival": (
        'asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");',
        "",
    ),
    "a meeting without a wait": (
        'asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");',
        "",
    ),
    "a place of the rank, in the block of the place": (
        '"=r"(place)\n               : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(rank)',
        '"=r"(place)\n               : "r"(rank), "r"((unsigned)__cvta_generic_to_shared(p))',
    ),
    "a place in the block itself": (
        'asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"',
        'asm volatile("mov.u32 %0, %1;"',
    ),
    "two arrivals for a turn": ("[%0], 1;", "[%0], 2;"),
    "boxes that are not announced": ("fence.mbarrier_init.release.cluster;", ""),
    "a turn of no bytes": ("mbarrier.arrive.expect_tx", "mbarrier.arrive"),
    "the other parity": ('"r"(turn % 2)', '"r"((turn + 1) % 2)'),
    "a parity that is a count": ('"r"(turn % 2)', '"r"(turn)'),
    "a wait that gives up": ("!over; tries++", "tries < 2; tries++"),
    "a wait while it is over": ("1, 0, over;", "0, 1, over;"),
    "boxes too close": ("STRIDE = 8", "STRIDE = 4"),
    "one box for all in other blocks": ("barriers + box * STRIDE", "barriers"),
    "one box for all in this block": ("(barriers) + box * STRIDE", "(barriers)"),
    "a word to the barrier": (
        'b32 [%0], %1, [%2];" ::"r"(place),\n      "r"(w0), "r"(barrier)',
        'b32 [%0], %1, [%2];" ::"r"(barrier),\n      "r"(w0), "r"(place)',
    ),
    "two words the wrong way round": ("{%1, %2}, [%3]", "{%2, %1}, [%3]"),
    "two words as four": (".v2.b32", ".v4.b32"),
    "four words the wrong way round": ("{%1, %2, %3, %4}, ", "{%1, %3, %2, %4}, "),
    "rows of a the wrong way round": ("{%4, %5, %6, %7}", "{%5, %4, %6, %7}"),
    "rows of b the wrong way round": ("{%8, %9}", "{%9, %8}"),
    "columns of d the wrong way round": (
        "{%8, %9}, {%0, %1, %2, %3}",
        "{%8, %9}, {%1, %0, %2, %3}",
    ),
    "a product that adds nothing": (': "+f"(d[0])', ': "=f"(d[0])'),
    "a copy of fewer bytes": ('"l"(from), "r"(bytes)', '"l"(from), "r"(bytes / 2)'),
    "a copy counted at the first box": ('"r"(bytes), "r"(at(box))', '"r"(bytes), "r"(at(0))'),
    "a turn that nobody ends": ('"mbarrier.arrive.shared::cta.b64 _, [%0];"', '""'),
    "the end of the first box's turn": (
        'mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(box))',
        'mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(0))',
    ),
    "a word of the whole warp": ("word, lane, 4)", "word, lane)"),
}
# Every four threads have four words, which they deliver to all blocks, in turn by one, two and four
# words at a time. They become sums over all words.
PROBES = """
struct Given { const unsigned* x; float* out; int steps; };
namespace NAME {
using namespace elman;
DEVICE void gather(const Given& a) {
  constexpr int ALL = 4 * 64;
  Arena arena;
  const sptr<unsigned> h = arena.take<unsigned>(2 * ALL);
  const Boxes boxes(arena, 2);
  const int t = thread_index(), rank = cluster_rank(), c = t % 4;
  for (int i = t; i < ALL; i += 64) store_one(h + i, load_one(a.x + cluster_index() * ALL + i));
  if (t < 2) boxes.make(t);
  sync_cluster();
  if (t < 2) boxes.expect(t, ALL * 4);
  for (int step = 0; step < a.steps; step++) {
    const int now = step % 2, then = 1 - now;
    if (step) boxes.wait(now, (step - 1) / 2);
    unsigned sum = t;
    for (int i = 0; i < ALL; i++) sum += load_one(h + (now * ALL + i)) * (i % 7 + 1);
    sum %= 65521;
    if (step && t == 0) boxes.expect(now, ALL * 4);
    sync_block();
    unsigned w[4];
    for (int i = 0; i < 4; i++) w[i] = shuffle_four(sum, i);
    a.out[(block_index() * a.steps + step) * 64 + t] = sum;
    if (step + 1 == a.steps) break;
    const Remote place = remote_place(h + (then * ALL + rank * 64 + t - c), c);
    const Remote box = boxes.of(then, c);
    if (step % 3 == 0)
      for (int i = 0; i < 4; i++) deliver(place + i * 4, box, w[i]);
    if (step % 3 == 1) deliver(place, box, w[0], w[1]), deliver(place + 8, box, w[2], w[3]);
    if (step % 3 == 2) deliver(place, box, w[0], w[1], w[2], w[3]);
  }
  sync_cluster();
}
// out = x of the block, by copies: half of it in each of two boxes. A third box has an empty turn.
DEVICE void copied(const Given& a) {
  Arena arena;
  const sptr<unsigned> h = arena.take<unsigned>(64);
  const Boxes boxes(arena, 3);
  const int t = thread_index();
  if (t < 3) boxes.make(t);
  sync_cluster();
  if (t < 2) {
    boxes.expect(t, 128);
    boxes.copy(t, h + 32 * t, a.x + block_index() * 64 + 32 * t, 128);
  }
  boxes.wait(t / 32, 0);
  if (t == 0) boxes.pass(2);
  boxes.wait(2, 0);
  a.out[block_index() * 64 + t] = load_one(h + t);
  sync_cluster();
}
// out = out + a b of each warp: a is 16 by 16, b 16 by 8, in rows.
DEVICE void products(const Given& given) {
  const int lane = thread_index() % 32, g = lane / 4, c = lane % 4;
  const unsigned* x = given.x + (block_index() * 2 + warp_index()) * 384;
  float* out = given.out + (block_index() * 2 + warp_index()) * 128;
  unsigned a[4], b[2];
  for (int i = 0; i < 4; i++) {
    const unsigned* at = x + (g + i % 2 * 8) * 16 + c * 2 + i / 2 * 8;
    a[i] = pack_bf16((float)at[0], (float)at[1]);
  }
  for (int i = 0; i < 2; i++) {
    const unsigned* at = x + 256 + (c * 2 + i * 8) * 8 + g;
    b[i] = pack_bf16((float)at[0], (float)at[8]);
  }
  float d[4];
  for (int i = 0; i < 4; i++) d[i] = out[(g + i / 2 * 8) * 8 + c * 2 + i % 2];
  multiply_tiles(d, a, b[0], b[1]);
  for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + c * 2 + i % 2] = d[i];
}
}
"""
NAMES = ("gather", "products", "copied")
RUNS = "".join(
    f"ELMAN_CLUSTER_KERNEL(NAME_{probe}, 4, 64, 1, Given, NAME::{probe}(a))\n"
    f"ELMAN_RUN_CLUSTERS(NAME_{probe}, Given, 4)\n"
    for probe in NAMES
)


class Given(ctypes.Structure):
    """What a probe receives."""

    _fields_ = (("x", ctypes.c_void_p), ("out", ctypes.c_void_p), ("steps", ctypes.c_int))


@functools.cache
def library() -> ctypes.CDLL:
    """Return all probes, compiled at once."""
    head = f'#include "{emulator.CUDA_HEADER}"\n'
    return emulator.loaded(head + units(FAULTS, PROBES + RUNS, ("cluster",)))


def given(probe: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a probe reads, and what stands where it writes."""
    draw = torch.Generator().manual_seed(3)
    if probe == "gather":
        x = torch.randint(65521, (CLUSTERS, SIZE * THREADS), generator=draw)
        return x, torch.zeros(CLUSTERS, SIZE, STEPS, THREADS)
    if probe == "copied":
        x = torch.randint(65521, (CLUSTERS * SIZE, THREADS), generator=draw)
        return x, torch.zeros(CLUSTERS * SIZE, THREADS)
    x = torch.randint(8, (CLUSTERS * SIZE * 2, 24, 16), generator=draw)
    return x, torch.randint(8, (CLUSTERS * SIZE * 2, 16, 8), generator=draw).float()


def expected(probe: str) -> torch.Tensor:
    """Return what a probe writes."""
    x, out = given(probe)
    if probe == "copied":
        return x.float()
    if probe == "products":
        return out + x[:, :16].float() @ x[:, 16:].reshape(-1, 16, 8).float()
    weights = torch.arange(SIZE * THREADS) % 7 + 1
    for step in range(STEPS):
        sums = (x * weights).sum(1, keepdim=True)
        x = (sums + torch.arange(THREADS).repeat(SIZE)) % 65521
        out[:, :, step] = x.view(CLUSTERS, SIZE, THREADS)
    return out


def wrong(probe: str, number: int) -> str:
    """Return what is wrong with a probe's results in some order of threads; nothing is ``""``."""
    wanted = expected(probe)
    for seed in SEEDS:
        x, out = given(probe)
        x = x.int()
        args = Given(x.data_ptr(), out.data_ptr(), STEPS)
        declare(library(), [rows("x", args.x, x.nbytes)])
        kernel = library()[f"run_P{number}_{probe}"]
        kernel.restype = ctypes.c_char_p
        blocks = ctypes.c_int64(0), ctypes.c_int64(CLUSTERS * SIZE)
        sizes = ctypes.c_int(THREADS), ctypes.c_int(2 * SIZE * THREADS * 4 + 32)
        said: bytes = kernel(ctypes.byref(args), *blocks, *sizes, seed)
        if said:
            return said.decode()
        if not torch.equal(out, wanted):
            return "wrong numbers"
    return ""


@pytest.mark.parametrize("probe", NAMES)
def test_the_header_does_what_kernels_ask_of_it(probe) -> None:
    assert wrong(probe, 0) == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_header_is_noticed(fault) -> None:
    number = 1 + list(FAULTS).index(fault)
    assert any(wrong(probe, number) for probe in NAMES)
