"""The tape engine on an NVIDIA GPU, step by step: a product of PyTorch's and a kernel of ours.

The product is that of the new state with W_h and W_r together. The kernel does all else: a step's
write, the next read, the next state and its scores. Every step reads and writes the same small
tensors, so that nothing is allocated and no view is made inside the loop.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, k, m and n any lengths of a product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.launching import Launch
from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.cuda.stepwise import StepwiseCall
from elman.ops.common.cuda_kernels import CudaKernels
from elman.ops.common.native import ENGINE_TYPES, require_cuda_dtype, words_of
from elman.ops.common.precision import cast, no_autocast
from elman.ops.common.products import multiply, outer, outer_before
from elman.ops.tape import passes
from elman.ops.tape.passes import Call, Gradients, Results, Saved
from elman.ops.tape.recurrences import NO_PRODUCT, compiled_cell
from elman.ops.tape.source import structure

_THREADS = (64, 128, 256, 512)
MAX_SLOTS = 1024
"""Their sums have to fit into the shared memory of a block: 74 KB of the 99 KB of the smallest."""
_POINTERS = (
    *("x", "dx", "y", "dy", "product", "narrow", "first", "tape", "scores"),
    *("weights", "values", "dvalues", "carried", "checkpoint", "here", "before", "replayed"),
)
_NUMBERS = ("batch", "steps", "channels", "slots", "step", "count")


class TapeStepArgs(ctypes.Structure):
    """One call, as csrc/abi/tape_step.h declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("resets", ctypes.c_void_p),
    )


WORDS = words_of(TapeStepArgs)
_CHECKPOINT, _HERE = WORDS["checkpoint"], WORDS["here"]
_BEFORE, _COUNT = WORDS["before"], WORDS["count"]
Given = TypeVar("Given", Call, Saved)


@dataclass(frozen=True)
class StepConfig:
    """All that a translation unit is compiled for.

    Args:
        write: Which value is written.
        io: Dtype of the sequences.
        state: Dtype of the tape and of all sums.
        vector: Neighboring channels that a thread has at a time.
        threads: Threads of a block, which has a row of the batch.
        resets: Whether the kernels know resets.
    """

    write: str
    io: torch.dtype
    state: torch.dtype
    vector: int
    threads: int
    resets: bool = False

    def launch(self, kernel: str, batch: int, channels: int, slots: int) -> Launch:
        """Return how a kernel is launched."""
        sums, numbers = (slots + 1) * (self.threads // 32), self.state.itemsize
        shared = sum(-(-n * numbers // 16) * 16 for n in (sums, slots, slots))
        tiles = slots * -(-channels // (self.threads * self.vector))
        blocks = batch * tiles if kernel == "tape_replay" else batch
        return Launch(kernel, blocks, self.threads, shared)


def forward(call: Call) -> Results:
    """Run the recurrence over time; see :func:`elman.ops.tape.cuda.kernels.forward`."""
    with no_autocast(call.state_bi):
        results = passes.room(call)
        call = _dropped(call)
        kernel = _KernelCall(call, results)
        results.tape_bni.copy_(call.tape_bni)
        h_bi = kernel.narrow(kernel.channels)
        h_bi.copy_(call.state_bi)
        product_bp = kernel.wide(kernel.blocks * kernel.channels)
        kernel.point(x=call.input_bti, tape=results.tape_bni, narrow=h_bi, product=product_bp)
        matrix_ip = cast(call.matrix_pi, kernel.io).contiguous().T
        begin, run = kernel.runner("tape_first"), kernel.runner("tape_forward")
        begin(0)
        for t in range(kernel.steps):
            _multiply(h_bi, matrix_ip, product_bp)
            kernel.words[_CHECKPOINT] = kernel.checkpoint(t) if call.keep and t else 0
            run(t)
        kernel.words[_CHECKPOINT] = 0
        if kernel.product_value:
            _multiply(h_bi, matrix_ip, product_bp)
        run(kernel.steps)  # the last write
        results.state_bi.copy_(results.y_bti[:, -1])
    return results


def backward(saved: Saved) -> Gradients:
    """Return the gradients of what a forward pass read."""
    # Layer E23 expands one tape over the batch.
    saved = saved._replace(tape_bni=saved.tape_bni.contiguous())
    with no_autocast(saved.state_bi):
        saved = _dropped(saved)
        kernel = _KernelCall(saved, saved)
        dinput_bti = saved.y_bti.new_empty(saved.y_bti.shape)
        dvalues_bti = saved.values_bti.new_empty(saved.values_bti.shape)
        dtape = _begun(saved.dtape_bni, saved.tape_bni)
        dstate = _begun(saved.dstate_bi, saved.state_bi)
        kernel.point(dx=dinput_bti, dvalues=dvalues_bti, tape=dtape, carried=dstate)
        if saved.dy_bti is not None:
            kernel.point(dy=cast(saved.dy_bti, kernel.io))
        _walk_back(kernel, cast(saved.matrix_pi, kernel.io).contiguous(), dstate)
        dmatrix_pi = of_matrices(saved, dinput_bti, dvalues_bti)
    return Gradients(dinput_bti, dmatrix_pi, dtape, dstate)


def _dropped(call: Given) -> Given:
    """Return a call with zeros for tape and state of rows whose first step has a reset."""
    if call.resets_bt is None:
        return call
    first_b1 = call.resets_bt[:, :1]
    tape_bni = call.tape_bni.masked_fill(first_b1.unsqueeze(-1), 0.0)
    return call._replace(tape_bni=tape_bni, state_bi=call.state_bi.masked_fill(first_b1, 0.0))


def _begun(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Return a contiguous copy of a gradient; zeros where there is none."""
    begun = like.new_empty(like.shape)
    return begun.zero_() if gradient is None else begun.copy_(gradient)


def _walk_back(kernel: _KernelCall, matrix_pi: Tensor, dstate_bi: Tensor) -> None:
    """Run the steps from the last to the first, each with its product.

    Args:
        kernel: The call.
        matrix_pi: W_h, and W_r behind it, in the dtype of the input.
        dstate_bi: Gradient of the last state; becomes that of the first one.
    """
    pulls_bp, product_bi = kernel.narrow(len(matrix_pi)), kernel.wide(kernel.channels)
    replayed = kernel.wide(kernel.slots * kernel.channels, (kernel.interval - 1) * kernel.batch)
    kernel.point(narrow=pulls_bp, product=product_bi, replayed=replayed)
    run, replay = kernel.runner("tape_backward"), kernel.runner("tape_replay")
    for t in range(kernel.steps, -1, -1):
        if t == kernel.steps or (t and t % kernel.interval == 0):
            start = (t - 1) // kernel.interval * kernel.interval
            kernel.words[_HERE] = kernel.place(start)
            kernel.words[_COUNT] = min(kernel.interval, kernel.steps - start) - 1
            if kernel.words[_COUNT]:
                replay(start)
        kernel.words[_HERE] = kernel.place(t) if t < kernel.steps else 0
        kernel.words[_BEFORE] = kernel.place(t - 1) if t else 0
        run(t)
        _multiply(pulls_bp, matrix_pi, product_bi)
    dstate_bi.add_(product_bi)


def of_matrices(saved: Saved, dinput_bti: Tensor, dvalues_bti: Tensor) -> Tensor:
    """Return the gradient of W_h, and that of W_r behind it: products over batch and time."""
    y_bti, wide = saved.y_bti, saved.state_bi.dtype
    state_bi = saved.state_bi.to(y_bti.dtype)
    drecurrent_ii = outer_before(dinput_bti, y_bti, state_bi, wide, saved.resets_bt)
    if not dvalues_bti.numel():
        return drecurrent_ii
    dwrite_ii = outer(dvalues_bti, y_bti, wide)
    if compiled_cell(saved.write).value == 0:  # W_h writes, too
        return drecurrent_ii.add_(dwrite_ii)
    return torch.cat([drecurrent_ii, dwrite_ii])


def _multiply(left_mk: Tensor, right_kn: Tensor, to_mn: Tensor) -> None:
    multiply(left_mk, right_kn, to_mn)


class _KernelCall(StepwiseCall):
    """The arguments of one pass, and the tensors that they point to.

    Attributes:
        interval: Steps between checkpoints of the tape.
    """

    def __init__(self, call: Call | Saved, results: Results | Saved) -> None:
        self.write, cell = call.write, compiled_cell(call.write)
        self.blocks, self.product_value = cell.blocks, cell.value != NO_PRODUCT
        batch, self.steps, channels = results.y_bti.shape
        self.slots = call.tape_bni.shape[1]
        if self.slots > MAX_SLOTS:
            raise UserError(
                f"kernels.backend=cuda: the tape has {self.slots} slots, a block has room for "
                f"{MAX_SLOTS}; use kernels.backend=reference"
            )
        self.interval = passes.interval(self.steps)
        numbers = {"batch": batch, "steps": self.steps, "channels": channels, "slots": self.slots}
        io = results.y_bti.dtype
        super().__init__(TapeStepArgs, numbers, call.resets_bt, io, call.state_bi)
        self.point(y=results.y_bti, weights=results.weights_btan, values=results.values_bti)
        self.point(first=call.state_bi, scores=self.wide(self.slots))
        self.checkpoints, self.first_tape = results.checkpoints_cbni, call.tape_bni
        for tape in (self.checkpoints, self.first_tape):  # read where they lie, by words of a step
            self.places |= self.held(tape).data_ptr() // tape.element_size()

    def checkpoint(self, t: int) -> int:
        """Return where the tape before a step is kept; 0: nowhere."""
        if t % self.interval:
            return 0
        return self.checkpoints.data_ptr() + (t // self.interval - 1) * self.first_tape.nbytes

    def place(self, t: int) -> int:
        """Return where the tape before a step of the segment that was replayed last lies."""
        n = t % self.interval
        if n:
            return self.words[WORDS["replayed"]] + (n - 1) * self.first_tape.nbytes
        return self.checkpoint(t) if t else self.first_tape.data_ptr()

    def config(self) -> StepConfig:
        """Return what the kernels of this call are compiled for."""
        vector = 1 if self.places % 2 else 2
        enough = (n for n in _THREADS if n * vector >= self.channels)
        threads = next(enough, _THREADS[-1])
        return _config(self.write, self.io, self.like.dtype, vector, threads, self.resets)

    def _start_of(self, kernel: str) -> tuple[Callable[[list[Launch]], None], list[Launch]]:
        config = self.config()
        return STARTER(config, self), [config.launch(kernel, self.batch, self.channels, self.slots)]


_config = cache(StepConfig)


@cache
def unit_text(config: StepConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a translation unit, both passes in one.

    Args:
        config: What is computed.
        device: Header that says what the kernels ask of the machine.
    """
    sizes = f"{config.vector}, {config.threads}"
    return "\n".join(
        [
            f'#include "{device}"',
            '#include "cuda/tape/stepwise.cuh"',
            "namespace elman {",
            structure(config.write, config.state, "Spec", config.resets) + "}  // namespace elman",
            f"using G = elman::TapeStepConfig<elman::Spec, {ENGINE_TYPES[config.io]}, {sizes}>;",
            layout_assertions("elman::TapeStepArgs", TapeStepArgs),
            *(
                f"ELMAN_KERNEL(tape_{name}, {config.threads}, 1, elman::TapeStepArgs, "
                f"elman::tape_step_{name}<G>(a))"
                for name in ("first", "forward", "backward", "replay")
            ),
            "",
        ]
    )


COMPILED: CudaKernels[StepConfig] = CudaKernels(
    unit_text,
    lambda config: f"tape {config.write}",
    fast=lambda config: config.io == torch.bfloat16,
)


def _starter(config: StepConfig, call: _KernelCall) -> Callable[[list[Launch]], None]:
    """Return what launches kernels on the current stream of the call's device."""
    require_cuda_dtype(config.io)
    return COMPILED.starter(config, call.args, call.like.device)


STARTER: Callable[[StepConfig, _KernelCall], Callable[[list[Launch]], None]] = _starter
"""Returns what runs the kernels of a call; tests put the emulator here."""
