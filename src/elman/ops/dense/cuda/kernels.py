"""The dense engine on an NVIDIA GPU: chooses the form of a call and runs it.

Shape legend: b batch, t time, i channels of the state, s parts of the state.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from elman.ops.common.cuda.forms import Form
from elman.ops.common.cuda.machine import machine
from elman.ops.common.precision import cast
from elman.ops.dense.cuda import cluster, forms, groups, stepwise
from elman.ops.dense.heads import head_count
from elman.ops.dense.results import Gradients, Results, Tensors


class Passes(Protocol):
    """The module of a form. Matrices and U come in the dtype of the inputs."""

    def forward(
        self,
        step: str,
        inputs: Tensors,
        recurrent: Tensors,
        parameters: Tensors,
        first_sbi: Tensor,
        keep: bool,
        resets_bt: Tensor | None = None,
    ) -> Results:
        """Run a step over time."""
        ...

    def backward(
        self,
        step: str,
        dy_bti: Tensor | None,
        dlast_sbi: Tensor | None,
        recurrent: Tensors,
        parameters: Tensors,
        first_sbi: Tensor,
        results: Results,
        resets_bt: Tensor | None = None,
    ) -> Gradients:
        """Run it back."""
        ...


PASSES: dict[str, Passes] = {"cluster": cluster, "groups": groups, "stepwise": stepwise}
"""By the name that :mod:`elman.ops.dense.cuda.forms` has for a form."""


def forward(
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    keep: bool,
    resets_bt: Tensor | None = None,
) -> Results:
    """Run a step over time; see :func:`elman.ops.dense.op.dense_recurrence`.

    Args:
        step: Name of the step.
        inputs: Sequences of one dtype, bf16 or fp32.
        recurrent: The matrix or its factors, in fp32; products read them in the inputs' dtype.
        parameters: The step's own, in fp32; U is read likewise.
        first_sbi: State before the first step, fp32.
        keep: Whether a backward pass follows.
        resets_bt: Whether the state of a row is zero before a step, bool; None: never.
    """
    narrow, own = _narrowed(recurrent, parameters, inputs[0].dtype)
    resets = resets_bt is not None
    passes = PASSES[chosen(step, inputs[0], recurrent, first_sbi, resets=resets).name]
    return passes.forward(step, inputs, narrow, own, first_sbi, keep, resets_bt)


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
    """Run a step back through time, in the form of the forward pass."""
    narrow, own = _narrowed(recurrent, parameters, results.y_bti.dtype)
    resets = resets_bt is not None
    passes = PASSES[chosen(step, results.y_bti, recurrent, first_sbi, resets=resets).name]
    given = (narrow, own, first_sbi, results, resets_bt)
    return passes.backward(step, dy_bti, dlast_sbi, *given)


def _narrowed(
    recurrent: Tensors, parameters: Tensors, io: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what products read in the dtype of the inputs, and the rest as it is."""
    matrices = [cast(one, io).contiguous() for one in recurrent]
    own = [cast(one, io).contiguous() if one.ndim == 2 else one for one in parameters]
    return matrices, own


def chosen(
    step: str,
    sequence_btc: Tensor,
    recurrent: Tensors,
    first_sbi: Tensor,
    *,
    resets: bool = False,
) -> Form:
    """Return the form that runs a call.

    Args:
        step: Name of the step.
        sequence_btc: Any sequence of it.
        recurrent: The matrix or its factors.
        first_sbi: State before the first step.
        resets: Whether it has resets.
    """
    rank = recurrent[0].shape[1] if len(recurrent) > 1 else 0
    _, batch, channels = first_sbi.shape
    device, heads = first_sbi.device.index, head_count(recurrent)
    return _chosen(step, sequence_btc.dtype, batch, channels, rank, device, resets, heads)


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
