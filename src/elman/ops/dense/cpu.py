"""One call of a dense kernel on the CPU: from tensors to pointers and back.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
r rank, m numbers of the memo, s parts of the state, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elman.kernels.threads import kernel_threads
from elman.ops.common.backend import require_cpu
from elman.ops.dense.abi import DenseArgs, sequence
from elman.ops.dense.heads import head_count
from elman.ops.dense.products import gradients
from elman.ops.dense.recurrences import compiled_cell
from elman.ops.dense.results import Gradients, Results, Tensors, adjacent, gradient_room, room
from elman.ops.dense.source import kernel_for


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
    call = _Call(step, recurrent, parameters, first_sbi, results, resets_bt)
    call.args.x = sequence(call.keep(adjacent(inputs[0])))
    for number, other in enumerate(inputs[1:]):
        call.args.p[number] = sequence(call.keep(adjacent(other)))
    call.args.last = results.last_sbi.data_ptr()
    call.run(call.kernel.forward)
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
    cell = compiled_cell(step)
    batch, _, channels = results.y_bti.shape
    dinputs = gradient_room(step, results.y_bti)
    dfirst_sbi = torch.empty_like(first_sbi)
    call = _Call(step, recurrent, parameters, first_sbi, results, resets_bt)
    call.args.dx = sequence(dinputs[0])
    for number, dinput in enumerate(dinputs[1:]):
        call.args.dp[number] = sequence(dinput)
    if dy_bti is not None:
        call.args.dy = sequence(call.keep(adjacent(dy_bti)))
    dscale_bi = first_sbi.new_empty((batch, channels) if cell.scale else (0,))
    call.point(dfirst=dfirst_sbi, dscale=dscale_bi)
    if dlast_sbi is not None:
        call.point(dlast=dlast_sbi.contiguous())
    call.run(call.kernel.backward)
    given = (dinputs, dscale_bi, dfirst_sbi, recurrent, parameters, first_sbi, results)
    return gradients(step, *given, resets_bt)


class _Call:
    """The arguments of one call, and the tensors that they point to."""

    def __init__(
        self,
        step: str,
        recurrent: Tensors,
        parameters: Tensors,
        first_sbi: Tensor,
        results: Results,
        resets_bt: Tensor | None,
    ) -> None:
        require_cpu(first_sbi)
        cell = self.cell = compiled_cell(step)
        batch, steps, pitch = results.y_bti.shape
        self.heads = head_count(recurrent)
        self.kernel = kernel_for(step, first_sbi.dtype, resets=resets_bt is not None)
        self.kept: list[Tensor] = []
        self.args = DenseArgs(
            batch=batch,
            steps=steps,
            channels=pitch // self.heads,
            pitch=pitch,
            rank=recurrent[0].shape[1] if len(recurrent) > 1 else 0,
            threads=kernel_threads(torch.get_num_threads()),
            y=sequence(results.y_bti),
            norms=results.norms_bt.data_ptr(),
            memo=results.memo_btmi.data_ptr() if results.memo_btmi.numel() else None,
        )
        self.point(matrix=recurrent[0].contiguous(), first=first_sbi.contiguous())
        if resets_bt is not None:
            self.point(resets=resets_bt.contiguous())
        if len(recurrent) > 1:
            self.point(inner=recurrent[1].contiguous())
        if parameters:
            self.point(**{"extra" if cell.extra else "scale": parameters[0].contiguous()})

    def keep(self, tensor: Tensor) -> Tensor:
        """Hold a tensor until the call is over."""
        self.kept.append(tensor)
        return tensor

    def point(self, **tensors: Tensor) -> None:
        """Set arguments that are one contiguous tensor each."""
        for name, tensor in tensors.items():
            setattr(self.args, name, self.keep(tensor).data_ptr())

    def run(self, function: Callable[[DenseArgs], None]) -> None:
        """Run a function of the kernel for every head, in a workspace of the size it asks for."""
        n_bytes = self.kernel.workspace(self.args)
        like = self.kept[0]
        self.point(workspace=like.new_empty(n_bytes // like.element_size()))
        for head in range(self.heads):
            if head:
                self._next_head(like.element_size())
            function(self.args)

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
