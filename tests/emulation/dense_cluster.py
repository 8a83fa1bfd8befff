"""The dense engine's cluster kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.dense.cuda import cluster
from elman.ops.dense.cuda.cluster_config import ClusterConfig
from elman.ops.dense.passes import Call, Gradients, Results, Saved, save
from elman.ops.dense.recurrences import CELLS
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, of_dense_cluster


@dataclass
class Case:
    """A call: bf16 sequences and matrix, fp32 state, and gradients of what it returns.

    With heads, the matrix is one for each of them.
    """

    step: str
    inputs: list[Tensor]
    matrix_pi: Tensor
    parameters: list[Tensor]
    first_sbi: Tensor
    dy_bti: Tensor
    dlast_sbi: Tensor
    resets_bt: Tensor | None

    @property
    def call(self) -> Call:
        """What a forward pass reads."""
        given = (self.inputs, [self.matrix_pi], self.parameters, self.first_sbi, self.resets_bt)
        return Call(self.step, "cuda", True, *given)

    def saved(self, results: Results) -> Saved:
        """Return what a backward pass reads."""
        saved = save(self.call, results)
        return saved._replace(dy_bti=self.dy_bti, dlast_sbi=self.dlast_sbi)


def case(
    step: str, batch: int, steps: int, channels: int, *, resets: bool = False, heads: int = 1
) -> Case:
    """Return random tensors. With resets, one row begins anew at its first step."""
    cell = CELLS[step]
    widths = [cell.blocks * channels, *[channels] * cell.others]
    state = (cell.states, batch, channels)
    own = [torch.randn(1)] * cell.scale
    own += [(torch.randn(channels, channels) / channels**0.5).bfloat16()] * cell.extra
    resets_bt = torch.rand(batch, steps) < 0.4
    resets_bt[-1, 0] = True
    first_sbi = torch.randn(state)
    if step == "slstm":  # n, a sum of weights, is positive
        first_sbi[2].abs_().add_(0.5)
    own_channels = channels // heads
    rows = cell.blocks * own_channels
    matrix = (torch.randn(heads, rows, own_channels) / own_channels**0.5).bfloat16()
    return Case(
        step,
        [torch.randn(batch, steps, width).bfloat16() for width in widths],
        matrix if heads > 1 else matrix[0],
        own,
        first_sbi,
        torch.randn(batch, steps, channels).bfloat16(),
        torch.randn(state),
        resets_bt if resets else None,
    )


def results(one: Case) -> tuple[Results, Gradients]:
    """Return what both passes leave."""
    found = cluster.forward(one.call)
    return found, cluster.backward(one.saved(found))


def config(
    step: str,
    channels: int,
    blocks: int,
    rows: int,
    warps: tuple[int, int],
    *,
    back: bool,
    stages: int = 3,
    kept: int | None = None,
    resets: bool = False,
    heads: int = 1,
) -> ClusterConfig:
    """Return a config for tests.

    Args:
        step: Name of the step.
        channels: Channels of the state and zeros.
        blocks: Of a cluster.
        rows: Of the batch, for a cluster.
        warps: Warps of a block, and groups of them that share the rows of its matrix.
        back: Which pass.
        stages: Steps whose inputs are in shared memory.
        kept: Fragments of the matrix in registers; None: as many as fit.
        resets: Whether it knows resets.
        heads: Of a block-diagonal matrix; channels, rows and warps are of one.
    """
    made = emulator.keeping(ClusterConfig, kept)(
        CELLS[step], channels, blocks, rows, *warps, stages, back, resets, heads
    )
    assert made.fits, made
    return made


def launcher_of(
    unit_text: Callable[[Any, tuple[str, ...]], str],
    stretches_of: Callable[[Any, Any], Sequence[Stretch | None]],
) -> Callable[..., Callable[[Any, Launch, Any], None]]:
    """Return what makes the stand-ins for launches of clusters on a GPU.

    It takes what compiles and loads a translation unit, and the seed of the order in which threads
    run and words arrive.

    Args:
        unit_text: From a config and headers to a translation unit.
        stretches_of: From arguments and config to what a launch may touch.
    """

    def launcher(
        library: Callable[[str], ctypes.CDLL] = emulator.loaded, seed: int = 1
    ) -> Callable[[Any, Launch, Any], None]:
        def launch(config: Any, wanted: Launch, call: Any) -> None:
            compiled = library(unit_text(config, (emulator.CLUSTER_HEADER,)))
            declare(compiled, stretches_of(call.args, config))
            emulator.start(compiled, wanted, call.args, seed)

        return launch

    return launcher


launcher = launcher_of(cluster.unit_text, of_dense_cluster)
