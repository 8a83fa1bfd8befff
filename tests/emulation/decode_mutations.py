"""Faults planted in the decoding kernels' CUDA sources, and whether their tests notice.

Every barrier, and every wait for the kernel before, is left out once; the rest is below.

    python -m tests.emulation.decode_mutations
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from elman.kernels.sources import source_folder
from tests.emulation import emulator, mutations
from tests.emulation import test_decode_emulation as decode
from tests.emulation.mutations import SEEDS, _in_process, edited, noticed

_MEETING = re.compile(r"\b(sync_block|wait_for_predecessor)\(\);")
# What is wrong with the product: old text, new text.
PRODUCT = {
    "sum of half a warp": ("mask = 16;", "mask = 8;"),
    "sum in bf16": (
        "sums[row] = fused(w[i], x[i], sums[row]);",
        "sums[row] = bits_float(float_bits(fused(w[i], x[i], sums[row])) & 0xffff0000u);",
    ),
    "one row of x too few": ("row < G::ROWS; row++", "row < G::ROWS - (G::ROWS > 1); row++"),
    "y by outputs, not by rows": ("row * a.outputs + output", "output * G::ROWS + row"),
    "last output left out": ("output >= a.outputs", "output + 1 >= a.outputs"),
    "output that is not there": ("if (output >= a.outputs) return;", ""),
    "one early step too few": (
        """for (int step = 0; step < AHEAD; step++) {
    const int at = step * G::STEP + lane * V;
    if (at < G::I) add_products""",
        """for (int step = 0; step < AHEAD - 1; step++) {
    const int at = step * G::STEP + lane * V;
    if (at < G::I) add_products""",
    ),
    "early weights beyond the end": ("if (at < G::I) load", "load"),
    "no steps but the early ones": ("at < G::I; at += G::STEP", "false;"),
    "every lane writes": ("if (lane == 0) store", "store"),
    "first step behind the early ones left out": (
        "int at = AHEAD * G::STEP",
        "int at = (AHEAD + 1) * G::STEP",
    ),
    "weights in use before the wait": (
        "wait_for_predecessor();\n  float sums[G::ROWS];",
        "float sums[G::ROWS];",
    ),
    "sum without the lane beside": ("mask > 0;", "mask > 1;"),
    "sum that does not begin at zero": ("sums[row] = 0.0f;", "sums[row] = 1.0f;"),
    "half of every vector": ("i < G::V; i++", "i < (G::V + 1) / 2; i++"),
    "first row of x for all": ("(long long)row * G::I + at", "0 * row + at"),
    "first row of y for all": ("row * a.outputs + output", "0 * row + output"),
    "output of the warp beside": ("block_index() * G::WARPS", "block_index() * (G::WARPS - 1)"),
    "one warp's output for the block": ("+ thread_index() / 32;", "+ 0;"),
    "weights of the first output": ("a.weight + output * G::I", "a.weight + 0 * output"),
    "weights of the output after": ("a.weight + output * G::I", "a.weight + (output + 1) * G::I"),
    "steps that overlap": ("STEP = 32 * V;", "STEP = 16 * V;"),
    "steps with a gap": ("STEP = 32 * V;", "STEP = 33 * V;"),
    "early weights of the first step": ("ahead[step], at);", "ahead[0], at);"),
    "products beyond the end": ("if (at < G::I) add_products", "add_products"),
    "one step too few behind the early ones": ("at < G::I; at +=", "at + G::STEP < G::I; at +="),
    "every second step behind the early ones": ("at += G::STEP", "at += 2 * G::STEP"),
    "last early step twice": ("int at = AHEAD * G::STEP", "int at = (AHEAD - 1) * G::STEP"),
    "one step beyond the end": ("at < G::I; at +=", "at < G::I + G::STEP; at +="),
}
# And with the draw.
DRAW = {
    "temperature ignored": ("x[0] / (float)a.temperature", "x[0]"),
    "top_k ignored": ("a.top_k > 0 && a.top_k < V ? (int)a.top_k : V", "V"),
    "top_k of more than there are": ("&& a.top_k < V", ""),
    "top_p ignored": ("a.top_p >= 1.0 ||", "true ||"),
    "top_p without the one that reaches it": ("end - own <", "end <"),
    "not a number before all others": (": -3.4e38f", ": 3.4e38f"),
    "of equal ones the larger first": ("other < mine)", "other > mine)"),
    "rank among one value too few": ("other < V; other++", "other < V - 1; other++"),
    "value that is not there": ("if (mine < V) {\n    float x[1];", "{\n    float x[1];"),
    "largest logit not taken off": ("exp(x - most)", "exp(x)"),
    "sum over one rank too few": ("rank < kept; rank++", "rank < kept - 1; rank++"),
    "line from its beginnings": ("rank <= mine", "rank < mine"),
    "no end where all stay": ("mine + 1 == V ||", "mine + 1 == V ? false :"),
    "point on the whole line, not on what stays": ("* load_one(ends);", "* all;"),
    "what was left out is drawn": ("if (!stays) return;", ""),
    "number of the first step": ("a.uniform + place * a.texts + text", "a.uniform + text"),
    "value whose beginning is the point": (": 0)) < point)", ": 0)) <= point)"),
    "last value not written": (
        """store_one((long long*)a.last + text, value);
    store_one((long long*)a.drawn + place * a.texts + text, value);
  }
}""",
        """store_one((long long*)a.drawn + place * a.texts + text, value);
  }
}""",
    ),
    "drawn at the first step": (
        """a.drawn + place * a.texts + text, value);
  }
}""",
        """a.drawn + text, value);
  }
}""",
    ),
    "temperature 0 divides": ("a.temperature == 0.0", "false"),
    "step read before the wait": (
        """wait_for_predecessor();
  const long long place = load_one((const long long*)a.place);""",
        """const long long place = load_one((const long long*)a.place);
  wait_for_predecessor();""",
    ),
    "temperature multiplies": ("x[0] / (float)a.temperature", "x[0] * (float)a.temperature"),
    "always the most probable": ("a.temperature == 0.0", "true"),
    "top_k one less": ("? (int)a.top_k :", "? (int)a.top_k - 1 :"),
    "top_k one more": ("? (int)a.top_k :", "? (int)a.top_k + 1 :"),
    "top_k of 0 keeps nothing": ("a.top_k > 0 &&", ""),
    "top_p of the whole line before top_k": ("* all);", "* (float)V);"),
    "top_p of sums that are no probabilities": ("(float)a.top_p * all", "(float)a.top_p"),
    "logits of the first text": ("text * V + mine", "mine"),
    "logits of the text after": ("text * V + mine", "(text + 1) * V + mine"),
    "not a number with no rank": ("scaled == scaled ? scaled : -3.4e38f", "scaled"),
    "least probable first": ("rank += y > x", "rank += y < x"),
    "equal ones on one rank": ("|| (y == x && other < mine)", ""),
    "values in their own order": (
        "store_one(values + rank, mine);",
        "store_one(values + mine, mine);",
    ),
    "rank of a value that is not there": (
        "if (mine < V) {\n    const float x = load_one(logits + mine);",
        "{\n    const float x = load_one(logits + mine);",
    ),
    "place on the line that is not there": ("if (mine < V) store_one(line", "store_one(line"),
    "probabilities by value, not by rank": (
        "load_one(logits + load_one(values + mine))",
        "load_one(logits + mine)",
    ),
    "sum from the second rank": ("int rank = 0; rank < kept", "int rank = 1; rank < kept"),
    "line from its other end": ("rank <= mine", "rank >= mine"),
    "line in single probabilities": ("if (rank <= mine) end +=", "if (rank == mine) end +="),
    "line of what was left out": ("stays ? end : -1.0f", "end"),
    "end of the first value": (
        "stays && (mine + 1 == V || load_one(line + (mine + 1 < V ? mine + 1 : mine)) < 0.0f)",
        "mine == 0",
    ),
    "point on a line of length 1": ("* load_one(ends);", ";"),
    "number of the first text": (
        "a.uniform + place * a.texts + text",
        "a.uniform + place * a.texts",
    ),
    "number of a step of one text": ("a.uniform + place * a.texts", "a.uniform + place"),
    "value after the point": ("end >= point", "end > point"),
    "all values behind the point": (
        "&& (mine == 0 || load_one(line + (mine > 0 ? mine - 1 : 0)) < point)",
        "",
    ),
    "all values before the point": ("end >= point && (mine == 0 ||", "(mine == 0 ||"),
    "rank drawn, not the value": ("load_one(values + mine);\n", "mine;\n"),
    "last value not written without a temperature": (
        """store_one((long long*)a.last + text, value);
      store_one""",
        "store_one",
    ),
    "drawn at the first step without a temperature": (
        """a.drawn + place * a.texts + text, value);
    }
    return;""",
        """a.drawn + text, value);
    }
    return;""",
    ),
    "every thread writes the most probable": ("if (mine == 0) {", "{"),
    "second most probable without a temperature": ("load_one(values);", "load_one(values + 1);"),
}
EDITS = {"row_product": PRODUCT, "draw": DRAW}
# One fault of each kind, which are planted in every run.
QUICK = (
    "row_product: wait_for_predecessor no. 1 left out",
    "row_product: sum of half a warp",
    "row_product: y by outputs, not by rows",
    "row_product: last output left out",
    "row_product: early weights beyond the end",
    "row_product: every lane writes",
    "draw: wait_for_predecessor no. 1 left out",
    "draw: sync_block no. 2 left out",
    "draw: sync_block no. 7 left out",
    "draw: temperature ignored",
    "draw: top_k of more than there are",
    "draw: top_p without the one that reaches it",
    "draw: of equal ones the larger first",
    "draw: number of the first step",
)


class CompileError(Exception):
    """A compiler refuses a fault, so that nothing was tested."""


def sources() -> dict[str, tuple[str, str]]:
    """Return the file of every fault and its text with the fault, by file and fault."""
    found = {}
    for file, edits in EDITS.items():
        whole = (source_folder() / "cuda" / "decode" / f"{file}.cuh").read_text()
        for number, match in enumerate(_MEETING.finditer(whole), 1):
            without = whole[: match.start()] + whole[match.end() :]
            found[f"{file}: {match[1]} no. {number} left out"] = file, without
        for what, (old, new) in edits.items():
            found[f"{file}: {what}"] = file, edited(whole, old, new)
    return found


def outcome(file: str, text: str | None = None) -> str:
    """Return how a fault was noticed: what the emulator said, or the test that fails; else ``-``.

    Args:
        file: The source under csrc/cuda/decode, without its suffix.
        text: The whole source with the fault; None: as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "csrc")
        shutil.copytree(source_folder(), root)
        if text is not None:
            (root / "cuda" / "decode" / f"{file}.cuh").write_text(text)
        return str(_in_process(_run, (root, file)))


def _run(root: Path, file: str) -> str:
    """Run the tests of a kernel over mutated sources, in several orders of its threads."""
    library = functools.cache(partial(_mutated, root=root))
    for seed in SEEDS:
        for name, test in TESTS[file]():
            with pytest.MonkeyPatch.context() as monkeypatch:
                decode.emulate_everywhere(monkeypatch, library, seed)
                try:
                    test()
                except (emulator.FaultError, CompileError) as fault:
                    return str(fault)
                except AssertionError:
                    return f"fails: {name}"
    return "-"


def _mutated(text: str, root: Path) -> ctypes.CDLL:
    """Return the library of a text with the sources in ``root``; raises CompileError."""
    try:
        return mutations._mutated(text, root)
    except AssertionError as refused:
        raise CompileError(mutations.refusal(refused)) from None


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


TESTS = {"row_product": _product_tests, "draw": _draw_tests}


def main() -> int:
    """Print how every fault was noticed; 1 if one was not."""
    missed = 0
    for what, (file, text) in sources().items():
        said = outcome(file, text)
        missed += not noticed(said)
        print(f"{what:60} {said}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
