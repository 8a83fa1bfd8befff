"""E63m as its layer calls it: checks, dtypes, then the chosen backend.

Shape legend: b batch, t time, h = 1 head, n slots (rows of the state), i channels (its columns).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from elman.ops.common.checks import check_resets, check_sequences, check_state, is_empty
from elman.ops.matrix_state.op import recurrence
from elman.ops.matrix_state.slots.custom_op import SLOTS, Call, check_call


def slot_recurrence(
    sequences: Mapping[str, Tensor],
    mix_nn: Tensor,
    state_bhni: Tensor,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run E63m over time, whose slots all read one another.

    S' = a > S + (1 - a) > v k^T, v = tanh(input + mix tanh(S k)), y = S' q (matrix-state
    specification 4). Gradients reach every tensor argument.

    Args:
        sequences: ``k`` and ``q`` [B, T, 1, columns], ``input`` and ``row`` (a) [B, T, 1, slots].
        mix_nn: W_r [slots, slots].
        state_bhni: State before the first step [B, 1, slots, columns].
        backend: ``reference``, ``cpu`` or ``cuda``.
        resets_bt: As for :func:`elman.ops.matrix_state.op.run`.

    Returns:
        As of :func:`elman.ops.matrix_state.op.recurrence`.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
        UserError: the backend cannot read the tensors' device or dtype.
    """
    k_bthi = sequences["k"]
    batch, _, _, columns = k_bthi.shape
    if backend == "reference" or is_empty(k_bthi):
        mix = {"mix": mix_nn.unsqueeze(0)}
        return recurrence(
            "e63m",
            sequences,
            mix,
            state_bhni,
            nonlinearity="linear",
            backend="reference",
            resets_bt=resets_bt,
        )
    check_sequences("matrix_state e63m", list(sequences.values()))
    check_resets("matrix_state e63m", resets_bt, k_bthi)
    shape = (batch, 1, mix_nn.shape[0], columns)
    check_state("state", "matrix_state e63m", state_bhni, shape, k_bthi)
    dtype = state_bhni.dtype
    k, q, value, row = (sequences[name].squeeze(2).to(dtype) for name in ("k", "q", "input", "row"))
    first_bni = state_bhni.squeeze(1)
    call = Call(backend, k, q, value, row, mix_nn.to(dtype), first_bni, resets_bt)
    check_call(call)
    y_btn, last_bni = SLOTS.run(call)
    return y_btn.unsqueeze(2), last_bni.unsqueeze(1)
