"""The group form of the dense engine: one launch runs a step over a whole sequence.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
s parts of the state, c channels of any kind.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from elman.kernels import stalls
from elman.kernels.launching import Launch
from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.cuda.machine import machine
from elman.ops.common.cuda_kernels import CudaKernels, approximate
from elman.ops.dense.abi import DenseArgs, layouts
from elman.ops.dense.cuda.calls import SequenceCall
from elman.ops.dense.cuda.group_config import FLAG_STRIDE, SHARED_LIMITS, GroupConfig, Machine
from elman.ops.dense.cuda.group_config import choose as choose_config
from elman.ops.dense.passes import Call, Gradients, Results, Saved, gradient_room, room
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import CELLS, compiled_cell

_NAMES = ("dense_group_forward", "dense_group_backward")


class DenseGroupArgs(ctypes.Structure):
    """One launch, as csrc/abi/dense_group.h declares it."""

    _fields_ = (
        ("dense", DenseArgs),
        ("exchanged", ctypes.c_void_p),
        ("flags", ctypes.c_void_p),
        ("stalled", ctypes.c_void_p),
        ("first", ctypes.c_int64),
    )


def forward(call: Call) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`.

    Raises:
        UserError: a kernel of an earlier call gave up waiting.
    """
    results = room(call)
    kernel = _KernelCall(call, results, back=False)
    kernel.point_forward(call, results)
    kernel.run()
    return results


def backward(saved: Saved) -> Gradients:
    """Run a step back through time.

    Raises:
        UserError: a kernel of an earlier call gave up waiting.
    """
    dinputs = gradient_room(saved)
    dfirst_sbi = torch.empty_like(saved.first_sbi, memory_format=torch.contiguous_format)
    kernel = _KernelCall(saved, saved, back=True)
    kernel.point_backward(saved, dinputs, dfirst_sbi)
    kernel.run()
    return gradients(saved, dinputs, dfirst_sbi.new_empty(0), dfirst_sbi)


class _KernelCall(SequenceCall):
    """The arguments of one call, and how it runs.

    Attributes:
        config: How the pass runs.
        at_once: Groups of a launch, at most.
    """

    config: GroupConfig

    def __init__(self, call: Call | Saved, results: Results | Saved, *, back: bool) -> None:
        stalls.check()
        super().__init__(call, results)
        here, resets = _machine(self.like.device.index), call.resets_bt is not None
        config = CHOOSE(call.step, self.args.channels, self.args.batch, here, back, resets)
        assert config is not None, call.step
        self.config, self.at_once = config, config.at_once(here.multiprocessors)

    def run(self) -> None:
        """Launch the pass for as many rows at a time as there are groups for."""
        config, batch = self.config, self.args.batch
        groups = min(self.at_once, -(-batch // config.rows))
        exchanged = self.like.new_empty(groups, 2, config.exchanged)
        for first in range(0, batch, groups * config.rows):
            here = min(groups, -(-(batch - first) // config.rows))
            blocks = here * config.group
            # Zeros for every launch, so that a replayed graph begins with them, too.
            flags = self.like.new_zeros(blocks * FLAG_STRIDE, dtype=torch.int32)
            args = DenseGroupArgs(
                self.args,
                self.keep(exchanged).data_ptr(),
                self.keep(flags).data_ptr(),
                stalls.word(self.like.device.index).data_ptr(),
                first,
            )
            wanted = Launch(
                _NAMES[config.back], blocks, config.threads, config.shared_bytes, together=True
            )
            LAUNCH(config, wanted, args, self.like)


@cache
def _machine(device: int | None) -> Machine:
    """Return what the choice depends on; no index is the CPU, which is taken for an H200."""
    capability, multiprocessors = machine(device)
    if device is None or not multiprocessors:
        return Machine()
    return Machine(multiprocessors, SHARED_LIMITS[capability])


def _choose(
    step: str, channels: int, batch: int, here: Machine, back: bool, resets: bool
) -> GroupConfig | None:
    cell = compiled_cell(step)
    return choose_config(cell, channels, batch, here, back=back, resets=resets)


@cache
def unit_text(config: GroupConfig, headers: tuple[str, ...] = ()) -> str:
    """Return the text of a pass's translation unit.

    Args:
        config: What is computed, and how it runs.
        headers: Headers that say what the kernels ask of the machine; none: a GPU's.
    """
    common = ("cuda/common/device.cuh", "cuda/common/cluster.cuh", "cuda/common/grid.cuh")
    name, cell = _NAMES[config.back], config.cell
    return "\n".join(
        [
            *(f'#include "{header}"' for header in headers or common),
            '#include "cuda/dense/group.cuh"',
            f"namespace elman {{\n{cell.code}using GroupCell = {cell.type};",
            "struct GroupSpec {\n    using Cell = GroupCell;",
            f"{cell.assertions(cell.type)}}};\n}}  // namespace elman",
            f"using G = {config.type};",
            layouts() + layout_assertions("elman::DenseGroupArgs", DenseGroupArgs),
            config.static_checks(),
            f"ELMAN_GRID_KERNEL({name}, G::THREADS, elman::DenseGroupArgs, elman::{name}<G>(a))",
            "",
        ]
    )


def _label(config: GroupConfig) -> str:
    name = next(name for name, one in CELLS.items() if one == config.cell)
    return f"dense {name} {'backward' if config.back else 'forward'} groups"


COMPILED: CudaKernels[GroupConfig] = CudaKernels(unit_text, _label, fast=approximate)


def _launch(config: GroupConfig, wanted: Launch, args: DenseGroupArgs, like: Tensor) -> None:
    """Launch a kernel on the current stream of a tensor's device."""
    COMPILED.launch(config, [wanted], args, like.device)


CHOOSE: Callable[[str, int, int, Machine, bool, bool], GroupConfig | None] = _choose
"""Returns how a pass runs; tests put other configs here."""

LAUNCH: Callable[[GroupConfig, Launch, DenseGroupArgs, Tensor], None] = _launch
"""Runs the kernel of a pass; tests put the emulator here."""
