"""Faults planted in the tape engine's cluster kernels, and whether the emulation notices.

python -m tests.emulation.tape_cluster_mutations
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import torch
from torch import Tensor

from elman.ops.tape.cuda import cluster
from tests.emulation import emulator, tape_cluster
from tests.emulation.mutations import _in_process, print_outcomes, verdict_on_bits, with_fault

BASE, PASSES = "cuda/tape/cluster.cuh", "cuda/tape/cluster_passes.cuh"
# By what is wrong: file, old text, new text, and a write that shows it.
EDITS = {
    "nobody waits for what is delivered": (
        BASE,
        "    if (delivered) boxes.wait(half * G::K_WARPS + slice, (step - 1) / 2);\n",
        "",
        "full",
    ),
    "words are delivered into the half in use": (
        BASE,
        "mail + (half * G::HALF +",
        "mail + ((1 - half) * G::HALF +",
        "full",
    ),
    "another slice's box counts the words": (
        BASE,
        "half * G::K_WARPS + k / G::KW;",
        "half * G::K_WARPS + 1 - k / G::KW;",
        "full",
    ),
    "fewer bytes of the mail are expected than come": (
        BASE,
        "G::KW * G::ROWS * 2);",
        "G::KW * G::ROWS * 2 - 8);",
        "full",
    ),
    "more scores are expected than come": (BASE, "G::FIRST * 4)", "G::FIRST * 4 + 8)", "full"),
    "fewer of the other sums are expected": (BASE, "G::SECOND * 4)", "G::SECOND * 4 - 4)", "full"),
    "two lanes exchange their words": (
        BASE,
        "odd ? other : word, high",
        "odd ? word : other, high",
        "full",
    ),
    "the matrices' gradients share a place": (BASE, "k = block * G::I + rank", "k = rank", "full"),
    "rows of the batch that are none": (BASE, "has(j) && b < a.batch &&", "has(j) &&", "full"),
    "channels that are none": (BASE, "&& channel(j) < a.channels;", ";", "full"),
    "every block keeps the weights": (
        BASE,
        "part || rank != row % G::CLUSTER",
        "part",
        "identity",
    ),
    "sums of the upper slots are those of the lower": (
        BASE,
        "kept_and_given(x[i], x[4 + i], upper_half, 16)",
        "kept_and_given(x[i], x[4 + i], 0, 16)",
        "full",
    ),
    "one block's sums are left out": (
        BASE,
        "sender < G::SENDERS && n",
        "sender < G::SENDERS - 1 && n",
        "full",
    ),
    "one half of the sums for every step": (
        BASE,
        "sums + step % 2 * G::FIRST;",
        "sums;",
        "full",
    ),
    "one half of the other sums for every step": (
        BASE,
        "others + step % 2 * G::SECOND;",
        "others;",
        "identity",
    ),
    "slots that are none have a weight": (
        BASE,
        "lane_slot(i) < G::SLOTS ? tape::power(score[i], most, scale) : 0.0f",
        "tape::power(score[i], most, scale)",
        "full",
    ),
    "the softmax has no gradient of its sum": (
        BASE,
        "    mean = slots_sum(mean);\n",
        "    mean = 0.0f;\n",
        "full",
    ),
    "rows of another warp": (BASE, "((warp * G::SLOTS + n)", "((n)", "full"),
    "the barrier of the products is left out, forward": (
        PASSES,
        "multiplies(t + 1));\n      sync_block();\n",
        "multiplies(t + 1));\n",
        "full",
    ),
    "the barrier of the products is left out, backward": (
        PASSES,
        "multiply(round, true, true);\n      sync_block();\n",
        "multiply(round, true, true);\n",
        "full",
    ),
    "scores are not waited for": (PASSES, "    boxes.wait(sums_box(t), t / 2);\n", "", "identity"),
    "the value's score is not waited for": (
        PASSES,
        "    boxes.wait(others_box(t), (t - 1) / 2);\n",
        "",
        "shared",
    ),
    "the gradients of the read are not waited for": (
        PASSES,
        "    boxes.wait(others_box(round), (round - 1) / 2);\n",
        "",
        "full",
    ),
    "weights of the write are read before they are there": (
        PASSES,
        "    sync_warp();\n    write_tape(q);",
        "    write_tape(q);",
        "full",
    ),
    "weights of the read are read before they are there": (
        PASSES,
        "    sync_warp();\n    read_tape(sum);",
        "    read_tape(sum);",
        "full",
    ),
    "the next read has the scores of the tape before the write": (
        PASSES,
        "score[i] = tape::next_score(score[i], w[i], along);",
        "score[i] = score[i] + 0.0f * along;",
        "full",
    ),
    "the value that is written is not rounded": (
        PASSES,
        "        narrow(q, words);\n        if (t",
        "        if (t",
        "full",
    ),
    "a checkpoint of the tape a step later": (
        PASSES,
        "until_checkpoint((int)args.interval) {}",
        "until_checkpoint((int)args.interval + 1) {}",
        "full",
    ),
    "the last write is left out": (
        PASSES,
        "    write_tape(q);\n    if (t == steps) return;",
        "    if (t == steps) return;\n    write_tape(q);",
        "identity",
    ),
    "a block leaves while others write to it": (
        PASSES,
        "      save_state((float*)a.last, h);\n    }\n    sync_cluster();\n",
        "      save_state((float*)a.last, h);\n    }\n",
        "identity",
    ),
    "the first state is not in the mail": (
        PASSES,
        "      store_one(mail + i, bf16_pair(x[0], x[1]));\n",
        "",
        "full",
    ),
    "copies of tapes are not waited for": (
        PASSES,
        "      wait_copies<G::AHEAD ? 1 : 0>();\n",
        "",
        "full",
    ),
    "the copies of a round before are waited for": (
        PASSES,
        "wait_copies<G::AHEAD ? 1 : 0>();",
        "wait_copies<G::AHEAD ? 2 : 1>();",
        "full",
    ),
    "a tape is copied over one in use": (
        PASSES,
        "return (round + 1) % G::TURNS;",
        "return (round + 1) % 2;",
        "full",
    ),
    "a tape is copied to the place of the one after it": (
        PASSES,
        "(slot(before_step(round), n, j)),",
        "(slot(after_step(round), n, j)),",
        "identity",
    ),
    "the tape of the round before is taken": (
        PASSES,
        "return (round + 1) % G::TURNS;",
        "return (round + 2) % G::TURNS;",
        "shared",
    ),
    "what was read ahead is not taken": (
        PASSES,
        "    if (G::AHEAD && t) kept = next;\n",
        "",
        "full",
    ),
    "a round reads its own numbers ahead": (
        PASSES,
        "fetch(next, round + 1, 1);",
        "fetch(next, round + 1, 0);",
        "full",
    ),
    "the weights stay those of the last step": (
        PASSES,
        "    weight_place -= 2 * G::SLOTS;\n",
        "",
        "identity",
    ),
    "a segment has a step too many": (
        PASSES,
        "inside = (int)a.interval - 1;",
        "inside = (int)a.interval;",
        "full",
    ),
    "a round reads before the warps that replay have come": (
        PASSES,
        "      if (walks && (!G::AHEAD || round == 0)) fetch(kept, round, 0);\n"
        "      if (!walks) replay_ahead(round);\n",
        "      if (walks && (!G::AHEAD || round == 0)) fetch(kept, round, 0);\n"
        "      if (!walks && round) replay_ahead(round - 1);\n",
        "full",
    ),
    "one tape too few is replayed": (PASSES, "t < end; t++", "t < end - 1; t++", "full"),
    "the tape of another step is fetched": (
        PASSES,
        "if (steps_in) return replayed(of, steps_in);",
        "if (steps_in) return replayed(of, steps_in > 1 ? steps_in - 1 : steps_in);",
        "full",
    ),
    "a segment is replayed into the place that is read": (
        PASSES,
        "(of % 2 * ((int)a.interval - 1) + steps_in - 1)",
        "(steps_in - 1)",
        "full",
    ),
    "a segment is replayed a round late": (
        PASSES,
        "start + (k + 1) * (interval - 1) / rounds,",
        "start + k * (interval - 1) / rounds,",
        "full",
    ),
    "the softmax of the write has no gradient": (
        PASSES,
        "delta[j][i] += dscore[s % 4] * m[i];",
        "",
        "full",
    ),
    "the softmax of the read has no gradient": (
        PASSES,
        "h[j][i] += dscore[s % 4] * m[i];",
        "",
        "full",
    ),
    "shared numbers change while lanes read them": (
        PASSES,
        "    sync_warp();\n    share(DSCORE, pull);\n    share(READ_WEIGHT",
        "    share(DSCORE, pull);\n    share(READ_WEIGHT",
        "full",
    ),
    "the first state is not read back": (
        PASSES,
        "load_state(before, (const float*)a.first);",
        "clear(before);",
        "full",
    ),
    "the written value's gradient misses the product": (
        PASSES,
        "(G::VALUE == 0 ? delta[j][i] : 0.0f)",
        "0.0f",
        "shared",
    ),
    "the written state's gradient is dropped": (
        PASSES,
        "if (!G::PRODUCT_VALUE) h[j][i] += dq[j][i];",
        "",
        "identity",
    ),
    "the last product is left out": (
        PASSES,
        "for (int i = 0; i < 2; i++) h[j][i] += state[j][i];",
        "for (int i = 0; i < 2; i++) h[j][i] += 0.0f * state[j][i];",
        "full",
    ),
    "the carried gradient is dropped": (
        PASSES,
        "e[j][i] += h[j][i] + dy[j][i];",
        "e[j][i] += dy[j][i];",
        "full",
    ),
}
QUICK = (
    "words are delivered into the half in use",
    "weights of the read are read before they are there",
    "the written value's gradient misses the product",
)


def outcome(what: str) -> str:
    """Return how a fault was noticed: what the emulator said, or ``wrong numbers``; else ``-``."""
    file, old, new, write = EDITS[what]
    with with_fault(file, old, new) as root:
        return _in_process(_run, (root, write))


def _tensors(write: str, seed: int, library: emulator.Library) -> list[Tensor]:
    cluster.LAUNCH = tape_cluster.launcher(library, seed)
    torch.manual_seed(1)
    found, gradients = tape_cluster.results(tape_cluster.case(write, 4, 5, 7, 120))
    return [*found, *gradients]


def _run(root: Path, write: str) -> str:
    """Run a mutated engine in two orders, and compare with the one that is whole, to the bit."""
    configs = {
        back: tape_cluster.config(write, 7, 128, 2, 3, 1, (4, 2), back=back)
        for back in (False, True)
    }
    cluster.CHOOSE = lambda *call: configs[call[-1]]
    return verdict_on_bits(functools.partial(_tensors, write), root)


if __name__ == "__main__":
    sys.exit(print_outcomes(outcome, EDITS))
