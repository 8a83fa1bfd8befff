"""Faults planted in the dense engine's group kernels, and whether the emulation notices.

python -m tests.emulation.group_mutations
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from elman.kernels import stalls
from elman.ops.dense.cuda import groups
from tests.emulation import dense_cluster, dense_group, emulator
from tests.emulation.mutations import _in_process, print_outcomes, verdict_on_bits, with_fault

FILE = "cuda/dense/group.cuh"
_ANY = "    wait_copies<G::STAGES - 2>();\n    if (sync_block_any(!come)) return k.give_up(t,"
_ANY_BACK = _ANY.replace("give_up(t,", "give_up(round,")
_FIRST = "const bool at_first = round + 1 == (int)a.steps && k.exists(pass);"
# By what is wrong: old text, new text, and the step that shows it.
EDITS = {
    "nobody waits for what is exchanged": (
        "come = come && flags.wait(owner % G::GROUP, turn);",
        "(void)owner;",
        "tanh",
    ),
    "the wait is for the turn before": (
        "flags.wait(owner % G::GROUP, turn)",
        "flags.wait(owner % G::GROUP, turn - 1)",
        "tanh",
    ),
    "the wait is for a turn that never comes": (
        "flags.wait(owner % G::GROUP, turn)",
        "flags.wait(owner % G::GROUP, turn + 1)",
        "tanh",
    ),
    "the wait is for another slice's owners": (
        "const int begin = warp * G::KW / G::M,",
        "const int begin = (warp ? 0 : 1) * G::KW / G::M,",
        "tanh",
    ),
    "the last owner is not waited for": (
        "owner < end; owner += 32",
        "owner < end - 1; owner += 32",
        "tanh",
    ),
    "lanes read without having met the one that waited": (
        "    sync_warp();\n    return all_of_warp",
        "    return all_of_warp",
        "tanh",
    ),
    "the flag is raised before all have written": (
        "    sync_block();\n    if (thread_index() == 0) flags.raise",
        "    if (thread_index() == 0) flags.raise",
        "tanh",
    ),
    "every thread raises the flag": (
        "if (thread_index() == 0) flags.raise(rank, turn);",
        "flags.raise(rank, turn);",
        "tanh",
    ),
    "a block raises another one's flag": (
        "flags.raise(rank, turn)",
        "flags.raise(0, turn)",
        "tanh",
    ),
    "groups share their flags": (
        "g.flags + group * G::GROUP * Flags::STRIDE",
        "g.flags",
        "tanh",
    ),
    "groups share what they exchange": (
        "(int64_t)group * 2 * G::HALF",
        "(int64_t)0 * 2 * G::HALF",
        "tanh",
    ),
    "one half for every turn": ("exchanged + turn % 2 * G::HALF", "exchanged", "tanh"),
    "the next turn is written into the half in use": (
        "if (more) k.publish(words[pass][0], t + 2, pass, 0);",
        "if (more) k.publish(words[pass][0], t + 1, pass, 0);",
        "tanh",
    ),
    "the first state is not exchanged": (
        "    k.publish(bf16_pair(k.h[pass][0], k.h[pass][1]), 1, pass, 0);\n",
        "    (void)pass;\n",
        "tanh",
    ),
    "rows of a tile the wrong way round": (
        "row % G::TILE_ROWS) * 16",
        "(row ^ 1) % G::TILE_ROWS) * 16",
        "tanh",
    ),
    "one tile of rows for all": (
        "((tile * (G::K / 32) + k / 32)",
        "((k / 32)",
        "tanh",
    ),
    "the second tile is multiplied by the first one's rows": (
        "const int tile = load / G::K_BLOCKS * (G::K / 32);",
        "const int tile = 0;",
        "tanh",
    ),
    "sums of one tile for all": (
        "row = warp * G::ROWS + row_tile * G::TILE_ROWS + n;",
        "row = warp * G::ROWS + n;",
        "tanh",
    ),
    "sums go on from tile to tile": ("      if (block == 0)\n", "      if (load == 0)\n", "tanh"),
    "the barrier of the sums is left out, forward": (
        "sync_block_any(!come)) return k.give_up(t,",
        "!come) return k.give_up(t,",
        "tanh",
    ),
    "the barrier of the sums is left out, backward": (
        "sync_block_any(!come)) return k.give_up(round,",
        "!come) return k.give_up(round,",
        "tanh",
    ),
    "sums of one slice too few": (
        "slice < G::WARPS; slice++)\n      load<2",
        "slice < G::WARPS - 1; slice++)\n      load<2",
        "tanh",
    ),
    "rows of the batch that are none": ("first + row(pass) < a.batch &&", "", "tanh"),
    "channels that are none": ("&& channel < a.channels;", ";", "tanh"),
    "rows of another group": ("g.first + group * G::ROWS;", "g.first;", "tanh"),
    "copies are not waited for": (_ANY, _ANY.partition("\n")[2], "tanh"),
    "copies are not waited for, backward": (_ANY_BACK, _ANY_BACK.partition("\n")[2], "tanh"),
    "one step too few in flight": (
        "k.fetch(t + G::STAGES - 1);",
        "k.fetch(t + G::STAGES - 2);",
        "tanh",
    ),
    "the first state is not read back": (_FIRST, "const bool at_first = false;", "mix"),
    "gates of another block": (
        "k.gather(pre[b], pass, b * G::M)",
        "k.gather(pre[b], pass, 0)",
        "lstm",
    ),
    "the blocks' gradients share a place": (
        "const int k = block * G::I + rank",
        "const int k = rank",
        "lstm",
    ),
    "the carried gradient is dropped": ("k.h[pass][e] + dh[e] + x[0][e]", "dh[e] + x[0][e]", "mix"),
    "the last product is left out": (
        "if (!G::RESETS || !k.reset[pass]) k.h[pass][e] += dh[e];",
        ";",
        "tanh",
    ),
    "the memo is not written": (
        "k.places.write(1, pass, i * a.channels, words[pass][1 + i]);",
        "k.places.write(1, pass, i * a.channels, words[pass][0]);",
        "mix",
    ),
}
QUICK = (
    "nobody waits for what is exchanged",
    "lanes read without having met the one that waited",
    "the flag is raised before all have written",
)


def outcome(what: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    old, new, step = EDITS[what]
    with with_fault(FILE, old, new) as root:
        return _in_process(_run, (root, step))


def _tensors(step: str, seed: int, library: emulator.Library) -> list[Tensor]:
    groups.LAUNCH = dense_group.launcher(library, seed)
    torch.manual_seed(1)
    found, gradients = dense_group.results(dense_cluster.case(step, 19, 5, 40))
    return [
        found.y_bti,
        found.last_sbi,
        found.memo_btmi,
        *gradients.inputs,
        gradients.first_sbi,
    ]


def _run(root: Path, step: str) -> str:
    """Run a mutated engine in two orders, and compare with the one that is whole, to the bit.

    Two groups of two blocks walk 19 rows, 16 of them in two tiles.
    """
    configs = {
        back: dense_group.config(step, 64, 2, 16, 2, kept=2, back=back) for back in (False, True)
    }
    groups.CHOOSE = lambda *call: configs[call[-2]]

    def tensors(seed: int, library: emulator.Library) -> list[Tensor]:
        found = _tensors(step, seed, library)
        stalls.check()
        return found

    return verdict_on_bits(tensors, root)


if __name__ == "__main__":
    sys.exit(print_outcomes(outcome, EDITS))
