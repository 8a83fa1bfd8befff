"""The dense engine's group kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.dense.cuda import groups
from elman.ops.dense.cuda.group_config import SHARED_LIMITS, GroupConfig
from elman.ops.dense.passes import Gradients, Results
from elman.ops.dense.recurrences import CELLS
from tests.emulation import emulator
from tests.emulation.dense_cluster import Case
from tests.emulation.stretches import declare, of_dense_group


def results(one: Case) -> tuple[Results, Gradients]:
    """Return what both passes leave."""
    found = groups.forward(one.call)
    return found, groups.backward(one.saved(found))


def config(
    step: str,
    channels: int,
    blocks: int,
    rows: int,
    warps: int,
    *,
    back: bool,
    stages: int = 3,
    kept: int | None = None,
    resets: bool = False,
) -> GroupConfig:
    """Return a config for tests.

    Args:
        step: Name of the step.
        channels: Channels of the state and zeros.
        blocks: Of a group.
        rows: Of the batch, for a group.
        warps: Warps of a block.
        back: Which pass.
        stages: Steps whose inputs are in shared memory.
        kept: Fragments of the matrix in registers; None: as many as fit.
        resets: Whether rows may begin anew.
    """
    made = emulator.keeping(GroupConfig, kept)(
        CELLS[step], channels, blocks, rows, warps, stages, back, resets
    )
    assert made.fits(SHARED_LIMITS[8, 9]), made
    return made


def launcher(
    library: Callable[[str], ctypes.CDLL] = emulator.loaded, seed: int = 1
) -> Callable[[GroupConfig, Launch, groups.DenseGroupArgs, Tensor], None]:
    """Return what stands in for a launch on a GPU.

    Args:
        library: Compiles and loads a translation unit.
        seed: Of the order in which threads run.
    """

    def launch(
        config: GroupConfig, wanted: Launch, args: groups.DenseGroupArgs, like: Tensor
    ) -> None:
        assert wanted.together
        compiled = library(groups.unit_text(config, (emulator.GRID_HEADER,)))
        declare(compiled, of_dense_group(args, config, wanted.blocks // config.group))
        emulator.start(compiled, wanted, args, seed)

    return launch
