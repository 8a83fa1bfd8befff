"""One call of a dense kernel on the CPU: from tensors to pointers and back.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
r rank, m numbers of the memo, s parts of the state, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from elman.kernels.threads import kernel_threads
from elman.ops.common.backend import require_cpu
from elman.ops.common.cpu_kernels import CpuArguments
from elman.ops.dense.abi import DenseArgs, sequence
from elman.ops.dense.heads import head_count
from elman.ops.dense.passes import Call, Gradients, Results, Saved, adjacent, gradient_room, room
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import compiled_cell
from elman.ops.dense.source import kernel_for


def forward(call: Call) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`."""
    results = room(call)
    kernel = _KernelCall(call, results)
    kernel.args.x = sequence(kernel.keep(adjacent(call.inputs[0])))
    for number, other in enumerate(call.inputs[1:]):
        kernel.args.p[number] = sequence(kernel.keep(adjacent(other)))
    kernel.point(last=results.last_sbi)
    kernel.run(kernel.compiled.forward)
    return results


def backward(saved: Saved) -> Gradients:
    """Run a step back through time."""
    (batch, _, channels), first_sbi = saved.y_bti.shape, saved.first_sbi
    dinputs = gradient_room(saved)
    dfirst_sbi = torch.empty_like(first_sbi, memory_format=torch.contiguous_format)
    kernel = _KernelCall(saved, saved)
    kernel.args.dx = sequence(dinputs[0])
    for number, dinput in enumerate(dinputs[1:]):
        kernel.args.dp[number] = sequence(dinput)
    if saved.dy_bti is not None:
        kernel.args.dy = sequence(kernel.keep(adjacent(saved.dy_bti)))
    dscale_bi = first_sbi.new_empty((batch, channels) if kernel.cell.scale else (0,))
    kernel.point(dfirst=dfirst_sbi, dscale=dscale_bi, dlast=saved.dlast_sbi)
    kernel.run(kernel.compiled.backward)
    return gradients(saved, dinputs, dscale_bi, dfirst_sbi)


class _KernelCall(CpuArguments[DenseArgs]):
    """The arguments of one call, and the tensors that they point to.

    Args:
        call: What is read.
        results: What the forward pass leaves or left.
    """

    def __init__(self, call: Call | Saved, results: Results | Saved) -> None:
        recurrent, first_sbi, resets_bt = call.recurrent, call.first_sbi, call.resets_bt
        require_cpu(first_sbi)
        cell = self.cell = compiled_cell(call.step)
        batch, steps, pitch = results.y_bti.shape
        self.heads = head_count(recurrent)
        args = DenseArgs(
            batch=batch,
            steps=steps,
            channels=pitch // self.heads,
            pitch=pitch,
            rank=recurrent[0].shape[1] if len(recurrent) > 1 else 0,
            threads=kernel_threads(torch.get_num_threads()),
            y=sequence(results.y_bti),
        )
        compiled = kernel_for(call.step, first_sbi.dtype, resets=resets_bt is not None)
        super().__init__(args, compiled, first_sbi)
        self.point(norms=results.norms_bt, memo=results.memo_btmi, resets=resets_bt)
        self.point(matrix=recurrent[0], first=first_sbi)
        if len(recurrent) > 1:
            self.point(inner=recurrent[1])
        if call.parameters:
            self.point(**{"extra" if cell.extra else "scale": call.parameters[0]})

    def run(self, function: Callable[[DenseArgs], None]) -> None:
        """Run a function of the kernel for every head, in a workspace of the size it asks for."""

        def head_by_head(args: DenseArgs) -> None:
            for head in range(self.heads):
                if head:
                    self._next_head(self.like.element_size())
                function(args)

        super().run(head_by_head)

    def _next_head(self, size: int) -> None:
        """Let the arguments point to the next head; a number has ``size`` bytes."""
        args, channels = self.args, self.args.channels * size
        rows = channels * self.cell.blocks
        args.matrix += rows * self.args.channels
        for one in (args.x, args.dx):
            one.data = one.data and one.data + rows
        for one in (args.y, args.dy, *args.p, *args.dp):
            one.data = one.data and one.data + channels
        for name in ("memo", "first", "last", "dlast", "dfirst"):
            if place := getattr(args, name):
                setattr(args, name, place + channels)
