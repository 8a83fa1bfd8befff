"""The kernels of E63m as an operator: its slots all read one another.

It is no plan of the engine: the engine's kernels take the rows of a state one by one.

Shape legend: b batch, t time, i channels (columns of the state), n slots (its rows), k checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from elman.kernels.threads import kernel_threads
from elman.ops.common.checks import check, check_resets
from elman.ops.common.native import C_TYPES
from elman.ops.common.operator import INCOMING, Operator
from elman.ops.common.precision import no_autocast
from elman.ops.matrix_state.slots import cpu, cuda
from elman.ops.matrix_state.slots.abi import SEGMENT, SlotsArgs


class Call(NamedTuple):
    """What the operator reads, all of the first state's dtype: fp32, or on a CPU fp64.

    Args:
        backend: ``cpu`` or ``cuda``.
        k_bti: Keys.
        q_bti: Queries.
        input_btn: What joins the value, biases included.
        row_btn: a.
        mix_nn: W_r.
        first_bni: State before the first step.
        resets_bt: True where the state of a sequence before a step is zero; None is nowhere.
    """

    backend: str
    k_bti: Tensor
    q_bti: Tensor
    input_btn: Tensor
    row_btn: Tensor
    mix_nn: Tensor
    first_bni: Tensor
    resets_bt: Tensor | None


class Saved(NamedTuple):
    """What the backward pass reads."""

    backend: str
    dy_btn: Tensor | None
    dlast_bni: Tensor | None
    k_bti: Tensor
    q_bti: Tensor
    row_btn: Tensor
    mix_nn: Tensor
    checkpoints_bkni: Tensor
    read_btn: Tensor
    value_btn: Tensor
    resets_bt: Tensor | None


Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def check_call(call: Call) -> None:
    """Compare the tensors of a call with what a kernel reads.

    Raises:
        ValueError: one has another shape, dtype or device, or there are no rows or no steps.
    """
    of, state, k_bti = "matrix_state e63m", call.first_bni, call.k_bti
    check(f"state of {of}", state, (None, None, None), state.device, C_TYPES)
    batch, n_slots, channels = state.shape
    steps = k_bti.shape[1] if k_bti.ndim > 1 else None
    if not batch or not steps:
        raise ValueError(f"k of {of}: shape {list(k_bti.shape)}, expected rows and steps")
    wide, narrow = (batch, steps, channels), (batch, steps, n_slots)
    tensors = {
        "k": (k_bti, wide),
        "q": (call.q_bti, wide),
        "input": (call.input_btn, narrow),
        "row": (call.row_btn, narrow),
        "mix": (call.mix_nn, (n_slots, n_slots)),
    }
    for name, (tensor, shape) in tensors.items():
        check(f"{name} of {of}", tensor, shape, state.device, (state.dtype,))
    check_resets(of, call.resets_bt, k_bti)


def forward(call: Call) -> Tensors:
    """Return the reads S' q, the last state, the checkpoints, tanh(S k) and the values v."""
    backend, *tensors = call
    names = ("k", "q", "input", "row", "mix", "first", "resets")
    results = _room(call)
    named = dict(zip(("y", "last", "checkpoints", "read", "value"), results, strict=True))
    _launch(backend, {**dict(zip(names, tensors, strict=True)), **named}, backward=False)
    return results


def _room(call: Call) -> Tensors:
    first_bni, input_btn = call.first_bni, call.input_btn
    batch, segments = call.k_bti.shape[0], -(-call.k_bti.shape[1] // SEGMENT)
    y_btn, read_btn, value_btn = (input_btn.new_empty(input_btn.shape) for _ in range(3))
    last_bni = first_bni.new_empty(first_bni.shape)
    checkpoints_bkni = first_bni.new_empty(batch, segments, *first_bni.shape[1:])
    return y_btn, last_bni, checkpoints_bkni, read_btn, value_btn


def backward(saved: Saved) -> Tensors:
    """Return the gradients of keys, queries, inputs, a and the first state."""
    backend, *tensors = saved
    names = ("dy", "dlast", "k", "q", "row", "mix", "checkpoints", "read", "value", "resets")
    gradients = _gradient_room(saved)
    named = dict(zip(("dk", "dq", "dinput", "drow", "dfirst"), gradients, strict=True))
    _launch(backend, {**dict(zip(names, tensors, strict=True)), **named}, backward=True)
    return gradients


def _gradient_room(saved: Saved) -> Tensors:
    k_bti, read_btn = saved.k_bti, saved.read_btn
    batch, _, *state = saved.checkpoints_bkni.shape
    dk_bti, dq_bti = k_bti.new_empty(k_bti.shape), k_bti.new_empty(k_bti.shape)
    dinput_btn, drow_btn = (read_btn.new_empty(read_btn.shape) for _ in range(2))
    return dk_bti, dq_bti, dinput_btn, drow_btn, k_bti.new_empty(batch, *state)


def _launch(backend: str, tensors: Mapping[str, Tensor | None], *, backward: bool) -> None:
    """Run a pass over tensors by the names of SlotsArgs; None leaves one out."""
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    (batch, steps, channels), n_slots = kept["k"].shape, kept["mix"].shape[0]
    args = SlotsArgs(
        batch=batch,
        steps=steps,
        slots=n_slots,
        channels=channels,
        segment=SEGMENT,
        threads=kernel_threads(torch.get_num_threads()),
        **{name: tensor.data_ptr() for name, tensor in kept.items()},
    )
    run = cuda.run if backend == "cuda" else cpu.run
    run(args, kept["k"], backward=backward)


def _save(call: Call, results: Tensors) -> Saved:
    backend, k_bti, q_bti, _, row_btn, mix_nn, _, resets_bt = call
    given = (k_bti, q_bti, row_btn, mix_nn)
    return Saved(backend, INCOMING, INCOMING, *given, *results[2:], resets_bt)


def _differentiate(saved: Saved, run: Callable[[Saved], Tensors]) -> tuple[Tensor, ...]:
    dk_bti, dq_bti, dinput_btn, drow_btn, dfirst_bni = run(saved)
    # One large product over batch and time, in the precision of the state.
    with no_autocast(dinput_btn):
        dmix_nn = dinput_btn.flatten(0, 1).mT @ saved.read_btn.flatten(0, 1)
    return dk_bti, dq_bti, dinput_btn, drow_btn, dmix_nn, dfirst_bni


SLOTS = Operator(
    "slots",
    Call,
    Saved,
    check=check_call,
    forward=forward,
    fake=_room,
    save=_save,
    backward=backward,
    fake_backward=_gradient_room,
    incoming=("dy_btn", "dlast_bni"),
    gradients=("k_bti", "q_bti", "input_btn", "row_btn", "mix_nn", "first_bni"),
    differentiate=_differentiate,
    # The caller sets the state's precision: this widens what autocast made narrow.
    widens=("cpu", "cuda"),
)
"""E63m's recurrence: S' = a > S + (1 - a) > v k^T, v = tanh(input + mix tanh(S k)).

Its results are the reads S' q [B, T, n], the last state, the checkpoints [B, segments, n, i],
tanh(S k) and the values v [B, T, n]."""
