"""The tape engine's cluster kernels, run on a CPU from their own sources."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elman.ops.tape.cuda import cluster
from elman.ops.tape.cuda.cluster_config import ClusterConfig
from elman.ops.tape.passes import Call, Gradients, Results, Saved, save
from elman.ops.tape.recurrences import CELLS
from tests.emulation import emulator
from tests.emulation.dense_cluster import launcher_of
from tests.emulation.stretches import of_tape_cluster


@dataclass
class Case:
    """A call: bf16 input, fp32 matrices of bf16's numbers, fp32 tape and state, and gradients."""

    call: Call
    dy_bti: Tensor | None
    dtape_bni: Tensor | None
    dstate_bi: Tensor | None

    def saved(self, results: Results) -> Saved:
        """Return what a backward pass reads."""
        pulls = {"dy_bti": self.dy_bti, "dtape_bni": self.dtape_bni, "dstate_bi": self.dstate_bi}
        return save(self.call, results)._replace(**pulls)


def case(write: str, batch: int, steps: int, slots: int, channels: int) -> Case:
    """Return random tensors.

    They are small: large states align the slots with themselves, weights jump between 0 and 1, and
    gradients magnify the rounding of any engine a thousand times.
    """
    rows = CELLS[write].blocks * channels
    call = Call(
        write,
        "cuda",
        True,
        (torch.randn(batch, steps, channels) / 4).bfloat16(),
        (torch.randn(rows, channels) / (2 * channels**0.5)).bfloat16().float(),
        torch.randn(batch, slots, channels) / 2,
        (torch.randn(batch, channels) / 4).bfloat16().float(),
        None,
    )
    dy_bti = torch.randn(batch, steps, channels).bfloat16()
    return Case(call, dy_bti, torch.randn_like(call.tape_bni), torch.randn_like(call.state_bi))


def results(one: Case) -> tuple[Results, Gradients]:
    """Return what both passes leave."""
    found = cluster.forward(one.call)
    return found, cluster.backward(one.saved(found))


def config(
    write: str,
    slots: int,
    channels: int,
    blocks: int,
    rows: int,
    parts: int,
    warps: tuple[int, int],
    *,
    back: bool,
    kept: int | None = None,
    ahead: bool = True,
) -> ClusterConfig:
    """Return a config for tests.

    Args:
        write: Which value is written.
        slots: Of the tape.
        channels: Channels of the state and zeros.
        blocks: Of a cluster.
        rows: Of the batch, for a cluster.
        parts: Warps that walk one of them.
        warps: Warps of a block, and groups of them that share the rows of its matrix.
        back: Which pass.
        kept: Fragments of the matrix in registers; None: as many as fit.
        ahead: Whether a round of the way back reads for the next one.
    """
    made = emulator.keeping(ClusterConfig, kept)(
        CELLS[write], slots, channels, blocks, rows, parts, *warps, back, back and ahead
    )
    assert made.fits, made
    return made


launcher = launcher_of(cluster.unit_text, of_tape_cluster)
