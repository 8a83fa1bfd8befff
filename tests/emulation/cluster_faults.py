"""Faults planted in the kernels of the dense and tape engines that exchange what they compute.

Clusters of blocks exchange it in shared memory, groups of blocks in global memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from elman.kernels import stalls
from elman.ops.dense.cuda import cluster, groups
from elman.ops.tape.cuda import cluster as tape_cluster
from tests.emulation import dense_cluster, dense_group, emulator
from tests.emulation import tape_cluster as tape_emulation
from tests.emulation.faults import (
    BARRIER,
    BUFFER,
    COUNT,
    INDEX,
    RESET,
    SUM,
    TAIL,
    Engine,
    Fault,
    Table,
    faults_of,
    outcome,
    verdict_on_bits,
)

_STEP = "#pragma unroll\n    for (int pass = 0; pass < G::PASSES; pass++) cluster_step(k"
_BARRIER = "    wait_copies<G::STAGES - 2>();\n    sync_block();\n"
_LAST_C = "copy(n++, 1, pass, -k * pitch(), there && !first)"
_Z = "k.multiply(second, 2 * t + 1, true, more);\n    sync_block();\n"
_ANY = "    wait_copies<G::STAGES - 2>();\n    if (sync_block_any(!come)) return k.give_up(t,"
_FIRST = "const bool at_first = round + 1 == (int)a.steps && k.exists(pass);"

# The case is a step, with resets, heads or neither.
DENSE_CLUSTER = {
    BARRIER: {
        "nobody waits for what is delivered": (
            "    if (delivered) boxes.wait(half * G::K_WARPS + slice, (step - 1) / 2);\n",
            "",
            "tanh",
        ),
        "the barrier of the second sums is left out": (_Z, _Z.split("\n")[0] + "\n", "gru"),
        "sums are read before all have left theirs": (
            "  sync_block();\n  sums.tell(k, round);\n",
            "  sums.tell(k, round);\n",
            "normalized",
        ),
        "a block leaves while others write to it": (
            "  k.end((float*)a.last);\n  sync_cluster();\n",
            "  k.end((float*)a.last);\n",
            "tanh",
        ),
        "copies are not waited for": (_BARRIER + _STEP, "    sync_block();\n" + _STEP, "tanh"),
    },
    COUNT: {
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
        "every lane expects": ("warp < G::K_WARPS && lane == 0", "warp < G::K_WARPS", "tanh"),
        "another slice's box counts the words": (
            "half * G::K_WARPS + slice;",
            "half * G::K_WARPS + 1 - slice;",
            "tanh",
        ),
    },
    BUFFER: {
        "words are delivered into the half in use": (
            "letter + half * G::HALF +",
            "letter + (1 - half) * G::HALF +",
            "tanh",
        ),
        "one half of the sums for every step": (
            "parts + (half * G::PART + (slice",
            "parts + ((slice",
            "tanh",
        ),
        "one step too few in flight": (
            "k.fetch(t + G::STAGES - 1);\n    k.places.next_target();\n  }\n  if",
            "k.fetch(t + G::STAGES - 2);\n    k.places.next_target();\n  }\n  if",
            "tanh",
        ),
        "r h goes into the first half": (
            "slice, 2 * t + 1, pass, 0);",
            "slice, 2 * t, pass, 0);",
            "gru",
        ),
    },
    INDEX: {
        "every head has the first one's matrix": (
            "(const bf16*)args.matrix + head * (G::BLOCKS * G::I * G::I)",
            "(const bf16*)args.matrix",
            "slstm heads",
        ),
        "gates of another block": (
            "k.gather(pre[b], t, pass, b * G::M)",
            "k.gather(pre[b], t, pass, 0)",
            "lstm",
        ),
        "rows of another block": (
            "* P::I + rank * P::M + out % P::M",
            "* P::I + out % P::M",
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
    },
    SUM: {
        "sums of one slice too few": (
            "slice < G::K_WARPS; slice++)\n      load<2",
            "slice < G::K_WARPS - 1; slice++)\n      load<2",
            "tanh",
        ),
        "the carried gradient is dropped": (
            "k.h[pass][e] + dh[e] + x[0][e]",
            "dh[e] + x[0][e]",
            "mix",
        ),
        "squares of half of a warp": ("  squares += shuffle_xor(squares, 2);\n", "", "normalized"),
        "the scale's gradient of one step": (
            "k.c[pass][0][e] += d[e].scale",
            "k.c[pass][0][e] = d[e].scale",
            "normalized_scalar",
        ),
        "the last product is left out": (
            # Not the place of the same text in cluster_end_back, which other cells take.
            "k.h[pass][e] += dh[e];\n    }\n    k.end((float*)a.dfirst);\n",
            ";\n    }\n    k.end((float*)a.dfirst);\n",
            "tanh",
        ),
    },
    TAIL: {
        "channels that are none deliver zero by zero": (
            "    if (Cell::DIVIDES && !k.exists(pass)) words[b] = 0;\n",
            "",
            "slstm heads",
        ),
        "rows of the batch that are none": ("first + row(pass) < a.batch &&", "", "tanh"),
        "channels that are none": ("&& channel < a.channels;", ";", "tanh"),
        "the last state is not delivered": (
            "more = G::NORM || t + 1",
            "more = t + 1",
            "normalized",
        ),
        "the first state is not read back": (_FIRST, "const bool at_first = false;", "mix"),
    },
    RESET: {
        "a gradient passes by the product": (
            "if (reset) dh[0] = dh[1] = 0.0f;",
            ";",
            "tanh resets",
        ),
        "a state lives on": ("    k.forget(pass);\n", "", "mix resets"),
        "a gradient passes by c": (
            "if (k.reset[pass]) k.c[pass][i][e] = 0.0f;",
            ";",
            "lstm resets",
        ),
        "a GRU looks at no reset": (
            "    k.look(t);\n    k.multiply(2 * t",
            "    k.multiply(2 * t",
            "gru resets",
        ),
        "the reset of this step cuts the one after": (
            "dh, round, pass, k.reset_before[pass]",
            "dh, round, pass, k.reset[pass]",
            "tanh resets",
        ),
    },
}
DENSE_GROUP = {
    BARRIER: {
        "the flag is raised before all have written": (
            "    sync_block();\n    if (thread_index() == 0) flags.raise",
            "    if (thread_index() == 0) flags.raise",
            "tanh",
        ),
        "nobody waits for what is exchanged": (
            "come = come && flags.wait(owner % G::GROUP, turn);",
            "(void)owner;",
            "tanh",
        ),
        "lanes read without having met the one that waited": (
            "    sync_warp();\n    return all_of_warp",
            "    return all_of_warp",
            "tanh",
        ),
        "the barrier of the sums is left out, backward": (
            "sync_block_any(!come)) return k.give_up(round,",
            "!come) return k.give_up(round,",
            "tanh",
        ),
        "copies are not waited for": (_ANY, _ANY.partition("\n")[2], "tanh"),
    },
    COUNT: {
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
        "every thread raises the flag": (
            "if (thread_index() == 0) flags.raise(rank, turn);",
            "flags.raise(rank, turn);",
            "tanh",
        ),
        "groups share their flags": (
            "g.flags + group * G::GROUP * Flags::STRIDE",
            "g.flags",
            "tanh",
        ),
    },
    BUFFER: {
        "one half for every turn": ("exchanged + turn % 2 * G::HALF", "exchanged", "tanh"),
        "the next turn is written into the half in use": (
            "if (more) k.publish(words[pass][0], t + 2, pass, 0);",
            "if (more) k.publish(words[pass][0], t + 1, pass, 0);",
            "tanh",
        ),
        "groups share what they exchange": (
            "(int64_t)group * 2 * G::HALF",
            "(int64_t)0 * 2 * G::HALF",
            "tanh",
        ),
        "one step too few in flight": (
            "k.fetch(t + G::STAGES - 1);",
            "k.fetch(t + G::STAGES - 2);",
            "tanh",
        ),
    },
    INDEX: {
        "rows of a tile the wrong way round": (
            "row % G::TILE_ROWS) * 16",
            "(row ^ 1) % G::TILE_ROWS) * 16",
            "tanh",
        ),
        "gates of another block": (
            "k.gather(pre[b], pass, b * G::M)",
            "k.gather(pre[b], pass, 0)",
            "lstm",
        ),
        "rows of another group": ("g.first + group * G::ROWS;", "g.first;", "tanh"),
    },
    SUM: {
        "sums of one slice too few": (
            "slice < G::WARPS; slice++)\n      load<2",
            "slice < G::WARPS - 1; slice++)\n      load<2",
            "tanh",
        ),
        "sums go on from tile to tile": (
            "      if (block == 0)\n",
            "      if (load == 0)\n",
            "tanh",
        ),
        "the carried gradient is dropped": (
            "k.h[pass][e] + dh[e] + x[0][e]",
            "dh[e] + x[0][e]",
            "mix",
        ),
    },
    TAIL: {
        "rows of the batch that are none": ("first + row(pass) < a.batch &&", "", "tanh"),
        "the last owner is not waited for": (
            "owner < end; owner += 32",
            "owner < end - 1; owner += 32",
            "tanh",
        ),
        "the first state is not exchanged": (
            "    k.publish(bf16_pair(k.h[pass][0], k.h[pass][1]), 1, pass, 0);\n",
            "    (void)pass;\n",
            "tanh",
        ),
    },
}
# The case is what is written.
TAPE_CLUSTER = {
    BARRIER: {
        "weights of the read are read before they are there": (
            "    sync_warp();\n    read_tape(sum);",
            "    read_tape(sum);",
            "full",
        ),
        "nobody waits for what is delivered": (
            "    if (delivered) boxes.wait(half * G::K_WARPS + slice, (step - 1) / 2);\n",
            "",
            "full",
        ),
        "the barrier of the products is left out, backward": (
            "multiply(round, true, true);\n      sync_block();\n",
            "multiply(round, true, true);\n",
            "full",
        ),
        "a round reads before the warps that replay have come": (
            "      if (walks && (!G::AHEAD || round == 0)) fetch(kept, round, 0);\n"
            "      if (!walks) replay_ahead(round);\n",
            "      if (walks && (!G::AHEAD || round == 0)) fetch(kept, round, 0);\n"
            "      if (!walks && round) replay_ahead(round - 1);\n",
            "full",
        ),
        "copies of tapes are not waited for": (
            "      wait_copies<G::AHEAD ? 1 : 0>();\n",
            "",
            "full",
        ),
    },
    COUNT: {
        "fewer bytes of the mail are expected than come": (
            "G::KW * G::ROWS * 2);",
            "G::KW * G::ROWS * 2 - 8);",
            "full",
        ),
        "more scores are expected than come": ("G::FIRST * 4)", "G::FIRST * 4 + 8)", "full"),
        "another slice's box counts the words": (
            "half * G::K_WARPS + k / G::KW;",
            "half * G::K_WARPS + 1 - k / G::KW;",
            "full",
        ),
    },
    BUFFER: {
        "words are delivered into the half in use": (
            "mail + (half * G::HALF +",
            "mail + ((1 - half) * G::HALF +",
            "full",
        ),
        "a tape is copied over one in use": (
            "return (round + 1) % G::TURNS;",
            "return (round + 1) % 2;",
            "full",
        ),
        "one half of the sums for every step": (
            "sums + step % 2 * G::FIRST;",
            "sums;",
            "full",
        ),
        "a segment is replayed into the place that is read": (
            "(of % 2 * ((int)a.interval - 1) + steps_in - 1)",
            "(steps_in - 1)",
            "full",
        ),
    },
    INDEX: {
        "the matrices' gradients share a place": ("k = block * G::I + rank", "k = rank", "full"),
        "a checkpoint of the tape a step later": (
            "until_checkpoint((int)args.interval) {}",
            "until_checkpoint((int)args.interval + 1) {}",
            "full",
        ),
        "the tape of another step is fetched": (
            "if (steps_in) return replayed(of, steps_in);",
            "if (steps_in) return replayed(of, steps_in > 1 ? steps_in - 1 : steps_in);",
            "full",
        ),
        "rows of another warp": ("((warp * G::SLOTS + n)", "((n)", "full"),
    },
    SUM: {
        "the written value's gradient misses the product": (
            "(G::VALUE == 0 ? delta[j][i] : 0.0f)",
            "0.0f",
            "shared",
        ),
        "one block's sums are left out": (
            "sender < G::SENDERS && n",
            "sender < G::SENDERS - 1 && n",
            "full",
        ),
        "the softmax of the write has no gradient": (
            "delta[j][i] += dscore[s % 4] * m[i];",
            "",
            "full",
        ),
        "the carried gradient is dropped": (
            "e[j][i] += h[j][i] + dy[j][i];",
            "e[j][i] += dy[j][i];",
            "full",
        ),
    },
    TAIL: {
        "rows of the batch that are none": ("has(j) && b < a.batch &&", "has(j) &&", "full"),
        "channels that are none": ("&& channel(j) < a.channels;", ";", "full"),
        "slots that are none have a weight": (
            "lane_slot(i) < G::SLOTS ? tape::power(score[i], most, scale) : 0.0f",
            "tape::power(score[i], most, scale)",
            "full",
        ),
        "one tape too few is replayed": ("t < end; t++", "t < end - 1; t++", "full"),
        "the last write is left out": (
            "    write_tape(q);\n    if (t == steps) return;",
            "    if (t == steps) return;\n    write_tape(q);",
            "identity",
        ),
    },
}


def _dense_cluster(case: str, seed: int, library: emulator.Library) -> list[Tensor]:
    step, *words = case.split()
    heads, resets = 2 if "heads" in words else 1, "resets" in words
    cluster.LAUNCH = dense_cluster.launcher(library, seed)
    cluster.CHOOSE = lambda *call: dense_cluster.config(
        step, 64, 2, 3, (2, 1), back=call[-1], kept=2, resets=resets, heads=heads
    )
    one = dense_cluster.case(step, 4, 5, 40 * heads, resets=resets, heads=heads)
    found, gradients = dense_cluster.results(one)
    passed = [found.y_bti, found.last_sbi, found.memo_btmi, found.norms_bt]
    return [*passed, *gradients.inputs, *gradients.parameters, gradients.first_sbi]


def _dense_group(step: str, seed: int, library: emulator.Library) -> list[Tensor]:
    """Two groups of two blocks walk 19 rows, 16 of them in two tiles."""
    groups.LAUNCH = dense_group.launcher(library, seed)
    groups.CHOOSE = lambda *call: dense_group.config(step, 64, 2, 16, 2, kept=2, back=call[-2])
    found, gradients = dense_group.results(dense_cluster.case(step, 19, 5, 40))
    stalls.check()
    passed = [found.y_bti, found.last_sbi, found.memo_btmi]
    return [*passed, *gradients.inputs, gradients.first_sbi]


def _tape_cluster(write: str, seed: int, library: emulator.Library) -> list[Tensor]:
    tape_cluster.LAUNCH = tape_emulation.launcher(library, seed)
    tape_cluster.CHOOSE = lambda *call: tape_emulation.config(
        write, 7, 128, 2, 3, 1, (4, 2), back=call[-1]
    )
    found, gradients = tape_emulation.results(tape_emulation.case(write, 4, 5, 7, 120))
    return [*found, *gradients]


Compute = Callable[[str, int, emulator.Library], list[Tensor]]


def _engine(table: Table, compute: Compute, *files: str) -> Engine:
    """Return an engine; what its kernels compute is compared to the bit with the whole ones'."""

    def seeded(case: str, seed: int, library: emulator.Library) -> list[Tensor]:
        torch.manual_seed(1)
        return compute(case, seed, library)

    def run(root: Path, fault: Fault) -> str:
        return verdict_on_bits(functools.partial(seeded, *fault.case), root)

    return Engine(faults_of(table, *files), functools.partial(outcome, run))


ENGINES = {
    "dense cluster": _engine(
        DENSE_CLUSTER, _dense_cluster, "cuda/dense/cluster.cuh", "cuda/dense/cluster_passes.cuh"
    ),
    "dense group": _engine(DENSE_GROUP, _dense_group, "cuda/dense/group.cuh"),
    "tape cluster": _engine(
        TAPE_CLUSTER, _tape_cluster, "cuda/tape/cluster.cuh", "cuda/tape/cluster_passes.cuh"
    ),
}
