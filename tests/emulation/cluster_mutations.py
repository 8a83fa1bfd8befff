"""Faults planted in the dense engine's cluster kernels, and whether the emulation notices.

python -m tests.emulation.cluster_mutations
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import torch
from torch import Tensor

from elman.kernels.sources import source_folder
from elman.ops.dense.cuda import cluster
from tests.emulation import dense_cluster, emulator
from tests.emulation.mutations import _in_process, print_outcomes, verdict_on_bits, with_fault

FILES = ("cuda/dense/cluster.cuh", "cuda/dense/cluster_passes.cuh")
_BARRIER = "    wait_copies<G::STAGES - 2>();\n    sync_block();\n"
_STEP = "#pragma unroll\n    for (int pass = 0; pass < G::PASSES; pass++) cluster_step(k"
_FIRST = "const bool at_first = round + 1 == (int)a.steps && k.exists(pass);"
_LAST_C = "copy(n++, 1, pass, -k * pitch(), there && !first)"
_Z = "k.multiply(second, 2 * t + 1, true, more);\n    sync_block();\n"
_RH = "k.multiply(second, 2 * round + 1, true, true);\n    sync_block();\n"
_SLICE = "slice = k.template slice_of<typename G::Second>(0);"
_GRU_BACK = (
    "const ClusterSecond<G> second(arena, (const bf16*)k.a.extra, k.rank);\n  const int steps"
)
# By what is wrong: old text, new text, and the step that shows it, with resets, heads or neither.
EDITS = {
    "nobody waits for what is delivered": (
        "    if (delivered) boxes.wait(half * G::K_WARPS + slice, (step - 1) / 2);\n",
        "",
        "tanh",
    ),
    "the wait is for another slice": (
        "boxes.wait(half * G::K_WARPS + slice,",
        "boxes.wait(half * G::K_WARPS,",
        "tanh",
    ),
    "the wait is for the turn before": (
        "slice, (step - 1) / 2);",
        "slice, (step - 1) / 2 + 1);",
        "tanh",
    ),
    "one half of the mail for every step": ("mail + half * G::HALF, sums", "mail, sums", "tanh"),
    "words are delivered into the half in use": (
        "letter + half * G::HALF +",
        "letter + (1 - half) * G::HALF +",
        "tanh",
    ),
    "another slice's box counts the words": (
        "half * G::K_WARPS + slice;",
        "half * G::K_WARPS + 1 - slice;",
        "tanh",
    ),
    "fewer bytes are expected than come": (
        "columns * G::ROWS * 2);",
        "columns * G::ROWS * 2 - 8);",
        "tanh",
    ),
    "more bytes are expected than come": (
        "columns * G::ROWS * 2);",
        "columns * G::ROWS * 2 + 8);",
        "tanh",
    ),
    "nothing is expected": ("    if (more) expect(step + 1);\n", "", "tanh"),
    "every lane expects": ("warp < G::K_WARPS && lane == 0", "warp < G::K_WARPS", "tanh"),
    "words go to the own block alone": ("(odd + 2 * i) ^ rank;", "rank;", "tanh"),
    "two lanes exchange their words": (
        "odd ? other : word, high",
        "odd ? word : other, high",
        "tanh",
    ),
    "the barrier of the sums is left out, forward": (
        _BARRIER + _STEP,
        "    wait_copies<G::STAGES - 2>();\n" + _STEP,
        "tanh",
    ),
    "one half of the sums for every step": (
        "parts + (half * G::PART + (slice",
        "parts + ((slice",
        "tanh",
    ),
    "sums of one slice too few": (
        "slice < G::K_WARPS; slice++)\n      load<2",
        "slice < G::K_WARPS - 1; slice++)\n      load<2",
        "tanh",
    ),
    "a block leaves while others write to it": (
        "  k.end((float*)a.last);\n  sync_cluster();\n",
        "  k.end((float*)a.last);\n",
        "tanh",
    ),
    "boxes are used before everybody knows them": (
        "  } else {\n    sync_cluster();\n    k.expect(1);\n",
        "  } else {\n    k.expect(1);\n",
        "tanh",
    ),
    "the first state is not in the mail": (
        "    store_one(k.mail + i, bf16_pair(x[0], x[1]));\n",
        "",
        "tanh",
    ),
    "rows of the batch that are none": ("first + row(pass) < a.batch &&", "", "tanh"),
    "channels that are none": ("&& channel < a.channels;", ";", "tanh"),
    "copies are not waited for": (_BARRIER + _STEP, "    sync_block();\n" + _STEP, "tanh"),
    "one step too few in flight": (
        "k.fetch(t + G::STAGES - 1);\n    k.places.next_target();\n  }\n  if",
        "k.fetch(t + G::STAGES - 2);\n    k.places.next_target();\n  }\n  if",
        "tanh",
    ),
    "inputs of the step after": (
        "(G::BACK ? a.steps - 1 : 0) * s.time",
        "(G::BACK ? a.steps - 1 : 1) * s.time",
        "tanh",
    ),
    "the state before the step is the one after it": (
        "-a.y.time, there && !first",
        "0, there && !first",
        "mix",
    ),
    "c of another step": (
        _LAST_C,
        _LAST_C.replace("-k", "(G::MEMO - 1)"),
        "lstm",
    ),
    "the first state is not read back": (_FIRST, "const bool at_first = false;", "mix"),
    "gates of another block": (
        "k.gather(pre[b], t, pass, b * G::M)",
        "k.gather(pre[b], t, pass, 0)",
        "lstm",
    ),
    "the blocks' gradients share a place": ("pass * PASS + block * BLOCK", "pass * PASS", "lstm"),
    "the carried gradient is dropped": ("k.h[pass][e] + dh[e] + x[0][e]", "dh[e] + x[0][e]", "mix"),
    "the last product is left out": (
        "\n      for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e];\n",
        "\n",
        "tanh",
    ),
    "the last product of a GRU is left out": (
        "\n    for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e];\n",
        "\n",
        "gru",
    ),
    "fragments of another warp": (
        "(fragment - P::KEPT) * P::WARPS + warp",
        "(fragment - P::KEPT) * P::WARPS",
        "tanh",
    ),
    "rows of another block": ("* P::I + rank * P::M + out % P::M", "* P::I + out % P::M", "tanh"),
    # a norm
    "the state is not divided": ("k.h[pass][e] *= factor;", ";", "normalized"),
    "the product is not divided": ("    pre[0][0] *= factor;\n", "", "normalized"),
    "squares of another warp": (
        "(warp * G::ROWS + row) * First::STRIDE + G::OUT",
        "row * First::STRIDE + G::OUT",
        "normalized",
    ),
    "squares of half of a warp": ("  squares += shuffle_xor(squares, 2);\n", "", "normalized"),
    "squares of one slice too few": (
        "slice < G::K_WARPS; slice++)\n      part[slice][0] =",
        "slice < G::K_WARPS - 1; slice++)\n      part[slice][0] =",
        "normalized",
    ),
    "squares of the other half": (
        "parts + (step % 2 * G::PART + row * First::STRIDE + G::OUT)",
        "parts + ((1 - step % 2) * G::PART + row * First::STRIDE + G::OUT)",
        "normalized",
    ),
    "a state is written a step late": (
        "pass, -a.y.time, bf16_pair",
        "pass, 0, bf16_pair",
        "normalized",
    ),
    "a norm is written a step late": (
        "a.steps + t - 1), factor",
        "a.steps + t), factor",
        "normalized",
    ),
    "every block writes the norms": (
        "if (k.channel == 0) store",
        "if (k.m0 == 0) store",
        "normalized",
    ),
    "the last state is not divided": (
        "pass++) cluster_divide(k, steps, pass);",
        "pass++) ;",
        "normalized",
    ),
    "the last state is not delivered": ("more = G::NORM || t + 1", "more = t + 1", "normalized"),
    "sums are read before all have left theirs": (
        "  sync_block();\n  sums.tell(k, round);\n",
        "  sums.tell(k, round);\n",
        "normalized",
    ),
    "nobody waits for sums": ("  k.boxes.wait(G::TOLD_BOX, round);\n", "", "normalized"),
    "sums are waited for a turn before": (
        "k.boxes.wait(G::TOLD_BOX, round);",
        "k.boxes.wait(G::TOLD_BOX, round + 1);",
        "normalized",
    ),
    "sums: fewer bytes are expected": ("G::CLUSTER * 4);", "G::CLUSTER * 4 - 4);", "normalized"),
    "sums: more bytes are expected": ("G::CLUSTER * 4);", "G::CLUSTER * 4 + 4);", "normalized"),
    "sums: every thread expects": (
        "if (thread == 0) k.boxes.expect",
        "k.boxes.expect",
        "normalized",
    ),
    "sums: nothing is expected": (
        "if (thread == 0) k.boxes.expect",
        "if (false) k.boxes.expect",
        "normalized",
    ),
    "the own block alone is told": ("thread % G::CLUSTER ^ k.rank;", "k.rank;", "normalized"),
    "all blocks tell it at one place": (
        "row) * G::CLUSTER + k.rank);",
        "row) * G::CLUSTER);",
        "normalized",
    ),
    "told in the other half": (
        "told + ((round % 2 * G::ROWS + row) * G::CLUSTER +",
        "told + (((1 - round % 2) * G::ROWS + row) * G::CLUSTER +",
        "normalized",
    ),
    "a sum over half of the channels": ("mask < 8; mask", "mask < 4; mask", "normalized"),
    "a sum of another row": ("(k.row(pass) * (G::M / 16) + k.m0", "(k.m0", "normalized"),
    "a sum of one part": (
        "load_one(left + (row * (G::M / 16) + i))",
        "load_one(left + row * (G::M / 16))",
        "normalized",
    ),
    "the gradient along the state stays": ("- y[pass][e] * mean)", ")", "normalized"),
    "the norm of another step": (
        "(number(pass) * a.steps + step)) : 0",
        "(number(pass) * a.steps)) : 0",
        "normalized",
    ),
    "the scale's gradient of one step": (
        "k.c[pass][0][e] += d[e].scale",
        "k.c[pass][0][e] = d[e].scale",
        "normalized_scalar",
    ),
    "the scale's gradient is not written": (
        "  if constexpr (G::Cell::SCALE) k.end_scale((float*)k.a.dscale);\n",
        "",
        "normalized_scalar",
    ),
    # a GRU
    "nobody waits for r h": (
        "k.multiply(second, 2 * t + 1, true,",
        "k.multiply(second, 2 * t + 1, false,",
        "gru",
    ),
    "the barrier of the second sums is left out": (_Z, _Z.split("\n")[0] + "\n", "gru"),
    "the barrier of the second sums back is left out": (_RH, _RH.split("\n")[0] + "\n", "gru"),
    "r h goes into the first half": (
        "slice, 2 * t + 1, pass, 0);",
        "slice, 2 * t, pass, 0);",
        "gru",
    ),
    "the state goes into the second half": (
        "k.send(word, 2 * t + 2, pass, 0);",
        "k.send(word, 2 * t + 3, pass, 0);",
        "gru",
    ),
    "the second product has the bytes of the first": (
        "G::EXTRA && step % 2 ? G::Second::KW : First::KW",
        "First::KW",
        "gru",
    ),
    "the second product has the slices of the first": (
        _GRU_BACK + " = (int)k.a.steps, " + _SLICE,
        _GRU_BACK + " = (int)k.a.steps, " + _SLICE.replace("Second", "First"),
        "gru",
    ),
    "sums of the first product for the second": (
        "(product, 2 * t + 1, pass",
        "(product, 2 * t, pass",
        "gru",
    ),
    "sums of the first product for the second, back": (
        "(drh, 2 * round + 1,",
        "(drh, 2 * round,",
        "gru",
    ),
    "z is forgotten": ("memo[e][0] = z[e];", "memo[e][0] = 0.0f;", "gru"),
    "the candidate reads a gate": (
        "k.places.read(x, pass, 2);",
        "k.places.read(x, pass, 1);",
        "gru",
    ),
    "r is not kept": (
        "cluster_remember(k, pass, 0, 2, memo)",
        "cluster_remember(k, pass, 0, 1, memo)",
        "gru",
    ),
    "the candidate is not kept": ("  cluster_remember(k, pass, 2, 3, memo);\n", "", "gru"),
    "a GRU's carried gradient is dropped": (
        "k.h[pass][e] += dh[e] + dy[e];",
        "k.h[pass][e] = dh[e] + dy[e];",
        "gru",
    ),
    "the candidate's gradient is not written": (
        "  if (k.exists(pass)) k.places.write(1, pass, 0, word);\n",
        "",
        "gru",
    ),
    # resets
    "a state lives on": ("    k.forget(pass);\n", "", "mix resets"),
    "its product lives on": ("product[b][0] = product[b][1] = 0.0f;", ";", "tanh resets"),
    "its c lives on": (
        "    k.forget(pass);\n",
        "    k.h[pass][0] = k.h[pass][1] = 0.0f;\n",
        "lstm resets",
    ),
    "a reset of another step": ("a.steps + step));\n      }", "a.steps));\n      }", "tanh resets"),
    "a gradient passes by the product": ("if (reset) dh[0] = dh[1] = 0.0f;", ";", "tanh resets"),
    "a gradient passes by the last product": (
        "dh, steps, pass, k.reset[pass])",
        "dh, steps, pass, false)",
        "tanh resets",
    ),
    "a gradient passes by the last product of a GRU": (
        "dh, step, pass, k.reset[pass])",
        "dh, step, pass, false)",
        "gru resets",
    ),
    "a gradient passes beside the product": (
        "if (k.reset[pass]) k.h[pass][e] = 0.0f;",
        "",
        "mix resets",
    ),
    "a gradient passes by c": ("if (k.reset[pass]) k.c[pass][i][e] = 0.0f;", ";", "lstm resets"),
    "the derivative reads the state before": (
        "if (k.reset[pass]) old[0] = old[1] = 0.0f;",
        ";",
        "mix resets",
    ),
    "the derivative reads the c before": (
        "if (k.reset[pass]) old_c[i][0] = old_c[i][1] = 0.0f;",
        ";",
        "lstm resets",
    ),
    "every head has the first one's matrix": (
        "(const bf16*)args.matrix + head * (G::BLOCKS * G::I * G::I)",
        "(const bf16*)args.matrix",
        "slstm heads",
    ),
    "heads share out the rows": (
        "cluster_index() / G::HEADS * G::ROWS",
        "cluster_index() * G::ROWS",
        "slstm heads",
    ),
    "every head has the first one's state": (
        "places.pitch() + head * a.channels + channel",
        "places.pitch() + channel",
        "slstm heads",
    ),
    "heads of the first input are as wide as those of states": (
        "(G::BACK || i ? 1 : G::BLOCKS) * before",
        "before",
        "slstm heads",
    ),
    "heads of its gradient are": (
        "(!G::BACK || i ? 1 : G::BLOCKS) * before",
        "before",
        "slstm heads",
    ),
    "a memo has the channels of one head": (
        "i * k.places.pitch(), bf16_pair(memo",
        "i * k.a.channels, bf16_pair(memo",
        "slstm heads",
    ),
    "every head reads the first one's first state": (
        "k.places.pitch() + k.head * a.channels + channel",
        "k.places.pitch() + channel",
        "slstm heads",
    ),
    "channels that are none deliver zero by zero": (
        "    if (Cell::DIVIDES && !k.exists(pass)) words[b] = 0;\n",
        "",
        "slstm heads",
    ),
    "the gradient of m is lost": (
        "for (int i = 0; i + 1 < Cell::STATES; i++) k.c[pass][i][e] = d[e].c[i];",
        "for (int i = 0; i + 2 < Cell::STATES; i++) k.c[pass][i][e] = d[e].c[i];",
        "slstm heads",
    ),
    "m is lost": (
        "for (int i = 0; i < G::PARTS_OF_C; i++) k.c[pass][i][e] = c_new[i];",
        "for (int i = 0; i < 2; i++) k.c[pass][i][e] = c_new[i];",
        "slstm heads",
    ),
    "the reset of this step cuts the one after": (
        "dh, round, pass, k.reset_before[pass]",
        "dh, round, pass, k.reset[pass]",
        "tanh resets",
    ),
    "a GRU's gradient passes by the product": (
        "product, pass, k.reset_before[pass]",
        "product, pass, false",
        "gru resets",
    ),
    "a GRU looks at no reset": (
        "    k.look(t);\n    k.multiply(2 * t",
        "    k.multiply(2 * t",
        "gru resets",
    ),
    "a GRU looks at no reset back": (
        "k.look(steps - 1 - round);\n    if (round) k.multiply(2",
        "if (round) k.multiply(2",
        "gru resets",
    ),
    "a norm looks at no reset back": (
        "k.look(steps - 1 - round);\n    if (round) k.multiply(round",
        "if (round) k.multiply(round",
        "normalized resets",
    ),
}
QUICK = (
    "nobody waits for what is delivered",
    "words are delivered into the half in use",
    "the barrier of the second sums is left out",
    "a gradient passes by the product",
    "every head has the first one's matrix",
    "channels that are none deliver zero by zero",
)


def outcome(what: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    old, new, step = EDITS[what]
    (file,) = (name for name in FILES if old in (source_folder() / name).read_text())
    name, *words = step.split()
    heads = 2 if "heads" in words else 1
    with with_fault(file, old, new) as root:
        return _in_process(_run, (root, name, "resets" in words, heads))


def _tensors(
    step: str, resets: bool, heads: int, seed: int, library: emulator.Library
) -> list[Tensor]:
    cluster.LAUNCH = dense_cluster.launcher(library, seed)
    torch.manual_seed(1)
    one = dense_cluster.case(step, 4, 5, 40 * heads, resets=resets, heads=heads)
    found, gradients = dense_cluster.results(one)
    return [
        found.y_bti,
        found.last_sbi,
        found.memo_btmi,
        found.norms_bt,
        *gradients.inputs,
        *gradients.parameters,
        gradients.first_sbi,
    ]


def _run(root: Path, step: str, resets: bool, heads: int) -> str:
    """Run a mutated engine in two orders, and compare with the one that is whole, to the bit."""
    more = {"kept": 2, "resets": resets, "heads": heads}
    configs = {
        back: dense_cluster.config(step, 64, 2, 3, (2, 1), back=back, **more)
        for back in (False, True)
    }
    cluster.CHOOSE = lambda *call: configs[call[-1]]
    return verdict_on_bits(functools.partial(_tensors, step, resets, heads), root)


if __name__ == "__main__":
    sys.exit(print_outcomes(outcome, EDITS))
