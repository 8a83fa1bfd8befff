"""The kernels of M2RNN as custom operators: a matrix mixes all rows of a state.

It is no plan of the engine: the engine's kernels take the rows of a state one by one.

Shape legend: b batch, t time, h heads, n state columns, v and u state rows, k checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from elman.ops.common.door import FLOATING, WIDE, check, check_resets
from elman.ops.common.transforms import operator, register_gradient
from elman.ops.matrix_state.triton import row_mix_launch as triton
from elman.ops.matrix_state.triton.row_mix_launch import NAMES, MixCall
from elman.ops.matrix_state.triton.row_mix_spec import STEPS

_OF = "matrix_state m2rnn"


def check_call(
    sequences: Mapping[str, Tensor],
    mix_huv: Tensor,
    residual_hv: Tensor,
    first_bhvn: Tensor,
    resets_bt: Tensor | None,
) -> None:
    """Compare the tensors of a call with what the kernels read.

    Args:
        sequences: As for :class:`~elman.ops.matrix_state.triton.row_mix_launch.MixCall`.
        mix_huv: W.
        residual_hv: D.
        first_bhvn: State before the first step.
        resets_bt: Resets, or None.

    Raises:
        ValueError: one has another shape, dtype or device, or there are no rows or no steps.
    """
    gate = sequences["gate"]
    check(f"gate of {_OF}", gate, (None,) * 4, gate.device, FLOATING)
    batch, steps, heads, rows = gate.shape
    if not batch or not steps:
        raise ValueError(f"gate of {_OF}: shape {list(gate.shape)}, expected rows and steps")
    columns, wide = sequences["q"].shape[-1], WIDE[gate.dtype]
    of_rows, of_columns = (batch, steps, heads, rows), (batch, steps, heads, columns)
    shapes = {"q": of_columns, "k": of_columns, "v": of_rows, "decay": (batch, steps, heads)}
    for name, shape in shapes.items():
        dtypes = wide if name == "decay" else FLOATING
        check(f"{name} of {_OF}", sequences[name], shape, gate.device, dtypes)
    check(f"mix of {_OF}", mix_huv, (heads, rows, rows), gate.device, wide)
    check(f"residual of {_OF}", residual_hv, (heads, rows), gate.device, wide)
    check(f"state of {_OF}", first_bhvn, (batch, heads, rows, columns), gate.device, wide)
    check_resets(_OF, resets_bt, gate)


def _outputs(gate_bthv: Tensor, q_bthn: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for what a forward pass returns."""
    (batch, steps, heads, rows), columns = gate_bthv.shape, q_bthn.shape[-1]
    count = (steps - 1) // STEPS if keep else 0
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


def _call(
    sequences: Mapping[str, Tensor],
    mix_huv: Tensor,
    residual_hv: Tensor,
    first_bhvn: Tensor,
    checkpoints_kbhvn: Tensor | None,
    resets_bt: Tensor | None,
) -> MixCall:
    return MixCall(
        {name: one if name == "decay" else _adjacent(one) for name, one in sequences.items()},
        mix_huv.contiguous(),
        residual_hv.contiguous(),
        first_bhvn.contiguous(),
        checkpoints_kbhvn,
        None if resets_bt is None else resets_bt.contiguous(),
    )


@operator("row_mix")
def row_mix(
    keep: bool,
    q_bthn: Tensor,
    k_bthn: Tensor,
    v_bthv: Tensor,
    decay_bth: Tensor,
    gate_bthv: Tensor,
    mix_huv: Tensor,
    residual_hv: Tensor,
    first_bhvn: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run M2RNN's recurrence on the Triton kernels.

    S' = f S + (1 - f) tanh(W^T S + v k^T), out = (S' q + D v) silu(g), per head.

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

    Returns:
        The output [B, T, heads, rows] in the dtype of the gate, the last state in fp32, and the
        checkpoints [segments - 1, B, heads, rows, columns].

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
        UserError: Triton is missing, or does not run on this device or dtype.
    """
    given = dict(zip(NAMES, (q_bthn, k_bthn, v_bthv, decay_bth, gate_bthv), strict=True))
    check_call(given, mix_huv, residual_hv, first_bhvn, resets_bt)
    out_bthv, last_bhvn, checkpoints_kbhvn = _outputs(gate_bthv, q_bthn, keep)
    kept = checkpoints_kbhvn if keep else None
    call = _call(given, mix_huv, residual_hv, first_bhvn, kept, resets_bt)
    triton.forward(call, out_bthv, last_bhvn)
    return out_bthv, last_bhvn, checkpoints_kbhvn


@row_mix.register_fake
def _(
    keep: bool,
    q_bthn: Tensor,
    k_bthn: Tensor,
    v_bthv: Tensor,
    decay_bth: Tensor,
    gate_bthv: Tensor,
    *others: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(gate_bthv, q_bthn, keep)


def _gradients(*tensors: Tensor) -> list[Tensor]:
    """Return room for gradients, contiguous."""
    return [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in tensors]


@operator("row_mix_backward")
def row_mix_backward(
    dout_bthv: Tensor | None,
    dlast_bhvn: Tensor | None,
    q_bthn: Tensor,
    k_bthn: Tensor,
    v_bthv: Tensor,
    decay_bth: Tensor,
    gate_bthv: Tensor,
    mix_huv: Tensor,
    residual_hv: Tensor,
    first_bhvn: Tensor,
    resets_bt: Tensor | None,
    checkpoints_kbhvn: Tensor,
) -> list[Tensor]:
    """Return the gradients of q, k, v, decay, gate, W, D and the first state."""
    tensors = (q_bthn, k_bthn, v_bthv, decay_bth, gate_bthv)
    *made, dfirst_bhvn = _gradients(*tensors, first_bhvn)
    given, found = (dict(zip(NAMES, ones, strict=True)) for ones in (tensors, made))
    dmix_huv, dresidual_hv = triton.backward(
        _call(given, mix_huv, residual_hv, first_bhvn, checkpoints_kbhvn, resets_bt),
        None if dout_bthv is None else _adjacent(dout_bthv),
        None if dlast_bhvn is None else dlast_bhvn.contiguous(),
        found,
        dfirst_bhvn,
    )
    return [*made, dmix_huv, dresidual_hv, dfirst_bhvn]


@row_mix_backward.register_fake
def _(dout_bthv: Tensor | None, dlast_bhvn: Tensor | None, *read: Tensor) -> list[Tensor]:
    *differentiated, _resets, _checkpoints = read
    return _gradients(*differentiated)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    assert inputs[0], "a gradient needs checkpoints, and none were kept"
    ctx.save_for_backward(*inputs[1:], output[2])
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, dout_bthv: Tensor | None, dlast_bhvn: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    return None, *row_mix_backward(dout_bthv, dlast_bhvn, *ctx.saved_tensors), None


register_gradient("row_mix", _differentiate, _setup)
