"""One call of a tape kernel on the CPU: from tensors to pointers and back.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, a = 2 attentions of a step: its read and its write.
"""

from __future__ import annotations

import torch

from elman.kernels.threads import kernel_threads
from elman.ops.common.backend import require_cpu
from elman.ops.common.cpu_kernels import CpuArguments
from elman.ops.common.precision import no_autocast
from elman.ops.tape import passes
from elman.ops.tape.abi import TapeArgs
from elman.ops.tape.passes import Call, Gradients, Results, Saved
from elman.ops.tape.source import kernel_for


def forward(call: Call) -> Results:
    """Run the recurrence over time; see :func:`elman.ops.tape.op.dual_memory`."""
    results = passes.room(call)
    kernel = _KernelCall(call, results, keep=call.keep)
    kernel.point(x=call.input_bti, last_tape=results.tape_bni, last=results.state_bi)
    kernel.run(kernel.compiled.forward)
    return results


def backward(saved: Saved) -> Gradients:
    """Return the gradients of what a forward pass read."""
    y_bti, resets_bt = saved.y_bti, saved.resets_bt
    dinput_bti = y_bti.new_empty(y_bti.shape)
    dtape = saved.tape_bni.new_empty(saved.tape_bni.shape)
    dstate = saved.state_bi.new_empty(saved.state_bi.shape)
    pulls_btp = saved.matrix_pi.new_empty((*y_bti.shape[:2], saved.matrix_pi.shape[0]))
    kernel = _KernelCall(saved, saved, keep=True)
    kernel.point(dx=dinput_bti, dtape=dtape, dfirst=dstate, pulls=pulls_btp)
    kernel.point(dy=saved.dy_bti, dlast_tape=saved.dtape_bni, dlast=saved.dstate_bi)
    kernel.run(kernel.compiled.backward)
    with no_autocast(saved.state_bi):  # where a backward pass runs inside of one
        dmatrix_pi = pulls_btp.flatten(0, 1).T @ y_bti.flatten(0, 1)
        # W_h is read once more than the states of all steps say: by the first step.
        state_bi = saved.state_bi
        if resets_bt is not None:
            state_bi = state_bi.masked_fill(resets_bt[:, :1], 0.0)
        dmatrix_pi[: y_bti.shape[2]].addmm_(dinput_bti[:, 0].T, state_bi)
    return Gradients(dinput_bti, dmatrix_pi, dtape, dstate)


class _KernelCall(CpuArguments[TapeArgs]):
    """The arguments of one call, and the tensors that they point to.

    Args:
        call: What is read.
        results: What the forward pass leaves or left.
        keep: Whether there are checkpoints among them.
    """

    def __init__(self, call: Call | Saved, results: Results | Saved, *, keep: bool) -> None:
        require_cpu(call.state_bi)
        batch, steps, channels = results.y_bti.shape
        resets_bt = call.resets_bt
        args = TapeArgs(
            batch=batch,
            steps=steps,
            channels=channels,
            slots=call.tape_bni.shape[1],
            threads=kernel_threads(torch.get_num_threads()),
            interval=passes.interval(steps) if keep else 0,
        )
        compiled = kernel_for(call.write, call.state_bi.dtype, resets=resets_bt is not None)
        super().__init__(args, compiled, call.state_bi)
        self.point(matrix=call.matrix_pi, tape=call.tape_bni, first=call.state_bi)
        self.point(y=results.y_bti, weights=results.weights_btan, values=results.values_bti)
        self.point(checkpoints=results.checkpoints_cbni, resets=resets_bt)
