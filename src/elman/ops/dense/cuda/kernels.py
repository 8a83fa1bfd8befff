"""The dense engine on an NVIDIA GPU: chooses the form of a call and runs it.

Shape legend: b batch, t time, i channels of the state, s parts of the state.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from elman.ops.common.backend import Kernels
from elman.ops.common.cuda.forms import Form
from elman.ops.common.cuda.machine import machine
from elman.ops.common.precision import cast
from elman.ops.dense.cuda import cluster, forms, groups, stepwise
from elman.ops.dense.heads import head_count
from elman.ops.dense.passes import Call, Gradients, Results, Saved

PASSES: dict[str, Kernels[Call, Results, Saved, Gradients]] = {
    name: Kernels(module.forward, module.backward)
    for name, module in {"cluster": cluster, "groups": groups, "stepwise": stepwise}.items()
}
"""By the name that :mod:`elman.ops.dense.cuda.forms` has for a form. Matrices and U come in the
dtype of the inputs."""
Given = TypeVar("Given", Call, Saved)


def forward(call: Call) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`.

    The inputs are in bf16 or fp32, all else in fp32. Products read matrices in the inputs' dtype.
    """
    sequence_btc = call.inputs[0]
    return PASSES[chosen(call, sequence_btc).name].forward(_narrowed(call, sequence_btc.dtype))


def backward(saved: Saved) -> Gradients:
    """Run a step back through time, in the form of the forward pass."""
    sequence_btc = saved.y_bti
    return PASSES[chosen(saved, sequence_btc).name].backward(_narrowed(saved, sequence_btc.dtype))


def _narrowed(call: Given, io: torch.dtype) -> Given:
    """Return a call with what products read in the dtype of the inputs."""
    matrices = [cast(one, io).contiguous() for one in call.recurrent]
    own = [cast(one, io).contiguous() if one.ndim == 2 else one for one in call.parameters]
    return call._replace(recurrent=matrices, parameters=own)


def chosen(call: Call | Saved, sequence_btc: Tensor) -> Form:
    """Return the form that runs a call, of which this is any sequence."""
    recurrent, first_sbi, resets = call.recurrent, call.first_sbi, call.resets_bt is not None
    rank = recurrent[0].shape[1] if len(recurrent) > 1 else 0
    _, batch, channels = first_sbi.shape
    device, heads = first_sbi.device.index, head_count(recurrent)
    return _chosen(call.step, sequence_btc.dtype, batch, channels, rank, device, resets, heads)


@cache
def _chosen(
    step: str,
    io: torch.dtype,
    batch: int,
    channels: int,
    rank: int,
    device: int | None,
    resets: bool,
    heads: int,
) -> Form:
    number = "bf16" if io == torch.bfloat16 else "fp32"
    shape = forms.Shape(step, number, batch, channels, rank, *machine(device), resets, heads)
    found = _ran[shape] = forms.choose(shape)
    return found


def calls_at_once(
    step: str, io: torch.dtype, batch: int, channels: int, device: int | None
) -> float:
    """Return how many calls with one full matrix the GPU runs at a time, each as fast as alone."""
    number = "bf16" if io == torch.bfloat16 else "fp32"
    return forms.calls_at_once(forms.Shape(step, number, batch, channels, 0, *machine(device)))


_ran: dict[forms.Shape, Form] = {}


def notes() -> list[str]:
    """Return how every kind of call ran that this process has made: a sentence for each."""
    return [
        f"dense engine, step {shape.step}, {shape.channels} channels"
        f"{f' of rank {shape.rank}' if shape.rank else ''}"
        f"{f' in {shape.heads} heads' if shape.heads > 1 else ''}"
        f", {shape.batch} rows, {shape.number}"
        f"{', resets' if shape.resets else ''}: "
        f"{form.why}"
        for shape, form in _ran.items()
    ]
