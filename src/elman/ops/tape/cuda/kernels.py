"""The tape engine on an NVIDIA GPU: chooses the form of a call and runs it.

Shape legend: b batch, t time, i channels of the state, n slots of the tape.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from elman.ops.common.backend import Kernels
from elman.ops.common.cuda.forms import Form
from elman.ops.common.cuda.machine import machine
from elman.ops.tape.cuda import cluster, forms, stepwise
from elman.ops.tape.passes import Call, Gradients, Results, Saved

PASSES: dict[str, Kernels[Call, Results, Saved, Gradients]] = {
    name: Kernels(module.forward, module.backward)
    for name, module in {"cluster": cluster, "stepwise": stepwise}.items()
}
"""By the name that :mod:`elman.ops.tape.cuda.forms` has for a form."""


def forward(call: Call) -> Results:
    """Run the recurrence over time; see :func:`elman.ops.tape.op.dual_memory`.

    The input is in bf16 or fp32, all else in fp32. Products read matrices and states in the dtype
    of the input.

    Raises:
        UserError: there are too many slots, or no kernel for the input's dtype.
    """
    return PASSES[chosen(call, call.input_bti).name].forward(call)


def backward(saved: Saved) -> Gradients:
    """Return the gradients of what a forward pass read, in its form."""
    return PASSES[chosen(saved, saved.y_bti).name].backward(saved)


def chosen(call: Call | Saved, sequence_bti: Tensor) -> Form:
    """Return the form that runs a call, of which this is any sequence."""
    batch, slots, channels = call.tape_bni.shape
    io, device, resets = sequence_bti.dtype, call.state_bi.device.index, call.resets_bt is not None
    return _chosen(call.write, io, batch, channels, slots, device, resets)


@cache
def _chosen(
    write: str,
    io: torch.dtype,
    batch: int,
    channels: int,
    slots: int,
    device: int | None,
    resets: bool,
) -> Form:
    number = "bf16" if io == torch.bfloat16 else "fp32"
    shape = forms.Shape(write, number, batch, channels, slots, *machine(device), resets)
    found = _ran[shape] = forms.choose(shape)
    return found


_ran: dict[forms.Shape, Form] = {}


def notes() -> list[str]:
    """Return how every kind of call ran that this process has made: a sentence for each."""
    return [
        f"tape engine, write {shape.write}, {shape.channels} channels, {shape.slots} slots, "
        f"{shape.batch} rows, {shape.number}{', resets' if shape.resets else ''}: {form.why}"
        for shape, form in _ran.items()
    ]
