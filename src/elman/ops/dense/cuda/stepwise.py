"""The dense engine step by step: PyTorch's products, and a kernel of ours between two of them.

Every step reads and writes the same small tensors, so that nothing is allocated and no view is made
inside the loop. The host is what limits it outside of a CUDA graph.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
r rank, s parts of the state, e heads.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.abi_check import layout_assertions, same
from elman.ops.common.cuda.stepwise import StepwiseCall
from elman.ops.common.cuda_kernels import CudaKernels
from elman.ops.common.native import ENGINE_TYPES, require_cuda_dtype
from elman.ops.common.precision import no_autocast
from elman.ops.common.products import multiply
from elman.ops.dense.abi import MAX_OTHERS, DenseSequence
from elman.ops.dense.heads import by_head, head_count
from elman.ops.dense.passes import (
    Call,
    Gradients,
    Results,
    Saved,
    Tensors,
    adjacent,
    gradient_room,
    room,
)
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import compiled_cell
from elman.ops.dense.source import structure

_THREADS, _ROW_THREADS = 128, 512  # of a block that has a part of a row, or a whole one
_POINTERS = (
    *("product", "second", "narrow", "narrow_extra", "between", "state", "first"),
    *("scale", "dscale", "memo", "norms"),
)
_NUMBERS = ("batch", "steps", "channels", "step", "head")


class DenseStepArgs(ctypes.Structure):
    """One call, as csrc/abi/dense_step.h declares it."""

    _fields_ = (
        ("x", DenseSequence),
        ("dx", DenseSequence),
        ("p", DenseSequence * MAX_OTHERS),
        ("dp", DenseSequence * MAX_OTHERS),
        ("y", DenseSequence),
        ("dy", DenseSequence),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("resets", ctypes.c_void_p),
    )


_SEQUENCE_WORDS = len(DenseSequence._fields_)


@dataclass(frozen=True)
class StepConfig:
    """All that a translation unit is compiled for.

    Args:
        step: Name of the step.
        io: Dtype of the sequences.
        state: Dtype of the state and of all sums.
        vector: Neighboring channels of a thread.
        resets: Whether the kernels know resets.
        heads: Whether the recurrent matrix is block-diagonal.
    """

    step: str
    io: torch.dtype
    state: torch.dtype
    vector: int
    resets: bool = False
    heads: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _ROW_THREADS if compiled_cell(self.step).norm else _THREADS

    def launch(self, kernel: str, batch: int, channels: int) -> Launch:
        """Return how a kernel is launched."""
        if compiled_cell(self.step).norm:
            return Launch(kernel, batch, self.threads, self.threads // 32 * self.state.itemsize)
        return Launch(kernel, batch * -(-channels // (self.threads * self.vector)), self.threads)


def forward(call: Call) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`."""
    first_sbi, recurrent, resets_bt = call.first_sbi, call.recurrent, call.resets_bt
    with no_autocast(first_sbi):
        results = room(call)
        kernel = _KernelCall(call, results)
        kernel.put("x", [call.inputs[0]])
        kernel.put("p", call.inputs[1:])
        results.last_sbi.copy_(first_sbi if resets_bt is None else _dropped(first_sbi, resets_bt))
        io_bi = kernel.read(kernel.narrow(kernel.channels))
        io_bi.copy_(kernel.by_head(results.last_sbi[0]))
        pre_bp = kernel.read(kernel.wide(kernel.cell.blocks * kernel.channels))
        kernel.point(state=results.last_sbi, narrow=io_bi, product=pre_bp)
        product = _product(io_bi, [matrix.mT for matrix in reversed(recurrent)], pre_bp)
        if kernel.cell.extra:
            _forward_twice(kernel, product, call.parameters[0].T)
        else:
            run = kernel.runner("dense_forward")
            for t in range(kernel.steps):
                product()
                run(t)
    return results


def _dropped(first_sbi: Tensor, resets_bt: Tensor) -> Tensor:
    """Return the first state, with zeros for the rows whose first step has a reset."""
    return first_sbi.masked_fill(resets_bt[:, :1], 0.0)


def _forward_twice(kernel: _KernelCall, product: Callable[[], None], u_ii: Tensor) -> None:
    """Run the steps of a GRU, whose second product needs the gates."""
    gated_bi, second_bi = kernel.narrow(kernel.channels), kernel.wide(kernel.channels)
    kernel.point(narrow_extra=gated_bi, second=second_bi, between=kernel.wide(kernel.channels))
    gates, run = kernel.runner("dense_gates"), kernel.runner("dense_forward")
    second = _product(gated_bi, [u_ii], second_bi)
    for t in range(kernel.steps):
        product()
        gates(t)
        second()
        run(t)


def backward(saved: Saved) -> Gradients:
    """Run a step back through time."""
    first_sbi, dlast_sbi = saved.first_sbi, saved.dlast_sbi
    with no_autocast(first_sbi):
        kernel = _KernelCall(saved, saved)
        dinputs = gradient_room(saved)
        dfirst_sbi = torch.empty_like(first_sbi, memory_format=torch.contiguous_format)
        dfirst_sbi.zero_() if dlast_sbi is None else dfirst_sbi.copy_(dlast_sbi)
        dscale_bi = kernel.wide(kernel.channels if kernel.cell.scale else 0)
        kernel.put("dx", dinputs[:1])
        kernel.put("dp", dinputs[1:])
        kernel.put("dy", [] if saved.dy_bti is None else [saved.dy_bti])
        io_bp = kernel.read(kernel.narrow(kernel.cell.blocks * kernel.channels))
        dh_bi = kernel.read(kernel.wide(kernel.channels))
        kernel.point(state=dfirst_sbi, first=first_sbi, dscale=dscale_bi, narrow=io_bp)
        product = _product(io_bp, saved.recurrent, dh_bi)
        _walk_back(kernel, product, dh_bi, saved.parameters)
        kernel.by_head(dfirst_sbi[0]).add_(dh_bi)
        return gradients(saved, dinputs, dscale_bi, dfirst_sbi)


def _walk_back(
    kernel: _KernelCall, product: Callable[[], None], dh_bi: Tensor, parameters: Tensors
) -> None:
    """Run the steps from the last to the first, each with its product."""
    kernels = [kernel.runner("dense_backward")]
    second: Callable[[], None] | None = None
    if kernel.cell.extra:
        dnew_bi, dgated_bi = kernel.narrow(kernel.channels), kernel.wide(kernel.channels)
        kernel.point(narrow_extra=dnew_bi, second=dgated_bi, between=kernel.wide(kernel.channels))
        kernels.insert(0, kernel.runner("dense_candidate"))
        second = _product(dnew_bi, [parameters[0]], dgated_bi)
    for t in range(kernel.steps - 1, -1, -1):
        kernels[0](t)
        if second is not None:
            second()
            kernels[1](t)
        product()
        kernel.words[kernel.at["product"]] = dh_bi.data_ptr()  # none behind the last step


def _product(left_bk: Tensor, matrices: Tensors, to_bn: Tensor) -> Callable[[], None]:
    """Return what writes the product of a tensor and one or two matrices to another tensor."""
    *inner, outer_kn = matrices
    if not inner:
        return lambda: _multiply(left_bk, outer_kn, to_bn)
    low_br = left_bk.new_empty(left_bk.shape[0], inner[0].shape[1])

    def both() -> None:
        _multiply(left_bk, inner[0], low_br)
        _multiply(low_br, outer_kn, to_bn)

    return both


def _multiply(left_bk: Tensor, right_kn: Tensor, to_bn: Tensor) -> None:
    multiply(left_bk, right_kn, to_bn)


class _KernelCall(StepwiseCall):
    """The arguments of one pass, and the tensors that they point to."""

    def __init__(self, call: Call | Saved, results: Results | Saved) -> None:
        self.heads, self.diagonal = head_count(call.recurrent), call.recurrent[0].ndim == 3
        self.step, self.cell = call.step, compiled_cell(call.step)
        batch, self.steps, channels = results.y_bti.shape
        numbers = {"batch": batch, "steps": self.steps, "channels": channels}
        numbers["head"] = channels // self.heads
        io = results.y_bti.dtype
        super().__init__(DenseStepArgs, numbers, call.resets_bt, io, call.first_sbi)
        self.places |= numbers["head"]
        self.put("y", [results.y_bti])
        self.point(norms=results.norms_bt, memo=results.memo_btmi)
        if self.cell.scale:
            self.point(scale=call.parameters[0])

    def by_head(self, row_bc: Tensor) -> Tensor:
        """Return channels as a product reads them: with heads, a view [heads, B, c / heads]."""
        return by_head(row_bc, self.heads) if self.diagonal else row_bc

    def read(self, row_bc: Tensor) -> Tensor:
        """Return room for a product: with heads, as contiguous memory [heads, B, c / heads]."""
        return row_bc.view(self.heads, self.batch, -1) if self.diagonal else row_bc

    def put(self, name: str, sequences: Tensors) -> None:
        """Set sequences of one kind."""
        at = self.at[name]
        for sequence in sequences:
            held = self.held(adjacent(sequence))
            batch, time, _ = held.stride()
            place, size = held.data_ptr(), held.element_size()
            assert place % size == 0
            self.words[at : at + _SEQUENCE_WORDS] = array("q", (place, batch, time))
            self.places |= place // size | batch | time
            at += _SEQUENCE_WORDS

    def config(self) -> StepConfig:
        """Return what the kernels of this call are compiled for."""
        vector = 1 if self.places % 2 else 2
        return _config(self.step, self.io, self.like.dtype, vector, self.resets, self.diagonal)

    def _start_of(self, kernel: str) -> tuple[Callable[[list[Launch]], None], list[Launch]]:
        config = self.config()
        return STARTER(config, self), [config.launch(kernel, self.batch, self.channels)]


_config = cache(StepConfig)


@cache
def unit_text(config: StepConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a translation unit, both passes in one.

    Args:
        config: What is computed.
        device: Header that says what the kernels ask of the machine.
    """
    kernels = {"dense_forward": "forward", "dense_backward": "backward"}
    if compiled_cell(config.step).extra:
        kernels |= {"dense_gates": "gates", "dense_candidate": "candidate"}
    sizes = f"{config.vector}, {config.threads}, {str(config.heads).lower()}"
    return "\n".join(
        [
            f'#include "{device}"',
            '#include "cuda/dense/stepwise.cuh"',
            "namespace elman {",
            structure(config.step, config.state, "Spec", config.resets) + "}  // namespace elman",
            f"using G = elman::DenseStepConfig<elman::Spec, {ENGINE_TYPES[config.io]}, {sizes}>;",
            layout_assertions("elman::DenseStepArgs", DenseStepArgs),
            same("G::THREADS", config.threads, "stepwise.py has other THREADS"),
            *(
                f"ELMAN_KERNEL({name}, G::THREADS, 1, elman::DenseStepArgs, "
                f"elman::dense_step_{function}<G>(a))"
                for name, function in kernels.items()
            ),
            "",
        ]
    )


COMPILED: CudaKernels[StepConfig] = CudaKernels(
    unit_text,
    lambda config: f"dense {config.step}",
    fast=lambda config: config.io == torch.bfloat16,
)


def _starter(config: StepConfig, call: _KernelCall) -> Callable[[list[Launch]], None]:
    """Return what launches kernels on the current stream of the call's device."""
    require_cuda_dtype(config.io)
    return COMPILED.starter(config, call.args, call.like.device)


STARTER: Callable[[StepConfig, _KernelCall], Callable[[list[Launch]], None]] = _starter
"""Returns what runs the kernels of a call; tests put the emulator here."""
