"""The tape engine on an NVIDIA GPU: chooses the form of a call and runs it.

Shape legend: b batch, t time, i channels of the state, n slots of the tape.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from elman.ops.common.cuda.forms import Form
from elman.ops.common.cuda.machine import machine
from elman.ops.tape.cuda import cluster, forms, stepwise
from elman.ops.tape.results import Inputs, Results


class Passes(Protocol):
    """The module of a form."""

    def forward(
        self, write: str, given: Inputs, keep: bool, resets_bt: Tensor | None = None
    ) -> Results:
        """Run the recurrence over time."""
        ...

    def backward(
        self,
        write: str,
        dy_bti: Tensor | None,
        dtape_bni: Tensor | None,
        dstate_bi: Tensor | None,
        given: Inputs,
        results: Results,
        resets_bt: Tensor | None = None,
    ) -> Inputs:
        """Run it back."""
        ...


PASSES: dict[str, Passes] = {"cluster": cluster, "stepwise": stepwise}
"""By the name that :mod:`elman.ops.tape.cuda.forms` has for a form."""


def forward(write: str, given: Inputs, keep: bool, resets_bt: Tensor | None = None) -> Results:
    """Run the recurrence over time; see :func:`elman.ops.tape.op.dual_memory`.

    Args:
        write: Which value is written.
        given: What is read: the input in bf16 or fp32, all else in fp32. Products read matrices
            and states in the dtype of the input.
        keep: Whether a backward pass follows.
        resets_bt: Whether tape and state of a row are zero before a step; None: never.

    Raises:
        UserError: there are too many slots, or no kernel for the input's dtype.
    """
    passes = PASSES[chosen(write, given, resets_bt).name]
    return passes.forward(write, given, keep, resets_bt)


def backward(
    write: str,
    dy_bti: Tensor | None,
    dtape_bni: Tensor | None,
    dstate_bi: Tensor | None,
    given: Inputs,
    results: Results,
    resets_bt: Tensor | None = None,
) -> Inputs:
    """Return the gradients of what a forward pass read; as :func:`elman.ops.tape.cpu.backward`."""
    passes = PASSES[chosen(write, given, resets_bt).name]
    return passes.backward(write, dy_bti, dtape_bni, dstate_bi, given, results, resets_bt)


def chosen(write: str, given: Inputs, resets_bt: Tensor | None = None) -> Form:
    """Return the form that runs a call."""
    batch, slots, channels = given.tape_bni.shape
    io, device = given.input_bti.dtype, given.state_bi.device.index
    return _chosen(write, io, batch, channels, slots, device, resets_bt is not None)


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
