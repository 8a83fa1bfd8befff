"""The emulator itself: what signals order, what memory a launch may touch, and what it reports."""

from __future__ import annotations

import ctypes
import functools
import re

import pytest
import torch

from tests.emulation import emulator
from tests.emulation.stretches import declare, rows

pytestmark = pytest.mark.compiler

SEEDS = range(1, 9)
BYTES = 256 + 2 * 32
# Of a block of three warps the first two walk and the last one helps; x is shared memory.
UNIT = """
#include "emulation/device.h"
struct Nothing { float *x, *y, *freed, *other; };
namespace elman {
// Lets go of a stretch of memory, as its owner may while a copy still reads it.
inline void free_stretch(const char* name) {
  for (auto& stretch : emulation::stretches)
    if (!std::strcmp(stretch.name, name)) stretch.freed = 1;
}
using Produced = Signal<64, 32>;
using Walked = Signal<0, 64>;
// Turns 0, 2 and 1: those two have one barrier.
inline void lap(const Produced& producers) {
  producers.arrive(0), producers.wait(0), producers.arrive(2), producers.wait(2);
  producers.arrive(1);
}
"""
PROBE = """
inline void %(name)s(const Nothing& a) {
  Arena arena;
  const sptr<float> x = arena.take<float>(64);
  const Produced producers(arena);
  const Walked walked(arena);
  %(ready)s
  const int lane = thread_index() %% 32, warp = warp_index();
  const bool producer = warp == 2;
  float seen = 0;
  const sptr<unsigned char> room = cast<unsigned char>(x);
  %(body)s
}
"""
SOUND = {
    "what_producers_wrote_is_read_after_their_signal": """
        if (producer) x[lane] = 1.0f, producers.arrive(0);
        else producers.wait(0), seen = x[31 - lane];""",
    "what_walkers_have_read_is_written_after_their_signal": """
        if (producer) walked.wait(0), x[31 - lane] = 1.0f;
        else seen = x[lane], walked.arrive(0);""",
    "who_waits_learns_what_the_others_knew": """
        if (producer) walked.wait(0), producers.arrive(0);
        else x[thread_index()] = 1.0f, walked.arrive(0), producers.wait(0), seen = x[63 - lane];""",
    "a_signal_may_be_over_before_anybody_waits": """
        if (producer) x[lane] = 1.0f, producers.arrive(0), producers.arrive(1);
        else producers.wait(1), producers.wait(0), seen = x[31 - lane];""",
    "many_turns": """
        for (unsigned turn = 0; turn < 9; turn++) {
          if (producer) x[lane] = 1.0f, producers.arrive(turn), walked.wait(turn);
          else producers.wait(turn), seen = x[31 - lane], walked.arrive(turn);
        }""",
}
FAULTS = {
    "a_read_that_does_not_wait": ("race", "if (producer) x[lane] = 1.0f; else seen = x[lane];"),
    "a_write_that_does_not_wait": (
        "race",
        """if (producer) producers.arrive(0), x[lane] = 1.0f;
        else producers.wait(0), seen = x[lane], walked.arrive(0);""",
    ),
    "a_wait_for_the_turn_before": (
        "race",
        """if (producer) producers.arrive(0), x[lane] = 1.0f, producers.arrive(1);
        else producers.wait(0), seen = x[lane];""",
    ),
    # A barrier knows even from odd alone: turn 6 counts as over as soon as turn 2 is.
    "a_wait_for_a_turn_far_ahead": (
        "race",
        """if (producer) lap(producers), x[lane] = 1.0f;
        else producers.wait(1), producers.wait(6), seen = x[lane];""",
    ),
    "a_signal_that_is_lapped": (
        "deadlock: thread \\d+ waits at signal of producers",
        """if (producer) lap(producers);
        else producers.wait(1), producers.wait(0);""",
    ),
    "a_signal_that_never_comes": (
        "deadlock: thread \\d+ waits at signal of those that walk",
        "if (producer) walked.wait(0);",
    ),
    "arrivals_of_the_wrong_part": (
        "thread \\d+ arrives for others",
        "if (!producer) producers.arrive(0);",
    ),
    "one_that_arrives_for_another": (
        "thread \\d+ arrives twice",
        "if (producer) producers.wait(0); else if (warp == 0) walked.arrive(0), walked.arrive(0);",
    ),
    "a_reader_that_another_one_hides": (
        "race",
        """if (warp == 0) seen = x[0];
        if (warp == 1) {
          walked.arrive(0), seen = x[0], sync_warp();
          if (lane == 0) x[0] = 1.0f;
        }""",
    ),
    "arrivals_that_do_not_count_for_others": (
        "race",
        """if (producer) return;
        x[thread_index()] = 1.0f, walked.arrive(0), seen = x[63 - thread_index()];""",
    ),
}
# Global memory: `x` of 96 numbers is read, `y` of three rows of 32 is written, with gaps of 32
# between them; `freed` was freed, `other` is of another block.
SOUND |= {
    "a_number_for_every_thread": """
        store_one(a.y + warp * 64 + lane, load_one(a.x + thread_index()));""",
    "settled_numbers_before_the_wait": """
        seen = load_one(a.x + thread_index()), wait_for_predecessor();
        store_one(a.y + warp * 64 + lane, seen);""",
    "a_copy_that_is_waited_for": """
        if (lane < 8 && warp == 0)
          copy_async<16>(room + lane * 16, a.x + lane * 4, 16), commit_copies(), wait_copies<0>();
        sync_block();
        if (!producer) seen = x[lane];""",
}
_COPY = "copy_async<4>(room + thread_index() % 64 * 4, "
_WAIT = "commit_copies(), wait_copies<0>();"
FAULTS |= {
    "a_read_behind_the_end": (
        "global read of 4 bytes outside every tensor, 1 bytes behind the end of x "
        "\\(thread 95 of block 0\\)",
        "if (thread_index() == 95) seen = load_one(a.x + 96);",
    ),
    "a_read_before_the_start": (
        "global read of 8 bytes outside every tensor, 8 bytes before the start of x",
        "unsigned w[2]; if (lane == 0) load_words(w, a.x - 2);",
    ),
    "a_write_behind_a_row": (
        "global write of 4 bytes outside every tensor, 1 bytes behind a row of y",
        "store_one(a.y + warp * 64 + lane + 1, 1.0f);",
    ),
    "a_write_to_what_is_read": (
        "global write to x, which the launch only reads",
        "store_one(a.x + thread_index(), 1.0f);",
    ),
    "a_touch_of_what_was_freed": (
        "global read of freed, which was freed",
        "seen = load_one(a.freed);",
    ),
    "a_touch_of_another_block_s_memory": (
        "global read of other, which is of block 7",
        "seen = load_one(a.other);",
    ),
    "a_read_before_the_wait": (
        "global read of y before the wait for the kernel before",
        "seen = load_one(a.y + warp * 64 + lane), wait_for_predecessor();",
    ),
    "a_write_before_the_wait": (
        "global write of y before the wait for the kernel before",
        "if (producer) store_one(a.y + lane, 1.0f); wait_for_predecessor();",
    ),
    "a_copy_before_the_wait": (
        "global read of y before the wait for the kernel before",
        "if (warp == 0) " + _COPY + "a.y + lane, 4), " + _WAIT,
    ),
    "a_copy_from_behind_the_end": (
        "global read of 4 bytes outside every tensor, 1 bytes behind the end of x",
        "if (!producer) " + _COPY + "a.x + 33 + thread_index(), 4), " + _WAIT,
    ),
    "a_copy_of_more_than_there_is": (
        "global read of 16 bytes outside every tensor, 1 bytes behind the end of x",
        "if (producer && lane == 0) copy_async<16>(room, a.x + 96, 16), " + _WAIT,
    ),
    "a_source_that_is_overwritten": (
        "race: y is written while a copy from it is in flight",
        "if (warp == 0) " + _COPY + "a.y + lane, 4), store_one(a.y + lane, 1.0f), " + _WAIT,
    ),
    "a_source_that_is_freed": (
        "global read of y, which was freed",
        "if (warp == 0) " + _COPY + 'a.y + lane, 4), free_stretch("y"), ' + _WAIT,
    ),
    "a_source_in_shared_memory_that_is_overwritten": (
        "race: shared byte \\d+: thread \\d+ writes it while a copy from it is in flight",
        "if (warp == 0) { x[lane] = 1.0f; copy_async<4>(room + 128 + lane * 4, "
        "emulation::shared.data() + lane * 4, 4); x[lane] = 2.0f; commit_copies(); "
        "wait_copies<0>(); }",
    ),
    "a_copy_that_nobody_waits_for": (
        "thread \\d+ ends while a copy of its is in flight",
        "if (!producer) " + _COPY + "a.x + thread_index(), 4), commit_copies();",
    ),
    "a_target_that_is_read_too_early": (
        "shared byte \\d+: thread \\d+ reads it while a copy is in flight",
        "if (!producer) " + _COPY + "a.x + thread_index(), 4), seen = x[thread_index()], " + _WAIT,
    ),
    "an_index_of_shared_memory": (
        "shared index 64 outside an array of 64",
        "if (lane == 0) x[64] = 1.0f;",
    ),
    "a_raw_write_behind_shared_memory": (
        "shared memory is written 1 bytes behind its end",
        "if (thread_index() == 0) emulation::shared[emulation::shared_bytes] = 0;",
    ),
    "a_number_that_two_threads_write": (
        "race: global number of y written by thread \\d+, then written by thread \\d+",
        "store_one(a.y + lane, 1.0f);",
    ),
    # Half of a word is a number of its own.
    "half_a_word_that_another_thread_writes": (
        "race: global number of y",
        "if (thread_index() < 2) { if (lane) store_one((unsigned short*)a.y + 1, "
        "(unsigned short)1); else seen = load_one(a.y); }",
    ),
}
UNREADY = "signals_that_may_not_be_made_yet"


@functools.cache
def library() -> ctypes.CDLL:
    """Return the probes, compiled at once."""
    bodies = SOUND | {name: body for name, (_, body) in FAULTS.items()}
    probes = {name: ("signals_ready();", body) for name, body in bodies.items()}
    probes[UNREADY] = ("", "if (producer) producers.arrive(0);")
    text = UNIT
    for name, (ready, body) in probes.items():
        text += PROBE % {"name": name, "ready": ready, "body": body}
    text += "}\n" + "".join(
        f"ELMAN_KERNEL(run_{name}, 96, 1, Nothing, elman::{name}(a))\n" for name in probes
    )
    return emulator.loaded(text)


def reported(name: str, seed: int) -> str:
    """Return what the emulator says of a probe whose threads run in some order."""
    kernel = library()[f"run_{name}"]
    kernel.restype = ctypes.c_char_p
    memory = torch.zeros(512)
    places = [memory.data_ptr() + 4 * at for at in (0, 128, 448, 480)]
    nothing = (ctypes.c_uint64 * 4)(*places)
    freed, other = rows("freed", places[2], 64), rows("other", places[3], 64)
    assert freed is not None
    assert other is not None
    freed.freed, other.owner = 1, 7
    y = rows("y", places[1], 128, (3, 1), (256, 0), writable=True)
    declare(library(), [rows("x", places[0], 384, settled=True), y, freed, other])
    library().elman_begin_early("before_the_wait" in name)
    blocks = ctypes.c_int64(0), ctypes.c_int64(1)
    said: bytes = kernel(nothing, *blocks, ctypes.c_int(BYTES), seed)
    return said.decode()


@pytest.mark.parametrize("name", SOUND)
def test_what_signals_order_is_no_race(name) -> None:
    assert {reported(name, seed) for seed in SEEDS} == {""}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_whatever_the_order(name) -> None:
    said = FAULTS[name][0]
    for seed in SEEDS:
        assert re.match(said, reported(name, seed)), (seed, reported(name, seed))


def test_signals_have_to_be_made_before_they_are_used() -> None:
    for seed in SEEDS:
        assert "may not be made yet" in reported(UNREADY, seed)
