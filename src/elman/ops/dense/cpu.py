"""One call of a dense kernel on the CPU: from tensors to pointers and back.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
r rank, m numbers of the memo, s parts of the state, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.kernels.threads import kernel_threads
from elman.ops.common.backend import require_cpu
from elman.ops.common.precision import no_autocast
from elman.ops.dense.abi import DenseArgs, sequence
from elman.ops.dense.recurrences import compiled_cell
from elman.ops.dense.source import kernel_for

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Results:
    """What a forward pass leaves.

    Args:
        y_bti: States of all steps.
        last_sbi: State after the last step.
        memo_btmi: What the backward pass needs of every step; no numbers where nothing is kept.
        norms_bt: 1 / root mean square of every new state, for steps that divide by it.
    """

    y_bti: Tensor
    last_sbi: Tensor
    memo_btmi: Tensor
    norms_bt: Tensor


def shapes(step: str, batch: int, steps: int, channels: int, keep: bool) -> list[tuple[int, ...]]:
    """Return the shapes of a forward pass's :class:`Results`.

    Args:
        step: Name of the step.
        batch: B.
        steps: T.
        channels: i.
        keep: Whether a backward pass follows.
    """
    cell = compiled_cell(step)
    return [
        (batch, steps, channels),
        (cell.states, batch, channels),
        (batch, steps, cell.memo if keep else 0, channels),
        (batch, steps) if cell.norm else (0,),
    ]


def forward(
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    keep: bool,
) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`."""
    batch, steps, _ = inputs[0].shape
    made = shapes(step, batch, steps, first_sbi.shape[2], keep)
    results = Results(*(first_sbi.new_empty(shape) for shape in made))
    call = _Call(step, inputs, recurrent, parameters, first_sbi)
    call.give(results)
    call.args.last = results.last_sbi.data_ptr()
    call.run(call.kernel.forward)
    return results


@dataclass(frozen=True)
class Gradients:
    """Gradients of what a forward pass read, in the order of its arguments."""

    inputs: list[Tensor]
    recurrent: list[Tensor]
    parameters: list[Tensor]
    first_sbi: Tensor


def backward(
    step: str,
    dy_bti: Tensor | None,
    dlast_sbi: Tensor | None,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    results: Results,
) -> Gradients:
    """Run a step back through time."""
    cell = compiled_cell(step)
    batch, _, channels = results.y_bti.shape
    dinputs = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in inputs]
    dfirst_sbi = torch.empty_like(first_sbi)
    call = _Call(step, inputs, recurrent, parameters, first_sbi)
    call.give(results)
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
    with no_autocast(first_sbi):  # where a backward pass runs inside of one
        given = (dinputs, dscale_bi, dfirst_sbi, recurrent, parameters, first_sbi, results)
        return _gradients(step, *given)


def _gradients(
    step: str,
    dinputs: list[Tensor],
    dscale_bi: Tensor,
    dfirst_sbi: Tensor,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    results: Results,
) -> Gradients:
    """Return the gradients, with those of matrices and parameters from those of the inputs."""
    cell = compiled_cell(step)
    dparameters = [dscale_bi.sum().reshape(parameters[0].shape)] if cell.scale else []
    if cell.extra:
        gated_bti = _shifted(results.y_bti, first_sbi[0]) * results.memo_btmi[:, :, 1]
        dparameters.append(_outer(dinputs[1], gated_bti))
    drecurrent = _of_matrices(dinputs[0], recurrent, results.y_bti, first_sbi[0])
    return Gradients(dinputs, drecurrent, dparameters, dfirst_sbi)


def _of_matrices(dpre_btp: Tensor, recurrent: Tensors, y_bti: Tensor, h_bi: Tensor) -> list[Tensor]:
    """Return the gradients of R, or of its factors: products over batch and time together."""
    if len(recurrent) == 1:
        drecurrent_pi = dpre_btp[:, 0].T @ h_bi
        for dpre_tp, y_ti in zip(dpre_btp, y_bti, strict=True):  # in place: no copy of the states
            drecurrent_pi.addmm_(dpre_tp[1:].T, y_ti[:-1])
        return [drecurrent_pi]
    outer_pr, inner_ri = recurrent
    before_bti = _shifted(y_bti, h_bi)
    dlow_btr = dpre_btp @ outer_pr
    return [_outer(dpre_btp, before_bti @ inner_ri.T), _outer(dlow_btr, before_bti)]


def _shifted(y_bti: Tensor, h_bi: Tensor) -> Tensor:
    """Return the state before every step."""
    return torch.cat([h_bi.unsqueeze(1), y_bti[:, :-1]], dim=1)


def _outer(left_btc: Tensor, right_btc: Tensor) -> Tensor:
    """Return the sum of outer products over batch and time."""
    return left_btc.flatten(0, 1).T @ right_btc.flatten(0, 1)


class _Call:
    """The arguments of one call, and the tensors that they point to."""

    def __init__(
        self,
        step: str,
        inputs: Tensors,
        recurrent: Tensors,
        parameters: Tensors,
        first_sbi: Tensor,
    ) -> None:
        require_cpu(inputs[0])
        cell = compiled_cell(step)
        batch, steps, _ = inputs[0].shape
        self.kernel = kernel_for(step, first_sbi.dtype)
        self.kept: list[Tensor] = []
        self.args = DenseArgs(
            batch=batch,
            steps=steps,
            channels=first_sbi.shape[2],
            rank=recurrent[0].shape[1] if len(recurrent) > 1 else 0,
            threads=kernel_threads(torch.get_num_threads()),
            x=sequence(self.keep(adjacent(inputs[0]))),
        )
        for number, other in enumerate(inputs[1:]):
            self.args.p[number] = sequence(self.keep(adjacent(other)))
        self.point(matrix=recurrent[0].contiguous(), first=first_sbi.contiguous())
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

    def give(self, results: Results) -> None:
        """Set where the states and what is kept of them lie."""
        self.args.y = sequence(results.y_bti)
        self.args.norms = results.norms_bt.data_ptr()
        if results.memo_btmi.numel():
            self.args.memo = results.memo_btmi.data_ptr()

    def run(self, function: Callable[[DenseArgs], None]) -> None:
        """Run a function of the kernel in a workspace of the size that it asks for."""
        n_bytes = self.kernel.workspace(self.args)
        like = self.kept[0]
        self.point(workspace=like.new_empty(n_bytes // like.element_size()))
        function(self.args)


def adjacent(tensor_btc: Tensor) -> Tensor:
    """Return the tensor with its channels adjacent: as it is, or a copy."""
    return tensor_btc if tensor_btc.stride(-1) == 1 else tensor_btc.contiguous()
