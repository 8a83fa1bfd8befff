"""The cluster form of the dense engine: one launch runs a step over a whole sequence.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
s parts of the state, c channels of any kind, k blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch

from elman.kernels.launching import Launch
from elman.ops.common.cuda.clusters import MULTIPROCESSORS
from elman.ops.common.cuda.machine import machine
from elman.ops.common.cuda_kernels import CudaKernels, approximate
from elman.ops.dense.abi import layouts
from elman.ops.dense.cuda.calls import SequenceCall
from elman.ops.dense.cuda.cluster_config import ClusterConfig, choose
from elman.ops.dense.passes import Call, Gradients, Results, Saved, gradient_room, room
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import CELLS, compiled_cell

_NAMES = ("dense_cluster_forward", "dense_cluster_backward")


def forward(call: Call) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`."""
    results = room(call)
    kernel = _KernelCall(call, results, back=False)
    kernel.point_forward(call, results)
    kernel.run()
    return results


def backward(saved: Saved) -> Gradients:
    """Run a step back through time."""
    first_sbi = saved.first_sbi
    dinputs = gradient_room(saved)
    dfirst_sbi = torch.empty_like(first_sbi, memory_format=torch.contiguous_format)
    kernel = _KernelCall(saved, saved, back=True)
    dscale_bi = first_sbi.new_empty(first_sbi.shape[1:] if kernel.config.cell.scale else (0,))
    kernel.point_backward(saved, dinputs, dfirst_sbi)
    kernel.point(dscale=dscale_bi)
    kernel.run()
    return gradients(saved, dinputs, dscale_bi, dfirst_sbi)


class _KernelCall(SequenceCall):
    """The arguments of one call, and how it runs.

    Attributes:
        config: How the pass runs.
    """

    config: ClusterConfig

    def __init__(self, call: Call | Saved, results: Results | Saved, *, back: bool) -> None:
        super().__init__(call, results)
        multiprocessors = machine(self.like.device.index).multiprocessors or MULTIPROCESSORS
        size = (self.args.channels, self.args.batch, multiprocessors)
        config = CHOOSE(call.step, *size, self.heads, call.resets_bt is not None, back)
        assert config is not None, call.step
        self.config = config
        if config.cell.norm:
            self.point(norms=results.norms_bt)
        if config.cell.scale:
            self.point(scale=call.parameters[0])
        if config.cell.extra:
            self.point(extra=self.padded(call.parameters[0]))

    def run(self) -> None:
        """Launch the pass."""
        config = self.config
        blocks = self.heads * math.ceil(self.args.batch / config.rows) * config.cluster
        wanted = Launch(
            _NAMES[config.back],
            blocks,
            config.threads,
            config.shared_bytes,
            cluster=config.cluster,
        )
        LAUNCH(config, wanted, self)


def _choose(
    step: str,
    channels: int,
    batch: int,
    multiprocessors: int,
    heads: int,
    resets: bool,
    back: bool,
) -> ClusterConfig | None:
    cell, size = compiled_cell(step), (channels, batch, multiprocessors)
    return choose(cell, *size, back=back, resets=resets, heads=heads)


@cache
def unit_text(config: ClusterConfig, headers: tuple[str, ...] = ()) -> str:
    """Return the text of a pass's translation unit.

    Args:
        config: What is computed, and how it runs.
        headers: Headers that say what the kernels ask of the machine; none: a GPU's.
    """
    headers = headers or ("cuda/common/device.cuh", "cuda/common/cluster.cuh")
    name, cell = _NAMES[config.back], config.cell
    return "\n".join(
        [
            *(f'#include "{header}"' for header in headers),
            '#include "cuda/dense/cluster_passes.cuh"',
            f"namespace elman {{\n{cell.code}using ClusterCell = {cell.type};",
            "struct ClusterSpec {\n    using Cell = ClusterCell;",
            f"{cell.assertions(cell.type)}}};\n}}  // namespace elman",
            f"using G = {config.type};",
            layouts() + config.static_checks(),
            f"ELMAN_CLUSTER_KERNEL({name}, G::CLUSTER, G::THREADS, 1, elman::DenseArgs, "
            f"elman::{name}<G>(a))",
            "",
        ]
    )


def _label(config: ClusterConfig) -> str:
    name = next(name for name, one in CELLS.items() if one == config.cell)
    return f"dense {name} {'backward' if config.back else 'forward'}"


COMPILED: CudaKernels[ClusterConfig] = CudaKernels(unit_text, _label, fast=approximate)


def _launch(config: ClusterConfig, wanted: Launch, call: _KernelCall) -> None:
    """Launch a kernel on the current stream of the call's device."""
    COMPILED.launch(config, [wanted], call.args, call.like.device)


CHOOSE: Callable[[str, int, int, int, int, bool, bool], ClusterConfig | None] = _choose
"""Returns how a pass runs; tests put other configs here."""

LAUNCH: Callable[[ClusterConfig, Launch, _KernelCall], None] = _launch
"""Runs the kernel of a pass; tests put the emulator here."""
