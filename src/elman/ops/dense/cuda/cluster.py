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
from torch.nn import functional

from elman.kernels import nvrtc
from elman.kernels.launching import Launch, architecture, launch
from elman.kernels.nvrtc import Loaded, Unit
from elman.ops.dense.abi import DenseArgs, DenseSequence, layouts, sequence
from elman.ops.dense.cuda.cluster_config import MULTIPROCESSORS, ClusterConfig, choose
from elman.ops.dense.cuda.machine import machine
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import CELLS, compiled_cell
from elman.ops.dense.results import Gradients, Results, Tensors, adjacent, gradient_room, room

_NAMES = ("dense_cluster_forward", "dense_cluster_backward")


def forward(
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    keep: bool,
) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`."""
    results = room(step, inputs[0], first_sbi, keep)
    call = _Call(step, inputs[0], first_sbi, results, back=False)
    for number, other in enumerate(inputs[1:]):
        call.args.p[number] = call.sequence(other)
    call.args.x = call.sequence(inputs[0])
    call.point(matrix=call.padded(_multiplied(recurrent)), last=results.last_sbi)
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
) -> Gradients:
    """Run a step back through time."""
    dinputs = gradient_room(step, results.y_bti)
    dfirst_sbi = torch.empty_like(first_sbi, memory_format=torch.contiguous_format)
    call = _Call(step, results.y_bti, first_sbi, results, back=True)
    call.args.dx = sequence(dinputs[0])
    for number, dinput in enumerate(dinputs[1:]):
        call.args.dp[number] = sequence(dinput)
    if dy_bti is not None:
        call.args.dy = call.sequence(dy_bti)
    if dlast_sbi is not None:
        call.point(dlast=_aligned(dlast_sbi))
    call.point(matrix=call.padded(_multiplied(recurrent)), dfirst=dfirst_sbi)
    call.run()
    none = first_sbi.new_empty(0)
    return gradients(step, dinputs, none, dfirst_sbi, recurrent, parameters, first_sbi, results)


def _multiplied(recurrent: Tensors) -> Tensor:
    """Return R: as it is, or the product of its factors."""
    return recurrent[0] if len(recurrent) == 1 else torch.mm(*recurrent)


class _Call:
    """The arguments of one call, and the tensors that they point to.

    Attributes:
        args: The arguments.
        config: How the pass runs.
        like: A tensor of the call.
    """

    def __init__(
        self, step: str, like_btc: Tensor, first_sbi: Tensor, results: Results, *, back: bool
    ) -> None:
        (batch, steps, _), channels = like_btc.shape, first_sbi.shape[2]
        multiprocessors = machine(like_btc.device.index).multiprocessors or MULTIPROCESSORS
        config = CHOOSE(step, channels, batch, multiprocessors, back)
        assert config is not None, step
        self.config, self.like, self.kept = config, like_btc, list[Tensor]()
        self.args = DenseArgs(batch=batch, steps=steps, channels=channels)
        self.args.y = sequence(results.y_bti)
        self.point(first=_aligned(first_sbi))
        if results.memo_btmi.numel():
            self.point(memo=results.memo_btmi)

    def keep(self, tensor: Tensor) -> Tensor:
        """Hold a tensor until the call is over."""
        self.kept.append(tensor)
        return tensor

    def point(self, **tensors: Tensor) -> None:
        """Set arguments that are one contiguous tensor each."""
        for name, tensor in tensors.items():
            setattr(self.args, name, self.keep(tensor).data_ptr())

    def sequence(self, tensor_btc: Tensor) -> DenseSequence:
        """Return where a sequence lies whose pairs of channels are words."""
        one = adjacent(tensor_btc)
        if (one.data_ptr() // one.element_size() | one.stride(0) | one.stride(1)) % 2:
            one = one.clone(memory_format=torch.contiguous_format)
        return sequence(self.keep(one))

    def padded(self, matrix_pi: Tensor) -> Tensor:
        """Return the matrix as the pass reads it, with zeros for the channels that are none."""
        config, channels = self.config, self.args.channels
        more = config.channels - channels
        matrix_kii = matrix_pi.reshape(config.cell.blocks, channels, channels)
        if more:
            matrix_kii = functional.pad(matrix_kii, (0, more, 0, more))
        matrix = matrix_kii.flatten(0, 1)
        return _aligned(matrix.T if config.back else matrix)

    def run(self) -> None:
        """Launch the pass."""
        config = self.config
        blocks = math.ceil(self.args.batch / config.rows) * config.cluster
        wanted = Launch(
            _NAMES[config.back],
            blocks,
            config.threads,
            config.shared_bytes,
            cluster=config.cluster,
        )
        LAUNCH(config, wanted, self)


def _aligned(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor that loads of 16 bytes can begin at."""
    one = tensor.contiguous()
    return one.clone() if one.data_ptr() % 16 else one


def _choose(
    step: str, channels: int, batch: int, multiprocessors: int, back: bool
) -> ClusterConfig | None:
    return choose(compiled_cell(step), channels, batch, multiprocessors, back=back)


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
            '#include "cuda/dense/cluster.cuh"',
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


def _launch(config: ClusterConfig, wanted: Launch, call: _Call) -> None:
    """Launch a kernel on the current stream of the call's device."""
    index = call.like.device.index
    launch(_kernels(config, index), [wanted], call.args, index)


@cache
def _kernels(config: ClusterConfig, device: int) -> Loaded:
    """Return a pass's kernel for a GPU."""
    cell = next(name for name, one in CELLS.items() if one == config.cell)
    label = f"dense {cell} {'backward' if config.back else 'forward'}"
    return nvrtc.load(Unit(unit_text(config), label, architecture(device), fast=True))


CHOOSE: Callable[[str, int, int, int, bool], ClusterConfig | None] = _choose
"""Returns how a pass runs; tests put other configs here."""

LAUNCH: Callable[[ClusterConfig, Launch, _Call], None] = _launch
"""Runs the kernel of a pass; tests put the emulator here."""
