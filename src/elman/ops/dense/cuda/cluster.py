"""The cluster form of the dense engine: one launch runs a step over a whole sequence.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
s parts of the state, c channels of any kind, k blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.cuda.clusters import MULTIPROCESSORS
from elman.ops.common.cuda.machine import machine
from elman.ops.common.cuda_kernels import CudaKernels, approximate
from elman.ops.dense.abi import layouts
from elman.ops.dense.cuda.calls import SequenceCall
from elman.ops.dense.cuda.cluster_config import ClusterConfig, choose
from elman.ops.dense.heads import head_count
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import CELLS, compiled_cell
from elman.ops.dense.results import Gradients, Results, Tensors, gradient_room, room

_NAMES = ("dense_cluster_forward", "dense_cluster_backward")


def forward(
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    keep: bool,
    resets_bt: Tensor | None = None,
) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`."""
    results = room(step, inputs[0], first_sbi, keep)
    heads = head_count(recurrent)
    call = _Call(step, inputs[0], parameters, first_sbi, results, resets_bt, heads, back=False)
    call.point_forward(inputs, recurrent, results)
    call.run()
    return results


def backward(
    step: str,
    dy_bti: Tensor | None,
    dlast_sbi: Tensor | None,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    results: Results,
    resets_bt: Tensor | None = None,
) -> Gradients:
    """Run a step back through time."""
    dinputs = gradient_room(step, results.y_bti)
    dfirst_sbi = torch.empty_like(first_sbi, memory_format=torch.contiguous_format)
    dscale_bi = first_sbi.new_empty(first_sbi.shape[1:] if compiled_cell(step).scale else (0,))
    heads = head_count(recurrent)
    call = _Call(step, results.y_bti, parameters, first_sbi, results, resets_bt, heads, back=True)
    call.point_backward(dinputs, dy_bti, dlast_sbi, recurrent, dfirst_sbi)
    call.point(dscale=dscale_bi)
    call.run()
    given = (dinputs, dscale_bi, dfirst_sbi, recurrent, parameters, first_sbi, results)
    return gradients(step, *given, resets_bt)


class _Call(SequenceCall):
    """The arguments of one call, and how it runs.

    Attributes:
        config: How the pass runs.
    """

    config: ClusterConfig

    def __init__(
        self,
        step: str,
        like_btc: Tensor,
        parameters: Tensors,
        first_sbi: Tensor,
        results: Results,
        resets_bt: Tensor | None,
        heads: int,
        *,
        back: bool,
    ) -> None:
        super().__init__(like_btc, first_sbi, results, resets_bt, heads)
        multiprocessors = machine(like_btc.device.index).multiprocessors or MULTIPROCESSORS
        size = (self.args.channels, self.args.batch, multiprocessors)
        config = CHOOSE(step, *size, heads, resets_bt is not None, back)
        assert config is not None, step
        self.config = config
        if config.cell.norm:
            self.point(norms=results.norms_bt)
        if config.cell.scale:
            self.point(scale=parameters[0].contiguous())
        if config.cell.extra:
            self.point(extra=self.padded(parameters[0]))

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


def _launch(config: ClusterConfig, wanted: Launch, call: _Call) -> None:
    """Launch a kernel on the current stream of the call's device."""
    COMPILED.launch(config, [wanted], call.args, call.like.device)


CHOOSE: Callable[[str, int, int, int, int, bool, bool], ClusterConfig | None] = _choose
"""Returns how a pass runs; tests put other configs here."""

LAUNCH: Callable[[ClusterConfig, Launch, _Call], None] = _launch
"""Runs the kernel of a pass; tests put the emulator here."""
