"""Clusters in the emulator: what is delivered arrives, and what could go wrong is reported."""

from __future__ import annotations

import ctypes
import functools
import re

import pytest
import torch

from elman.kernels.launching import Launch
from tests.emulation import emulator, test_cluster_header

pytestmark = pytest.mark.compiler

SEEDS = range(1, 9)
SIZE, THREADS, STEPS = 4, 64, 7
WORDS = SIZE * THREADS
SHARED_BYTES = 4 * (2 * WORDS + 4) + 16 + 32
# Every thread has a word. In every step it becomes a sum over the words of all threads of the
# cluster, each of which holds a copy of all words, in two buffers in turn.
UNIT = """
struct Given { const unsigned* x; unsigned* y; int steps; };
namespace elman {
inline void NAME(const Given& a) {
  constexpr int BLOCKS = 4, N = 64, ALL = BLOCKS * N;
  Arena arena;
  const sptr<unsigned> h = arena.take<unsigned>(2 * ALL);
  const sptr<unsigned> spare = arena.take<unsigned>(4);
  const Boxes boxes(arena, 2);
  const Signal<32, 32> done(arena);
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
_BOX = r"the box at byte \d+ of block \d+"
_SENDER = r"thread \d+ of block \d+"
_NO_WAIT = r"race: shared byte \d+ of block \d+: thread \d+ reads it without a wait for what is"
_UNREAD = rf"race: shared byte \d+ of block \d+: {_SENDER} delivers there without knowing that"
_EARLIER = rf"race: .*{_SENDER} delivers there while an earlier delivery may be on its way"
_SENDING = "deliver(remote_place(h + (then * ALL + rank * N + t), r), boxes.of(then, r), sum);"
_EXPECTING = "if (step && t == 0) boxes.expect(now, ALL * 4);"
_WAITING = "if (step) boxes.wait(now, (step - 1) / 2);"
_READING = "    for (int i = 0; i < ALL; i++) sum += load_one(h + (now * ALL + i)) * (i % 7 + 1);\n"
_FIRST = "if (t < 2) boxes.expect(t, ALL * 4);"
_LAST = "sum);\n  sync_cluster();"
_MAKING = "if (t < 2) boxes.make(t);"
# What else is right: old text, new text; and the text that goes.
SOUND = {
    "as it is": ("", "", ""),
    "bytes expected when they may have come": (
        f"{_READING}    {_EXPECTING}",
        f"""{_READING}    if (t == 0 && step + 1 < a.steps) boxes.expect(then, ALL * 4);""",
        _FIRST,
    ),
    "one lane that waits for its warp": (
        _WAITING,
        "if (step && lane == 0) boxes.wait(now, (step - 1) / 2);\n    sync_warp();",
        "",
    ),
    "one warp that waits for its block": (
        _WAITING,
        "if (step && t < 32) boxes.wait(now, (step - 1) / 2);\n    sync_block();",
        "",
    ),
    "one warp that waits, and a signal": (
        _WAITING,
        """if (step && t >= 32) boxes.wait(now, (step - 1) / 2);
    if (t >= 32) done.arrive(step);
    else done.wait(step);""",
        "",
    ),
}
# What is wrong: what is said of it, old text, new text.
FAULTS = {
    "boxes used before the cluster has met": (
        rf"{_SENDER} uses the box at byte \d+ of block \d+ before it was made and the cluster met",
        "  sync_cluster();\n  if (t < 2)",
        "  sync_block();\n  if (t < 2)",
    ),
    "a box that nobody makes": (
        rf"{_SENDER} uses the box at byte 2072 of block \d+ before it was made",
        _MAKING,
        "if (t < 1) boxes.make(t);",
    ),
    "a box that is made twice": (
        rf"thread \d+ makes {_BOX} a second time",
        _MAKING,
        "if (t < 4) boxes.make(t / 2);",
    ),
    "a box that is not there": (
        "shared index 23 outside an array of 16",
        _FIRST,
        _FIRST.replace("2", "3"),
    ),
    "half a word too far": (
        rf"shared byte \d+ of block \d+: a delivery of 4 bytes is not aligned \({_SENDER}\)",
        "rank * N + t), r)",
        "rank * N + t), r) + 2",
    ),
    "two words at an odd place": (
        r"shared byte \d+ of block \d+: a delivery of 8 bytes is not aligned",
        "boxes.of(then, r), sum)",
        "boxes.of(then, r), sum, sum)",
    ),
    "a place behind the array": (
        r"shared byte \d+ of block \d+: a delivery of 4 bytes is outside its array of "
        "bytes 0 to 2047",
        "h + (then * ALL",
        "h + ((then + 1) * ALL",
    ),
    "counted in another block": (
        rf"{_SENDER} delivers to block \d+ and counts it in block \d+",
        "boxes.of(then, r), sum)",
        "boxes.of(then, r ^ 1), sum)",
    ),
    "a rank too many": (
        rf"a place in a block of rank 4 of a cluster of 4 \({_SENDER}\)",
        "for (int r = 0; r < BLOCKS; r++)\n      deliver",
        "for (int r = 1; r <= BLOCKS; r++)\n      deliver",
    ),
    "no meeting at the end": (
        rf"{_SENDER} ends without sync_cluster\(\)",
        _LAST,
        "sum);",
    ),
    "a block that leaves early": (
        r"thread \d+ of block [15] ends without sync_cluster\(\)",
        "    if (step + 1 == a.steps) break;",
        "    if (rank == 1 && step == 3) return;\n    if (step + 1 == a.steps) break;",
    ),
    "a block that has left": (
        r".* block 1,? (which has )?left",
        "  if (t < 2) boxes.expect(t",
        "  if (rank == 1) return;\n  if (t < 2) boxes.expect(t",
    ),
    "a thread that misses the meeting": (
        r"deadlock: (.* waits at sync_cluster \S+:\d+, )?thread 5 of block \d+ waits at barrier",
        _LAST,
        "sum);\n  if (t == 5) sync_block();\n  sync_cluster();",
    ),
    "a block that misses the meeting": (
        r"thread \d+ of block [0134567] left, and others wait for it at sync_cluster \S+:\d+",
        _LAST,
        "sum);\n  if (rank == 2) sync_cluster();\n  sync_cluster();",
    ),
    "a warp that leaves before the meeting": (
        r"thread 63 of block \d+ left, and others wait for it at sync_cluster \S+:\d+",
        _MAKING,
        "if (t >= 32) return;\n" + _MAKING,
    ),
    "bytes expected by two threads": (
        rf"{_BOX}: thread \d+ expects bytes twice in a turn",
        "if (step && t == 0) boxes.expect",
        "if (step && t < 2) boxes.expect",
    ),
    "bytes expected before the turn before is over": (
        rf"{_BOX}: thread \d+ expects bytes (twice|without knowing)",
        "    sum = t;",
        "    if (step == 1 && t == 40) boxes.expect(then, ALL * 4);\n    sum = t;",
    ),
    "bytes expected by who has not waited": (
        rf"{_BOX}: thread 40 expects bytes (twice|without knowing that the turn before is over)",
        _WAITING,
        """if (step && t < 32) boxes.wait(now, (step - 1) / 2);
    if (step == 1 && t == 40) boxes.expect(now, ALL * 4);
    sync_block();""",
    ),
    "too few bytes expected": (
        rf"{_BOX} would get 1024 bytes in a turn of 1020 \({_SENDER}\)",
        "boxes.expect(t, ALL * 4);",
        "boxes.expect(t, ALL * 4 - 4);",
    ),
    "too many bytes expected": (
        rf"deadlock: {_SENDER} waits at the wait for a box \S+:\d+ for {_BOX}: in turn 0 1024 "
        "bytes have come of 1028",
        "boxes.expect(t, ALL * 4);",
        "boxes.expect(t, ALL * 4 + 4);",
    ),
    "bytes never expected": (
        rf"deadlock: .* for {_BOX}: in turn 1 1024 bytes have come, how many there will be nobody",
        _EXPECTING,
        "",
    ),
    "half a word expected": (rf"{_BOX} expects 1026 bytes", "t, ALL * 4);", "t, ALL * 4 + 2);"),
    "a word delivered twice": (
        _EARLIER,
        _SENDING,
        f"{{ {_SENDING} {_SENDING} }}",
    ),
    "a turn of too much": (
        rf"{_BOX} would get \d+ bytes in a turn of 1024",
        _SENDING,
        f"""{{
        {_SENDING}
        if (t == 0) deliver(remote_place(spare + rank, r), boxes.of(then, r), sum);
      }}""",
    ),
    "the other parity": (
        _NO_WAIT,
        "(step - 1) / 2);",
        "(step - 1) / 2 + 1);",
    ),
    "always the same parity": (
        rf"deadlock|{_NO_WAIT}",
        "(step - 1) / 2);",
        "0);",
    ),
    "the other box": (
        rf"deadlock: {_SENDER} waits at the wait for a box \S+:\d+ for {_BOX}: in turn 0 0 bytes",
        "boxes.wait(now, ",
        "boxes.wait(then, ",
    ),
    "no wait": (_NO_WAIT, _WAITING, ""),
    "one warp without a wait": (_NO_WAIT, "if (step) boxes.wait", "if (step && t < 32) boxes.wait"),
    "a wait behind the reads": (
        _NO_WAIT,
        f"    {_WAITING}\n    sum = t;\n{_READING}",
        f"    sum = t;\n{_READING}    {_WAITING}\n",
    ),
    "one buffer": (
        rf"{_UNREAD} .* has read|{_NO_WAIT}",
        "(then * ALL + rank",
        "(now * ALL + rank",
    ),
    "no barrier between reading and sending": (
        rf"{_UNREAD} .* has read what stood there",
        "    sync_block();\n    if (step + 1",
        "    if (step + 1",
    ),
    "a write to what is delivered": (
        rf"{_UNREAD} thread 9 has written|race: shared byte 0 .* thread 9 writes it without a wait",
        "    sum = t;",
        "    sum = t;\n    if (step == 3 && t == 9) store_one(h, 0u);",
    ),
    "a last delivery that nobody waits for": (
        rf"{_BOX}: nobody waits for turn 3, so that deliveries may come after the end",
        "    if (step + 1 == a.steps) break;",
        "",
    ),
    "a part of a turn that nobody waits for": (
        rf"{_BOX}: 256 bytes of turn 3 are delivered, and the cluster ends before it is over",
        "    if (step + 1 == a.steps) break;",
        "    if (step + 1 == a.steps && rank) break;",
    ),
    "a delivery after the end": (
        rf"{_SENDER} ends without sync_cluster\(\)",
        _LAST,
        f"{_LAST}\n  deliver(remote_place(h, rank), boxes.of(a.steps % 2, rank), sum);",
    ),
    "a copy to where it is delivered": (
        rf"race: .* {_SENDER} delivers there while a copy is in flight|race: .* thread 7 ",
        "    sync_block();\n    if (step + 1",
        """    if (t == 7 && step == 2)
      copy_async<4>(cast<unsigned char>(h + then * ALL), a.x, 4), commit_copies();
    sync_block();
    if (step + 1""",
    ),
}
# The same of products and shuffles.
TILES = """
namespace elman {
inline void NAME(const Given& a) {
  float d[4] = {};
  const unsigned words[4] = {};
  const int lane = thread_index() % 32;
  BODY
  (void)lane;
}
}
ELMAN_CLUSTER_KERNEL(run_NAME, 4, 64, 1, Given, elman::NAME(a))
"""
PARTED = {
    "half a warp that multiplies": (
        r"deadlock|warp diverges: multiply_tiles \S+:\d+ against warp barrier",
        """if (lane < 16) multiply_tiles(d, words, 0, 0);
        sync_warp();""",
    ),
    "half a warp that shuffles": (
        r"warp diverges: shuffle_four \S+:\d+ against multiply_tiles",
        """if (lane < 20) shuffle_four(0, 1);
        multiply_tiles(d, words, 0, 0);""",
    ),
    "a lane that left": (
        r"a thread left its warp before multiply_tiles \S+:\d+ \(block \d+\)",
        "if (lane == 9) return; multiply_tiles(d, words, 0, 0);",
    ),
    "a lane that meets its cluster instead": (
        r"deadlock: .* waits at multiply_tiles \S+:\d+, thread 9 of block \d+ waits at sync",
        "if (lane == 9) sync_cluster(); else multiply_tiles(d, words, 0, 0);",
    ),
    "lanes that meet their cluster at two places": (
        r"warp diverges: sync_cluster \S+:\d+ against sync_cluster",
        """if (lane == 9) sync_cluster();
        else
          sync_cluster();""",
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
    """Return the kernel as it is and with each edit, compiled at once."""
    given, _, kernel = UNIT.partition("namespace elman")
    kernel = "namespace elman" + kernel
    text = f'#include "{emulator.CLUSTER_HEADER}"\n' + given
    edits = [*SOUND.values(), *((old, new, "") for _, old, new in FAULTS.values())]
    for number, (old, new, gone) in enumerate(edits):
        assert all(kernel.count(part) == 1 for part in (old, gone) if part), old
        edited = kernel
        for part, instead in ((old, new), (gone, "")):
            edited = edited.replace(part, instead) if part else edited
        text += edited.replace("NAME", f"gather_{number}")
    for number, (_, body) in enumerate(PARTED.values()):
        text += TILES.replace("NAME", f"parted_{number}").replace("BODY", body)
    return emulator.loaded(text)


def run(name: str, seed: int, clusters: int = 2) -> torch.Tensor:
    """Run a kernel; return what it wrote."""
    x = torch.arange(clusters * WORDS, dtype=torch.int32) * 2654435 + 1
    y = torch.zeros(clusters * WORDS, dtype=torch.int32)
    emulator.declare_tensors(library(), {"x": x}, {"y": y})
    wanted = Launch(f"run_{name}", clusters * SIZE, THREADS, SHARED_BYTES)
    emulator.start(library(), wanted, Given(x.data_ptr(), y.data_ptr(), STEPS), seed)
    return y


def said(name: str, seed: int) -> str:
    """Return what the emulator reports of a kernel."""
    try:
        run(name, seed)
    except emulator.FaultError as fault:
        return str(fault).removeprefix(f"run_{name}: ")
    return ""


@functools.cache
def expected(clusters: int = 2) -> torch.Tensor:
    """Return what the kernel writes."""
    h = (torch.arange(clusters * WORDS, dtype=torch.int32) * 2654435 + 1).view(clusters, WORDS)
    weights = torch.arange(WORDS, dtype=torch.int32) % 7 + 1
    for _ in range(STEPS):
        sums = (h * weights).sum(1, keepdim=True, dtype=torch.int32)
        h = sums + torch.arange(THREADS, dtype=torch.int32).repeat(SIZE)
    return h.flatten()


@functools.cache
def probes() -> ctypes.CDLL:
    """Return the probes that test_cluster_header.py runs over cluster.cuh itself."""
    kernels = "".join(
        f"ELMAN_CLUSTER_KERNEL({name}, 4, 64, 1, Given, Probe::{name}(a))\n"
        for name in test_cluster_header.NAMES
    )
    text = test_cluster_header.PROBES.replace("NAME", "Probe") + kernels
    return emulator.loaded(f'#include "{emulator.FAST_CLUSTER_HEADER}"\n{text}')


@pytest.mark.parametrize("name", test_cluster_header.NAMES)
def test_both_headers_of_clusters_do_the_same(name) -> None:
    for seed in SEEDS:
        x, out = test_cluster_header.given(name)
        x = x.int()
        emulator.declare_tensors(probes(), {"x": x}, {"out": out})
        args = test_cluster_header.Given(x.data_ptr(), out.data_ptr(), test_cluster_header.STEPS)
        blocks = test_cluster_header.CLUSTERS * SIZE
        emulator.start(probes(), Launch(name, blocks, THREADS, SHARED_BYTES), args, seed)
        assert torch.equal(out, test_cluster_header.expected(name))


def test_clusters_are_whole() -> None:
    wanted = Launch("run_gather_0", 6, THREADS, SHARED_BYTES)
    with pytest.raises(emulator.FaultError, match="clusters of 4 blocks do not fill blocks 0 to 5"):
        emulator.start(library(), wanted, Given(None, None, 0))


@pytest.mark.parametrize("name", SOUND)
def test_an_exchange_is_right_in_every_order(name) -> None:
    number = list(SOUND).index(name)
    for seed in SEEDS:
        assert torch.equal(run(f"gather_{number}", seed), expected())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_whatever_the_order(fault) -> None:
    name = f"gather_{len(SOUND) + list(FAULTS).index(fault)}"
    for seed in SEEDS:
        assert re.match(FAULTS[fault][0], said(name, seed)), (seed, said(name, seed))


@pytest.mark.parametrize("fault", PARTED)
def test_a_warp_that_parts_is_reported(fault) -> None:
    name = f"parted_{list(PARTED).index(fault)}"
    for seed in SEEDS:
        assert re.match(PARTED[fault][0], said(name, seed)), (seed, said(name, seed))
