"""The norm of short rows as an operator: what autograd, torch.compile and the bench see.

Shape legend: v numbers of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from elman.ops.common.operator import INCOMING, Operator
from elman.ops.head_norm import cuda


class Call(NamedTuple):
    """What the operator reads.

    Args:
        y: Rows [..., v], of a dtype that the kernels have, as the gate and the output.
        gain_v: Gain, in fp32.
        gate: The gate's argument, with several rows side by side; or None.
        act: The gate's activation; ``none`` without one.
        eps: Added to the mean square.
        dtype: Dtype of the output.
    """

    y: Tensor
    gain_v: Tensor
    gate: Tensor | None
    act: str
    eps: float
    dtype: torch.dtype


class Saved(NamedTuple):
    """What the backward pass reads."""

    dout: Tensor
    y: Tensor
    gain_v: Tensor
    gate: Tensor | None
    rstd: Tensor
    act: str
    eps: float


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """Return the output and, of every row, 1 / sqrt(mean square + eps)."""
    results = _room(call)
    cuda.forward(call, results)
    return results


def _room(call: Call) -> tuple[Tensor, Tensor]:
    return _like(call.y, call.dtype), call.gain_v.new_empty(call.y.shape[:-1])


def backward(saved: Saved) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of rows, gain and gate."""
    gradients = _gradient_room(saved)
    cuda.backward(saved, gradients)
    return gradients


def _gradient_room(saved: Saved) -> tuple[Tensor, Tensor, Tensor | None]:
    y, gain_v, gate = saved.y, saved.gain_v, saved.gate
    dgate = None if gate is None else _like(gate, gate.dtype)
    return _like(y, y.dtype), _like(gain_v, gain_v.dtype), dgate


def _like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return room for a tensor's shape, contiguous."""
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _save(call: Call, results: tuple[Tensor, Tensor]) -> Saved:
    return Saved(INCOMING, call.y, call.gain_v, call.gate, results[1], call.act, call.eps)


HEAD_NORM = Operator(
    "head_norm",
    Call,
    Saved,
    forward=forward,
    fake=_room,
    save=_save,
    backward=backward,
    fake_backward=_gradient_room,
    incoming=("dout",),
    gradients=("y", "gain_v", "gate"),
)
"""The output; and, for the backward pass, 1 / sqrt(mean square + eps) of every row."""
