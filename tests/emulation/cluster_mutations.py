"""Faults planted in the dense engine's cluster kernels, and whether the emulation notices.

python -m tests.emulation.cluster_mutations
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from elman.kernels.sources import source_folder
from elman.ops.dense.cuda import cluster
from tests.emulation import dense_cluster, emulator
from tests.emulation.mutations import _in_process, _mutated, noticed, refusal

FILE = "cuda/dense/cluster.cuh"
_BARRIER = "    wait_copies<G::STAGES - 2>();\n    sync_block();\n"
_STEP = "#pragma unroll\n    for (int pass = 0; pass < G::PASSES; pass++) cluster_step(k"
_FIRST = "const bool at_first = round + 1 == (int)a.steps && k.exists(pass);"
_LAST_C = "copy(n++, 1, pass, -a.channels, there && !first)"
# By what is wrong: old text, new text, and the step that shows it.
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
        "half * G::K_WARPS + slices[block];",
        "half * G::K_WARPS + 1 - slices[block];",
        "tanh",
    ),
    "fewer bytes are expected than come": (
        "G::KW * G::ROWS * 2);",
        "G::KW * G::ROWS * 2 - 8);",
        "tanh",
    ),
    "more bytes are expected than come": (
        "G::KW * G::ROWS * 2);",
        "G::KW * G::ROWS * 2 + 8);",
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
        "  k.begin((const float*)a.dlast);\n  sync_cluster();\n",
        "  k.begin((const float*)a.dlast);\n",
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
        "k.fetch(t + G::STAGES - 1);",
        "k.fetch(t + G::STAGES - 2);",
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
        _LAST_C.replace("-a.channels", "(G::MEMO - 1) * a.channels"),
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
        "    for (int e = 0; e < 2; e++) k.h[pass][e] += dh[e];\n",
        "",
        "tanh",
    ),
    "fragments of another warp": (
        "(fragment - G::KEPT) * G::WARPS + warp",
        "(fragment - G::KEPT) * G::WARPS",
        "tanh",
    ),
    "rows of another block": ("* G::I + rank * G::M + out % G::M", "* G::I + out % G::M", "tanh"),
}
QUICK = (
    "nobody waits for what is delivered",
    "words are delivered into the half in use",
    "another slice's box counts the words",
    "one half of the sums for every step",
    "c of another step",
)


def outcome(what: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    old, new, step = EDITS[what]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "csrc")
        shutil.copytree(source_folder(), root)
        whole = (root / FILE).read_text()
        assert whole.count(old) == 1, (what, whole.count(old))
        (root / FILE).write_text(whole.replace(old, new))
        return _in_process(_run, (root, step))


def _tensors(step: str, seed: int, library: functools.partial) -> list[Tensor]:
    cluster.LAUNCH = dense_cluster.launcher(library, seed)
    torch.manual_seed(1)
    found, gradients = dense_cluster.results(dense_cluster.case(step, 4, 5, 40))
    return [
        found.y_bti,
        found.last_sbi,
        found.memo_btmi,
        *gradients.inputs,
        gradients.first_sbi,
    ]


def _run(root: Path, step: str) -> str:
    """Run a mutated engine in two orders, and compare with the one that is whole, to the bit."""
    configs = {
        back: dense_cluster.config(step, 64, 2, 3, (2, 1), kept=2, back=back)
        for back in (False, True)
    }
    cluster.CHOOSE = lambda *call: configs[call[-1]]
    for owner, make in ((torch.Tensor, "new_empty"), (torch, "empty_like")):
        original = getattr(owner, make)
        poisoned = lambda *a, original=original, **k: original(*a, **k).fill_(torch.nan)  # noqa: E731
        setattr(owner, make, poisoned)
    whole = _tensors(step, 1, functools.partial(_mutated, root=source_folder()))
    for seed in (1, 2):
        try:
            found = _tensors(step, seed, functools.partial(_mutated, root=root))
        except emulator.FaultError as fault:
            return str(fault)
        except AssertionError as refused:
            return refusal(refused)
        if not all(torch.equal(left, right) for left, right in zip(found, whole, strict=True)):
            return "wrong numbers"
    return "-"


def main() -> int:
    """Print how every fault was noticed; 1 if one was not."""
    said = {what: outcome(what) for what in EDITS}
    for what, how in said.items():
        print(f"{what:50} {how}")
    return int(not all(map(noticed, said.values())))


if __name__ == "__main__":
    sys.exit(main())
