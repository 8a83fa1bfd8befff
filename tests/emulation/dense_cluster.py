"""The dense engine's cluster kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from elman.kernels.launching import Launch
from elman.ops.dense.cuda import cluster
from elman.ops.dense.cuda.cluster_config import ClusterConfig
from elman.ops.dense.recurrences import CELLS
from tests.emulation import emulator
from tests.emulation.stretches import declare, of_dense_cluster

HEADERS = (emulator.FAST_CLUSTER_HEADER,)
EXACT_HEADERS = (emulator.CLUSTER_HEADER,)


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
    """
    made = ClusterConfig(CELLS[step], channels, blocks, rows, *warps, stages, back)
    if kept is not None:
        made.__dict__["kept"] = kept
    assert made.fits, made
    return made


def launcher(
    library: Callable[[str], ctypes.CDLL] = emulator.loaded, seed: int = 1
) -> Callable[[ClusterConfig, Launch, cluster._Call], None]:
    """Return what stands in for a launch on a GPU.

    Args:
        library: Compiles and loads a translation unit.
        seed: Of the order in which threads run and words arrive.
    """

    def launch(config: ClusterConfig, wanted: Launch, call: cluster._Call) -> None:
        compiled = library(cluster.unit_text(config, EXACT_HEADERS))
        declare(compiled, of_dense_cluster(call.args, config))
        emulator.start(compiled, wanted, call.args, seed)

    return launch
