"""The kernels of M2RNN as an operator: a matrix mixes all rows of a state.

It is no plan of the engine: the engine's kernels take the rows of a state one by one.

Shape legend: b batch, t time, h heads, n state columns, v and u state rows, k checkpoints.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from elman.ops.common.checks import FLOATING, WIDE, check, check_resets
from elman.ops.common.operator import INCOMING, Operator
from elman.ops.matrix_state.row_mix import launch as triton
from elman.ops.matrix_state.row_mix.launch import NAMES, MixCall
from elman.ops.matrix_state.row_mix.spec import STEPS

_OF = "matrix_state m2rnn"


class Call(NamedTuple):
    """What the operator reads.

    Args:
        keep: Whether to keep the checkpoints that a backward pass starts from.
        q_bthn: Queries. Sequences are in fp32 or bf16, each in its own.
        k_bthn: Keys.
        v_bthv: Values.
        decay_bth: f, in fp32.
        gate_bthv: g.
        mix_huv: W, in fp32.
        residual_hv: D, in fp32.
        first_bhvn: State before the first step, in fp32.
        resets_bt: True where the state of a row before a step is zero; None is nowhere.
    """

    keep: bool
    q_bthn: Tensor
    k_bthn: Tensor
    v_bthv: Tensor
    decay_bth: Tensor
    gate_bthv: Tensor
    mix_huv: Tensor
    residual_hv: Tensor
    first_bhvn: Tensor
    resets_bt: Tensor | None


class Saved(NamedTuple):
    """What the backward pass reads."""

    dout_bthv: Tensor | None
    dlast_bhvn: Tensor | None
    q_bthn: Tensor
    k_bthn: Tensor
    v_bthv: Tensor
    decay_bth: Tensor
    gate_bthv: Tensor
    mix_huv: Tensor
    residual_hv: Tensor
    first_bhvn: Tensor
    resets_bt: Tensor | None
    checkpoints_kbhvn: Tensor


def check_call(call: Call) -> None:
    """Compare the tensors of a call with what the kernels read.

    Raises:
        ValueError: one has another shape, dtype or device, or there are no rows or no steps.
    """
    gate = call.gate_bthv
    check(f"gate of {_OF}", gate, (None,) * 4, gate.device, FLOATING)
    batch, steps, heads, rows = gate.shape
    if not batch or not steps:
        raise ValueError(f"gate of {_OF}: shape {list(gate.shape)}, expected rows and steps")
    columns, wide = call.q_bthn.shape[-1], WIDE[gate.dtype]
    of_columns = (batch, steps, heads, columns)
    tensors = {
        "q": (call.q_bthn, of_columns, FLOATING),
        "k": (call.k_bthn, of_columns, FLOATING),
        "v": (call.v_bthv, gate.shape, FLOATING),
        "decay": (call.decay_bth, gate.shape[:3], wide),
        "mix": (call.mix_huv, (heads, rows, rows), wide),
        "residual": (call.residual_hv, (heads, rows), wide),
        "state": (call.first_bhvn, (batch, heads, rows, columns), wide),
    }
    for name, (tensor, shape, dtypes) in tensors.items():
        check(f"{name} of {_OF}", tensor, tuple(shape), gate.device, dtypes)
    check_resets(_OF, call.resets_bt, gate)


def _room(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    gate_bthv = call.gate_bthv
    (batch, steps, heads, rows), columns = gate_bthv.shape, call.q_bthn.shape[-1]
    count = (steps - 1) // STEPS if call.keep else 0
    state = (batch, heads, rows, columns)
    # States lie in [-1, 1] if the first one does, where fp16 is finer than bf16.
    kept = torch.float16 if gate_bthv.dtype == torch.bfloat16 else torch.float32
    device = gate_bthv.device
    return (
        torch.empty(gate_bthv.shape, dtype=gate_bthv.dtype, device=device),
        torch.empty(state, dtype=torch.float32, device=device),
        torch.empty(count, *state, dtype=kept, device=device),
    )


def _adjacent(tensor: Tensor) -> Tensor:
    """Return a tensor whose last axis has no gaps, which kernels need."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _arguments(call: Call | Saved, checkpoints_kbhvn: Tensor | None) -> MixCall:
    q_bthn, k_bthn, v_bthv = (_adjacent(one) for one in (call.q_bthn, call.k_bthn, call.v_bthv))
    sequences = (q_bthn, k_bthn, v_bthv, call.decay_bth, _adjacent(call.gate_bthv))
    return MixCall(
        dict(zip(NAMES, sequences, strict=True)),
        call.mix_huv.contiguous(),
        call.residual_hv.contiguous(),
        call.first_bhvn.contiguous(),
        checkpoints_kbhvn,
        None if call.resets_bt is None else call.resets_bt.contiguous(),
    )


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output in the dtype of the gate, the last state in fp32, and the checkpoints."""
    out_bthv, last_bhvn, checkpoints_kbhvn = results = _room(call)
    args = _arguments(call, checkpoints_kbhvn if call.keep else None)
    triton.forward(args, out_bthv, last_bhvn)
    return results


def _like(*tensors: Tensor) -> list[Tensor]:
    """Return room for gradients, contiguous."""
    return [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in tensors]


def backward(saved: Saved) -> list[Tensor]:
    """Return the gradients of q, k, v, decay, gate, W, D and the first state."""
    dout_bthv, dlast_bhvn = saved.dout_bthv, saved.dlast_bhvn
    dsequences = _like(*saved[2:7])
    (dfirst_bhvn,) = _like(saved.first_bhvn)
    dmix_huv, dresidual_hv = triton.backward(
        _arguments(saved, saved.checkpoints_kbhvn),
        None if dout_bthv is None else _adjacent(dout_bthv),
        None if dlast_bhvn is None else dlast_bhvn.contiguous(),
        dict(zip(NAMES, dsequences, strict=True)),
        dfirst_bhvn,
    )
    return [*dsequences, dmix_huv, dresidual_hv, dfirst_bhvn]


def _save(call: Call, results: tuple[Tensor, Tensor, Tensor]) -> Saved:
    assert call.keep, "a gradient needs checkpoints, and none were kept"
    return Saved(INCOMING, INCOMING, *call[1:], results[2])


def _fake_backward(saved: Saved) -> list[Tensor]:
    _, _, *differentiated, _resets, _checkpoints = saved
    return _like(*differentiated)


ROW_MIX = Operator(
    "row_mix",
    Call,
    Saved,
    check=check_call,
    forward=forward,
    fake=_room,
    save=_save,
    backward=backward,
    fake_backward=_fake_backward,
    incoming=("dout_bthv", "dlast_bhvn"),
    gradients=Call._fields[1:-1],
)
"""M2RNN's recurrence, S' = f S + (1 - f) tanh(W^T S + v k^T), out = (S' q + D v) silu(g), per head.

Its results are the output [B, T, heads, rows] in the dtype of the gate, the last state in fp32, and
the checkpoints [segments - 1, B, heads, rows, columns]."""
