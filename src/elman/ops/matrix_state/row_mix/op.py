"""M2RNN as its layer calls it: checks, dtypes, then the chosen backend.

Shape legend: b batch, t time, h heads, n state columns, v and u state rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from elman.ops.common.checks import is_empty
from elman.ops.common.precision import wide_dtype
from elman.ops.common.transforms import keeps
from elman.ops.matrix_state.op import recurrence
from elman.ops.matrix_state.row_mix.custom_op import ROW_MIX, Call, check_call
from elman.ops.matrix_state.row_mix.launch import NAMES


def row_mix_recurrence(
    sequences: Mapping[str, Tensor],
    mix_huv: Tensor,
    residual_hv: Tensor,
    state_bhvn: Tensor,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run M2RNN over time, whose matrix mixes all rows of a state.

    S' = f S + (1 - f) tanh(W^T S + v k^T), out = (S' q + D v) silu(g) (matrix-state specification
    13). Gradients reach every tensor argument.

    Args:
        sequences: ``q`` and ``k`` [B, T, heads, columns], ``v`` and ``gate`` (g) [B, T, heads,
            rows], ``decay`` (f) [B, T, heads] in fp32 or wider.
        mix_huv: W [heads, rows, rows].
        residual_hv: D [heads, rows].
        state_bhvn: State before the first step.
        backend: ``reference`` or ``triton``.
        resets_bt: As for :func:`elman.ops.matrix_state.op.run`.

    Returns:
        The output [B, T, heads, rows] and the state after the last step, in fp32 or wider; triton
        writes the output in the gate's dtype.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
        UserError: Triton does not run on the tensors' device or dtype.
    """
    v_bthv, gate_bthv = sequences["v"], sequences["gate"]
    if backend == "reference" or is_empty(v_bthv):
        inputs = {name: sequences[name] for name in ("q", "k", "v")}
        inputs["decay"] = sequences["decay"].unsqueeze(-1)
        y_bthv, last_bhvn = recurrence(
            "m2rnn",
            inputs,
            {"mixes": mix_huv},
            state_bhvn,
            nonlinearity="linear",
            backend="reference",
            resets_bt=resets_bt,
        )
        wide = state_bhvn.dtype
        y_bthv = y_bthv + residual_hv.to(wide) * v_bthv.to(wide)
        return y_bthv * functional.silu(gate_bthv.to(wide)), last_bhvn
    wide = wide_dtype(v_bthv.dtype)
    q, k, v, decay, gate = (sequences[name] for name in NAMES)
    tensors = (q, k, v, decay, gate, mix_huv.to(wide), residual_hv.to(wide), state_bhvn)
    call = Call(keeps(tensors), *tensors, resets_bt)
    check_call(call)
    out_bthv, last_bhvn = ROW_MIX.run(call)
    return out_bthv, last_bhvn
