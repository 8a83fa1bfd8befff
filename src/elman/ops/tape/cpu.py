"""One call of a tape kernel on the CPU: from tensors to pointers and back.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, a = 2 attentions of a step: its read and its write.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elman.kernels.threads import kernel_threads
from elman.ops.common.backend import require_cpu
from elman.ops.common.precision import no_autocast
from elman.ops.tape import results as passes
from elman.ops.tape.abi import TapeArgs
from elman.ops.tape.results import Inputs, Results
from elman.ops.tape.source import kernel_for


def forward(write: str, given: Inputs, keep: bool, resets_bt: Tensor | None = None) -> Results:
    """Run the recurrence over time; see :func:`elman.ops.tape.op.dual_memory`."""
    results = passes.room(write, given, keep)
    call = _Call(write, given, results, keep, resets_bt)
    call.run(call.kernel.forward)
    return results


def backward(
    write: str,
    dy_bti: Tensor | None,
    dtape_bni: Tensor | None,
    dstate_bi: Tensor | None,
    given: Inputs,
    results: Results,
    resets_bt: Tensor | None = None,
) -> Inputs:
    """Return the gradients of what a forward pass read.

    Args:
        write: Which value is written.
        dy_bti: Gradient of the states of all steps.
        dtape_bni: Gradient of the last tape.
        dstate_bi: Gradient of the last state.
        given: What the forward pass read; of the input the shape alone is read.
        results: What it left; the last tape and the last state are not read.
        resets_bt: Whether tape and state of a row are zero before a step; None: never.
    """
    batch, steps, channels = results.y_bti.shape
    dinput_bti = given.input_bti.new_empty((batch, steps, channels))
    dtape = given.tape_bni.new_empty(given.tape_bni.shape)
    dstate = given.state_bi.new_empty(given.state_bi.shape)
    pulls_btp = given.matrix_pi.new_empty((batch, steps, given.matrix_pi.shape[0]))
    call = _Call(write, given, results, True, resets_bt)
    call.point(dx=dinput_bti, dtape=dtape, dfirst=dstate, pulls=pulls_btp)
    call.point(dy=dy_bti, dlast_tape=dtape_bni, dlast=dstate_bi)
    call.run(call.kernel.backward)
    with no_autocast(given.state_bi):  # where a backward pass runs inside of one
        dmatrix_pi = pulls_btp.flatten(0, 1).T @ results.y_bti.flatten(0, 1)
        # W_h is read once more than the states of all steps say: by the first step.
        state_bi = given.state_bi
        if resets_bt is not None:
            state_bi = state_bi.masked_fill(resets_bt[:, :1], 0.0)
        dmatrix_pi[:channels].addmm_(dinput_bti[:, 0].T, state_bi)
    return Inputs(dinput_bti, dmatrix_pi, dtape, dstate)


class _Call:
    """The arguments of one call, and the tensors that they point to."""

    def __init__(
        self, write: str, given: Inputs, results: Results, keep: bool, resets_bt: Tensor | None
    ) -> None:
        require_cpu(given.input_bti)
        batch, steps, channels = given.input_bti.shape
        self.kernel = kernel_for(write, given.state_bi.dtype, resets=resets_bt is not None)
        self.like = given.state_bi
        self.kept: list[Tensor] = []
        self.args = TapeArgs(
            batch=batch,
            steps=steps,
            channels=channels,
            slots=given.tape_bni.shape[1],
            threads=kernel_threads(torch.get_num_threads()),
            interval=passes.interval(steps) if keep else 0,
        )
        read = ("x", "matrix", "tape", "first")
        left = ("y", "last_tape", "last", "weights", "values", "checkpoints")
        self.point(**dict(zip((*read, *left), (*given, *results), strict=True)), resets=resets_bt)

    def point(self, **tensors: Tensor | None) -> None:
        """Set arguments; those without a tensor, or without a number in it, stay null."""
        for name, tensor in tensors.items():
            if tensor is not None and tensor.numel():
                self.kept.append(tensor.contiguous())
                setattr(self.args, name, self.kept[-1].data_ptr())

    def run(self, function: Callable[[TapeArgs], None]) -> None:
        """Run a function of the kernel in a workspace of the size that it asks for."""
        n_bytes = self.kernel.workspace(self.args)
        self.point(workspace=self.like.new_empty(n_bytes // self.like.element_size()))
        function(self.args)
