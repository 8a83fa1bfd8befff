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

_MEETING = re.compile(r"\b(sync_block|sync_warp|meet|wait_for_predecessor)\(\);")
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
TILE_PRODUCT = {
    BARRIER: {
        "lanes that ask for their warp alone": (
            "chunk(n) * G::SUMS + RowTile::group()",
            "(warp_index() + n * G::WARPS) * G::SUMS + RowTile::group()",
        ),
    },
    INDEX: {
        "y by outputs, not by rows": ("row * a.outputs + output", "output * G::ROWS + row"),
        "weights of the output after": ("a.weight + row * G::I", "a.weight + (row + 1) * G::I"),
        "rows of the block before": ("first = block_index() * G::TALL", "first = 0"),
        "halves of the columns exchanged": (
            "second ? all.words[part][1] : all.words[part][0]",
            "second ? all.words[part][0] : all.words[part][1]",
        ),
        "columns of the part before": ("part * 32 +", "part / 2 * 32 +"),
        "x of the row after": ("x + of * pitch", "x + (of + 1) % WIDE * pitch"),
        "sums of the output beside": (
            "RowTile::group() * G::ROWS + row)",
            "(RowTile::group() ^ 1) * G::ROWS + row)",
        ),
    },
    SUM: {
        "sum that does not begin at zero": ("sum[1] = {0.0f}", "sum[1] = {1.0f}"),
        "one half of the columns": ("sums[0] + sums[3]", "sums[0]"),
        "the same part twice": ("x.words[part][0], x", "x.words[0][0], x"),
        "a chunk left out": ("n < G::CHUNKS; n++) sum", "n + 1 < G::CHUNKS; n++) sum"),
    },
    TAIL: {
        "last output left out": ("output >= a.outputs", "output + 1 >= a.outputs"),
        "weights of no output": ("row < a.outputs && chunk(n)", "chunk(n)"),
        "weights of no chunk": ("&& chunk(n) < G::CHUNKS", ""),
        "no chunks but the early ones": ("n < G::EACH; n++", "false;"),
        "columns that are not there": ("(INPUTS % CHUNK == 0 || at < INPUTS)", "true"),
        "rows of x that are not there": ("chunk, of < WIDE)", "chunk, true)"),
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
            "store_one(room.numbers + rank, number)",
            "store_one(room.numbers + place, number)",
        ),
    },
    SUM: {
        "ends without what is before": ("if (lane & mask) end += other;", ""),
        "line that begins anew in every warp": ("before + last, before + end", "last, end"),
        "first of a warp that begins at zero": ("lane == 0 ? before :", "lane == 0 ? 0.0f :"),
        "largest logit not taken off": ("logit_of(key) - logit_of(most)", "logit_of(key)"),
        "top_p of the whole line before top_k": ("top_p * at.all;", "top_p * (float)G::V;"),
    },
    TAIL: {
        "top_k of more than there are": ("&& how.top_k < G::V", ""),
        "value that is not there": ("if (place < G::V) {", "if (true) {"),
        "nothing before all values": ("BEHIND_ALL = 0xfffffffe", "BEHIND_ALL = 0x00000001"),
        "nothing behind nothing": (
            "BEHIND_ALL = 0xfffffffe",
            "BEHIND_ALL = 0xffffffff",
        ),
        "place on the line that is not there": ("kept ? load_one(room.n", "true ? load_one(room.n"),
        "runs that end with the last": ("+ rank + G::THREADS), key);", "+ rank), key);"),
        "last of a run left out": ("step < 6", "step < 5"),
        "last value not written": ("store_one((long long*)a.last + text, (long long)value);", ""),
    },
    ORDER: {
        "of four equal ones the larger first": ("i < lane - quad", "i > lane - quad"),
        "of equal ones of a warp the larger first": ("at < quad ?", "at > quad ?"),
        "of equal ones of two warps the larger first": ("? key : key + 1", "? key + 1 : key"),
        "two zeros": ("float_bits(x + 0.0f)", "float_bits(x)"),
        "least probable first": (
            "bits >> 31 ? bits : bits ^ 0x7fffffffu",
            "bits >> 31 ? ~bits : bits | 0x80000000u",
        ),
        "not a number before all others": ("x : -3.4e38f", "x : 3.4e38f"),
    },
    SETTING: {
        "temperature ignored": (
            "if (!greedy) x = exact_quotient(x, how.temperature);",
            "",
        ),
        "top_k ignored": ("how.top_k > 0 && how.top_k < G::V ? (int)how.top_k : G::V", "G::V"),
        "top_p without the one that reaches it": ("!reached(at.before)", "!reached(at.end)"),
        "always the most probable": ("greedy = how.temperature == 0.0f", "greedy = true"),
    },
}
# Barriers of which one is left out in every run.
_OFTEN = ("wait_for_predecessor no. 1 left out", "sync_warp no. 2 left out")


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
    yield from _plain_draws(300)
    for how in decode.HOW[:2]:
        yield f"two zeros, {how}", partial(decode.test_the_two_zeros_are_equal, how)
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


def _engine(kernel: str, table: Table, tests: Callable[[], Tests], *others: str) -> Engine:
    """Return the engine of a source under csrc/cuda/decode, and of others that it shares."""
    file, *parts = (f"cuda/decode/{name}.cuh" for name in (kernel, *others))
    barriers = [
        Fault(what, BARRIER, file, text, first=what.endswith(_OFTEN))
        for what, text in left_out(_MEETING, file)
    ]
    faults = barriers + faults_of(table, file, *parts)
    return Engine(faults, partial(outcome, partial(_run, tests)))


ENGINES = {
    "row product": _engine("row_product", PRODUCT, _product_tests),
    "tile product": _engine("tile_product", TILE_PRODUCT, _product_tests, "row_tile"),
    "draw": _engine("draw", DRAW, _draw_tests),
}
