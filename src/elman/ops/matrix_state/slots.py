"""The kernels of E63m as custom operators: its slots all read one another.

It is no plan of the engine: the engine's kernels take the rows of a state one by one.

Shape legend: b batch, t time, i channels (columns of the state), n slots (its rows), k checkpoints.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.build import load_library
from elman.kernels.threads import kernel_threads
from elman.ops.common.backend import require_cpu
from elman.ops.common.door import check, check_resets
from elman.ops.common.native import C_TYPES
from elman.ops.common.transforms import operator, register_gradient
from elman.ops.matrix_state.cuda import slots as cuda
from elman.ops.matrix_state.slots_abi import SEGMENT, SlotsArgs, layout


@dataclass(frozen=True)
class Kernel:
    """The functions of a loaded kernel: each takes one SlotsArgs, the last returns bytes."""

    forward: Any
    backward: Any
    workspace: Any


@cache
def kernel_for(dtype: torch.dtype, resets: bool) -> Kernel:
    """Return the kernel for a dtype, compiled if it was not compiled before.

    Args:
        dtype: Of all tensors.
        resets: Whether it reads a mask of resets.

    Raises:
        UserError: there is none, or it cannot be compiled.
    """
    if dtype not in C_TYPES:
        raise UserError(
            f"kernels.backend=cpu: computes in float32 and float64, not in {dtype}; "
            "use kernels.backend=reference"
        )
    text = f"ELMAN_SLOTS(slots, {C_TYPES[dtype]}, {str(resets).lower()})\n"
    text = f'#include "cpu/matrix_state/slots.h"\n\n{layout()}{text}'
    library = load_library(text, "e63m")
    parts = [library[f"slots_{part}"] for part in ("forward", "backward", "workspace")]
    for part in parts:
        part.argtypes = (ctypes.POINTER(SlotsArgs),)
        part.restype = None
    parts[-1].restype = ctypes.c_int64
    return Kernel(*parts)


def _call(backend: str, tensors: Mapping[str, Tensor | None], *, backward: bool) -> None:
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
    if backend == "cuda":
        cuda.run(args, kept["k"], backward=backward)
        return
    require_cpu(kept["k"])
    kernel, like = kernel_for(kept["k"].dtype, "resets" in kept), kept["k"]
    workspace = like.new_empty(kernel.workspace(args) // like.element_size())
    args.workspace = workspace.data_ptr()
    (kernel.backward if backward else kernel.forward)(args)


def check_call(given: Mapping[str, Tensor], first_bni: Tensor) -> None:
    """Compare the tensors of a call with what a kernel reads.

    Args:
        given: ``k``, ``q``, ``input``, ``row`` and ``mix``, as for :func:`slots`.
        first_bni: State before the first step.

    Raises:
        ValueError: one has another shape, dtype or device, or there are no rows or no steps.
    """
    of, state = "matrix_state e63m", first_bni
    check(f"state of {of}", state, (None, None, None), state.device, C_TYPES)
    batch, n_slots, channels = state.shape
    steps = given["k"].shape[1] if given["k"].ndim > 1 else None
    if not batch or not steps:
        raise ValueError(f"k of {of}: shape {list(given['k'].shape)}, expected rows and steps")
    wide, narrow = (batch, steps, channels), (batch, steps, n_slots)
    shapes = {"k": wide, "q": wide, "input": narrow, "row": narrow, "mix": (n_slots, n_slots)}
    for name, shape in shapes.items():
        check(f"{name} of {of}", given[name], shape, state.device, (state.dtype,))


def _kept(k_bti: Tensor, input_btn: Tensor, first_bni: Tensor) -> list[Tensor]:
    """Return room for what a forward pass returns."""
    batch, segments = k_bti.shape[0], -(-k_bti.shape[1] // SEGMENT)
    y_btn, read_btn, value_btn = (input_btn.new_empty(input_btn.shape) for _ in range(3))
    last_bni = first_bni.new_empty(first_bni.shape)
    checkpoints = first_bni.new_empty(batch, segments, *first_bni.shape[1:])
    return [y_btn, last_bni, checkpoints, read_btn, value_btn]


@operator("slots")
def slots(
    backend: str,
    k_bti: Tensor,
    q_bti: Tensor,
    input_btn: Tensor,
    row_btn: Tensor,
    mix_nn: Tensor,
    first_bni: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run E63m's recurrence: S' = a > S + (1 - a) > v k^T, v = tanh(input + mix tanh(S k)).

    Args:
        backend: ``cpu`` or ``cuda``.
        k_bti: Keys.
        q_bti: Queries.
        input_btn: What joins the value, biases included.
        row_btn: a.
        mix_nn: W_r.
        first_bni: State before the first step. All have this one's dtype: fp32, or on a CPU fp64.
        resets_bt: True where the state of a sequence before a step is zero; None is nowhere.

    Returns:
        The reads S' q [B, T, n], the last state, the checkpoints [B, segments, n, i], tanh(S k) and
        the values v [B, T, n].

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
        UserError: the backend cannot read the tensors' device or dtype, or its kernel cannot be
            compiled.
    """
    given = {"k": k_bti, "q": q_bti, "input": input_btn, "row": row_btn, "mix": mix_nn}
    check_call(given, first_bni)
    check_resets("matrix_state e63m", resets_bt, k_bti)
    made = _kept(k_bti, input_btn, first_bni)
    names = ("y", "last", "checkpoints", "read", "value")
    results = dict(zip(names, made, strict=True))
    before = {"first": first_bni, "resets": resets_bt}
    _call(backend, {**given, **before, **results}, backward=False)
    y_btn, last_bni, checkpoints_bkni, read_btn, value_btn = made
    return y_btn, last_bni, checkpoints_bkni, read_btn, value_btn


@slots.register_fake
def _(
    backend: str,
    k_bti: Tensor,
    q_bti: Tensor,
    input_btn: Tensor,
    row_btn: Tensor,
    mix_nn: Tensor,
    first_bni: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, ...]:
    return tuple(_kept(k_bti, input_btn, first_bni))


@operator("slots_backward")
def slots_backward(
    backend: str,
    dy_btn: Tensor | None,
    dlast_bni: Tensor | None,
    k_bti: Tensor,
    q_bti: Tensor,
    row_btn: Tensor,
    mix_nn: Tensor,
    checkpoints_bkni: Tensor,
    read_btn: Tensor,
    value_btn: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of keys, queries, inputs, a and the first state."""
    dk_bti, dq_bti, dinput_btn, drow_btn, dfirst_bni = made = _gradients(
        k_bti, read_btn, checkpoints_bkni
    )
    names = ("dk", "dq", "dinput", "drow", "dfirst")
    given = {"k": k_bti, "q": q_bti, "row": row_btn, "mix": mix_nn, "read": read_btn}
    given |= {"value": value_btn, "checkpoints": checkpoints_bkni}
    pulls = {"dy": dy_btn, "dlast": dlast_bni, "resets": resets_bt}
    results = dict(zip(names, made, strict=True))
    _call(backend, {**given, **pulls, **results}, backward=True)
    return dk_bti, dq_bti, dinput_btn, drow_btn, dfirst_bni


def _gradients(k_bti: Tensor, read_btn: Tensor, checkpoints_bkni: Tensor) -> list[Tensor]:
    """Return room for what a backward pass returns."""
    batch, _, *state = checkpoints_bkni.shape
    sequences = (k_bti, k_bti, read_btn, read_btn)
    return [*(x.new_empty(x.shape) for x in sequences), k_bti.new_empty(batch, *state)]


@slots_backward.register_fake
def _(
    backend: str,
    dy_btn: Tensor | None,
    dlast_bni: Tensor | None,
    k_bti: Tensor,
    q_bti: Tensor,
    row_btn: Tensor,
    mix_nn: Tensor,
    checkpoints_bkni: Tensor,
    read_btn: Tensor,
    value_btn: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, ...]:
    return tuple(_gradients(k_bti, read_btn, checkpoints_bkni))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.backend, k_bti, q_bti, _, row_btn, mix_nn, _, resets_bt = inputs
    ctx.save_for_backward(k_bti, q_bti, row_btn, mix_nn, *output[2:], resets_bt)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, dy_btn: Tensor | None, dlast_bni: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    read_btn = saved[5]
    dk, dq, dinput_btn, drow, dfirst = slots_backward(ctx.backend, dy_btn, dlast_bni, *saved)
    # One large product over batch and time.
    dmix_nn = dinput_btn.flatten(0, 1).mT @ read_btn.flatten(0, 1)
    return None, dk, dq, dinput_btn, drow, dmix_nn, dfirst, None


register_gradient("slots", _differentiate, _setup)
# The caller sets the state's precision: this widens what autocast made narrow.
slots.register_autocast("cpu", torch.float32)
slots.register_autocast("cuda", torch.float32)
