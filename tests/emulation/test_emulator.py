"""The emulator itself: what signals between the parts of a block order, and what it reports."""

from __future__ import annotations

import ctypes
import functools
import re

import pytest

from tests.emulation import emulator

SEEDS = range(1, 9)
BYTES = 256 + 2 * 32
# Of a block of three warps the first two walk and the last one helps; x is shared memory.
UNIT = """
#include "emulation/device.h"
struct Nothing {};
namespace elman {
using Helped = Signal<64, 32>;
using Walked = Signal<0, 64>;
// Turns 0, 2 and 1: those two have one barrier.
inline void lap(const Helped& helped) {
  helped.arrive(0), helped.wait(0), helped.arrive(2), helped.wait(2), helped.arrive(1);
}
"""
PROBE = """
inline void %(name)s() {
  Arena arena;
  const sptr<float> x = arena.take<float>(64);
  const Helped helped(arena);
  const Walked walked(arena);
  %(ready)s
  const int lane = thread_index() %% 32, warp = warp_index();
  const bool helper = warp == 2;
  float seen = 0;
  %(body)s
}
"""
SOUND = {
    "what_helpers_wrote_is_read_after_their_signal": """
        if (helper) x[lane] = 1.0f, helped.arrive(0);
        else helped.wait(0), seen = x[31 - lane];""",
    "what_walkers_have_read_is_written_after_their_signal": """
        if (helper) walked.wait(0), x[31 - lane] = 1.0f;
        else seen = x[lane], walked.arrive(0);""",
    "who_waits_learns_what_the_others_knew": """
        if (helper) walked.wait(0), helped.arrive(0);
        else x[thread_index()] = 1.0f, walked.arrive(0), helped.wait(0), seen = x[63 - lane];""",
    "a_signal_may_be_over_before_anybody_waits": """
        if (helper) x[lane] = 1.0f, helped.arrive(0), helped.arrive(1);
        else helped.wait(1), helped.wait(0), seen = x[31 - lane];""",
    "many_turns": """
        for (unsigned turn = 0; turn < 9; turn++) {
          if (helper) x[lane] = 1.0f, helped.arrive(turn), walked.wait(turn);
          else helped.wait(turn), seen = x[31 - lane], walked.arrive(turn);
        }""",
}
FAULTS = {
    "a_read_that_does_not_wait": ("race", "if (helper) x[lane] = 1.0f; else seen = x[lane];"),
    "a_write_that_does_not_wait": (
        "race",
        """if (helper) helped.arrive(0), x[lane] = 1.0f;
        else helped.wait(0), seen = x[lane], walked.arrive(0);""",
    ),
    "a_wait_for_the_turn_before": (
        "race",
        """if (helper) helped.arrive(0), x[lane] = 1.0f, helped.arrive(1);
        else helped.wait(0), seen = x[lane];""",
    ),
    # A barrier knows even from odd alone: turn 6 counts as over as soon as turn 2 is.
    "a_wait_for_a_turn_far_ahead": (
        "race",
        """if (helper) lap(helped), x[lane] = 1.0f;
        else helped.wait(1), helped.wait(6), seen = x[lane];""",
    ),
    "a_signal_that_is_lapped": (
        "deadlock: thread \\d+ waits at signal of helpers",
        """if (helper) lap(helped);
        else helped.wait(1), helped.wait(0);""",
    ),
    "a_signal_that_never_comes": (
        "deadlock: thread \\d+ waits at signal of those that walk",
        "if (helper) walked.wait(0);",
    ),
    "arrivals_of_the_wrong_part": (
        "thread \\d+ arrives for others",
        "if (!helper) helped.arrive(0);",
    ),
    "one_that_arrives_for_another": (
        "thread \\d+ arrives twice",
        "if (helper) helped.wait(0); else if (warp == 0) walked.arrive(0), walked.arrive(0);",
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
        """if (helper) return;
        x[thread_index()] = 1.0f, walked.arrive(0), seen = x[63 - thread_index()];""",
    ),
}
UNREADY = "signals_that_may_not_be_made_yet"


@functools.cache
def library() -> ctypes.CDLL:
    """Return the probes, compiled at once."""
    bodies = SOUND | {name: body for name, (_, body) in FAULTS.items()}
    probes = {name: ("signals_ready();", body) for name, body in bodies.items()}
    probes[UNREADY] = ("", "if (helper) helped.arrive(0);")
    text = UNIT
    for name, (ready, body) in probes.items():
        text += PROBE % {"name": name, "ready": ready, "body": body}
    text += "}\n" + "".join(
        f"ELMAN_KERNEL(run_{name}, 96, 1, Nothing, elman::{name}())\n" for name in probes
    )
    return emulator.loaded(text)


def reported(name: str, seed: int) -> str:
    """Return what the emulator says of a probe whose threads run in some order."""
    kernel = library()[f"run_{name}"]
    kernel.restype = ctypes.c_char_p
    nothing = ctypes.create_string_buffer(1)
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
