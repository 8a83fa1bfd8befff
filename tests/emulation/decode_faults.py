"""Faults planted in the decoding kernels' CUDA sources, and whether their tests notice.

Every barrier, and every wait for the kernel before, is left out once; the rest is below.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.emulation import emulator
from tests.emulation import test_decode_emulation as decode
from tests.emulation.faults import (
    BARRIER,
    INDEX,
    ORDER,
    SETTING,
    SUM,
    TAIL,
    Engine,
    Fault,
    Table,
    faults_of,
    left_out,
    library_over,
    outcome,
    refusal,
)

_MEETING = re.compile(r"\b(sync_block|wait_for_predecessor)\(\);")
PRODUCT = {
    BARRIER: {
        "every lane writes": ("if (lane == 0) store", "store"),
        "weights in use before the wait": (
            "wait_for_predecessor();\n  float sums[G::ROWS];",
            "float sums[G::ROWS];",
        ),
    },
    INDEX: {
        "y by outputs, not by rows": ("row * a.outputs + output", "output * G::ROWS + row"),
        "weights of the output after": (
            "a.weight + output * G::I",
            "a.weight + (output + 1) * G::I",
        ),
        "output of the warp beside": ("block_index() * G::WARPS", "block_index() * (G::WARPS - 1)"),
    },
    SUM: {
        "sum of half a warp": ("mask = 16;", "mask = 8;"),
        "sum in bf16": (
            "sums[row] += step;",
            "sums[row] = bits_float(float_bits(sums[row] + step) & 0xffff0000u);",
        ),
        "sum that does not begin at zero": ("sums[row] = 0.0f;", "sums[row] = 1.0f;"),
    },
    TAIL: {
        "last output left out": ("output >= a.outputs", "output + 1 >= a.outputs"),
        "early weights beyond the end": ("if (at < G::I) load", "load"),
        "output that is not there": ("if (output >= a.outputs) return;", ""),
        "no steps but the early ones": ("at < G::I; at += G::STEP", "false;"),
    },
}
DRAW = {
    INDEX: {
        "number of the first step": (
            "load_one((const long long*)a.place) * a.texts + text",
            "text",
        ),
        "logits of the text after": ("text * G::V + value", "(text + 1) * G::V + value"),
        "probabilities by value, not by rank": (
            "store_one(room.ordered + rank, x)",
            "store_one(room.ordered + mine, x)",
        ),
    },
    SUM: {
        "ends without what is before": ("if (lane & mask) end += other;", ""),
        "line that begins anew in every warp": ("return before + end;", "return end;"),
        "largest logit not taken off": (
            "(room.ordered + place) - most)",
            "(room.ordered + place))",
        ),
        "top_p of the whole line before top_k": ("top_p * all;", "top_p * (float)V;"),
    },
    TAIL: {
        "top_k of more than there are": ("&& how.top_k < V", ""),
        "value that is not there": ("mine < V && part == 0", "part == 0"),
        "place on the line that is not there": ("place < kept ? exact_exp", "true ? exact_exp"),
        "last value not written": ("store_one((long long*)a.last + text, (long long)value);", ""),
    },
    ORDER: {
        "of equal ones the larger first": ("at + i < mine)", "at + i > mine)"),
        "least probable first": ("count += y[i] > x", "count += y[i] < x"),
        "not a number before all others": ("x = -3.4e38f", "x = 3.4e38f"),
    },
    SETTING: {
        "temperature ignored": (
            "if (!greedy) x = exact_quotient(x, (float)how.temperature);",
            "",
        ),
        "top_k ignored": ("how.top_k > 0 && how.top_k < V ? (int)how.top_k : V", "V"),
        "top_p without the one that reaches it": ("!reached(before)", "!reached(end)"),
        "always the most probable": ("how.temperature == 0.0", "true"),
    },
}
# Barriers of which one is left out in every run.
_OFTEN = ("wait_for_predecessor no. 1 left out", "sync_block no. 2 left out")


class CompileError(Exception):
    """A compiler refuses a fault, so that nothing was tested."""


Tests = Iterator[tuple[str, Callable[[], None]]]


def _product_tests() -> Tests:
    for dtype in decode.LIMITS:
        for case in reversed(decode.PRODUCTS):
            test = partial(decode.test_products_of_rows_are_those_of_fp64, dtype, *case)
            yield f"products of {case}, {dtype}", test


def _plain_draws(values: int) -> Tests:
    assert values in decode.VALUES
    for how in decode.HOW:
        test = partial(decode.test_the_kernel_draws_what_plain_pytorch_draws, how, values)
        yield f"draws among {values}, {how}", test


def _draw_tests() -> Tests:
    yield from _plain_draws(3)
    yield from _plain_draws(33)
    for far in decode.FAR:
        yield f"logits of {far}", partial(decode.test_logits_far_from_0_are_drawn_from, far)
    for how in decode.HOW[:2]:
        test = partial(decode.test_a_logit_that_is_no_number_is_the_least, how)
        yield f"one that is no number, {how}", test
    yield from _plain_draws(256)
    yield "narrow logits", decode.test_narrow_logits_are_drawn_from
    test = decode.test_logits_that_are_no_numbers_read_nothing_out_of_bounds
    yield "logits that are no numbers", test


def _run(tests: Callable[[], Tests], root: Path, fault: Fault) -> str:
    """Run the tests of a kernel over mutated sources, in several orders of its threads."""
    library = functools.cache(partial(_library, root=root))
    for seed in (1, 2, 3):
        for name, test in tests():
            with pytest.MonkeyPatch.context() as monkeypatch:
                decode.emulate_everywhere(monkeypatch, library, seed)
                try:
                    test()
                except (emulator.FaultError, CompileError) as found:
                    return str(found)
                except AssertionError:
                    return f"fails: {name}"
    return "-"


def _library(text: str, root: Path) -> ctypes.CDLL:
    """Return the library of a text with the sources in ``root``; raises CompileError."""
    try:
        return library_over(text, root)
    except AssertionError as refused:
        raise CompileError(refusal(refused)) from None


def _engine(kernel: str, table: Table, tests: Callable[[], Tests]) -> Engine:
    """Return the engine of a source under csrc/cuda/decode."""
    file = f"cuda/decode/{kernel}.cuh"
    barriers = [
        Fault(what, BARRIER, file, text, first=what.endswith(_OFTEN))
        for what, text in left_out(_MEETING, file)
    ]
    return Engine(barriers + faults_of(table, file), partial(outcome, partial(_run, tests)))


ENGINES = {
    "row product": _engine("row_product", PRODUCT, _product_tests),
    "draw": _engine("draw", DRAW, _draw_tests),
}
