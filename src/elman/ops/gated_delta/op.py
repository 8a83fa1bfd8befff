"""The gated delta rule as the layer calls it: checks, dtypes, the chosen backend.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.checks import check_sequences, check_state, empty_results, is_empty
from elman.ops.common.precision import no_autocast, wide_dtype
from elman.ops.gated_delta.backends import BACKENDS


@uncompiled
def gated_delta_rule(
    q_bthk: Tensor,
    k_bthk: Tensor,
    v_bthv: Tensor,
    decay_bth: Tensor,
    write_bth: Tensor,
    *,
    a_log_h: Tensor,
    dt_bias_h: Tensor,
    write_scale: float,
    state_bhvk: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule over time, from a given state to the final one.

    With S [v, k] per head, q and k divided by sqrt(|.|^2 + 1e-6), q by sqrt(k) besides, c =
    exp(-exp(a_log) softplus(decay + dt_bias)) and w = write_scale sigmoid(write):
    ``S' = c S + w (v - c S k) k^T``, ``y = S' q`` (lm-and-training specification 5.2). Gradients
    reach every tensor.

    Args:
        q_bthk: Queries.
        k_bthk: Keys.
        v_bthv: Values.
        decay_bth: Logits of the decay.
        write_bth: Logits of the strength of each write.
        a_log_h: Logarithm of the decay rate.
        dt_bias_h: Added to the logits of the decay.
        write_scale: 1, or 2 for eigenvalues down to -1.
        state_bhvk: State before the first step, fp32 or wider; None starts a sequence.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.

    Returns:
        Reads y_bthv and the state after the last step, in fp32 or wider; the reads of ``triton``
        and ``flash_qla`` have the dtype of ``q``.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
        UserError: the backend does not compute these sizes or this dtype.
    """
    of, chosen = "gated_delta_rule", BACKENDS[backend]
    sequences = (q_bthk, k_bthk, v_bthv, decay_bth, write_bth)
    check_sequences(of, sequences)
    batch, _, heads, keys = q_bthk.shape
    shape = (batch, heads, v_bthv.shape[3], keys)
    if state_bhvk is not None:
        check_state("state", of, state_bhvk, shape, q_bthk)
    if is_empty(q_bthk):
        wide = wide_dtype(q_bthk.dtype)
        states = [q_bthk.new_zeros(shape, dtype=wide) if state_bhvk is None else state_bhvk]
        io = chosen.io_dtype(q_bthk.dtype)
        read = (*sequences, a_log_h, dt_bias_h)
        y_bthv, (last_bhvk,) = empty_results(v_bthv.shape, io, states, read)
        return y_bthv, last_bhvk
    with no_autocast(q_bthk):
        return chosen.run(
            q_bthk,
            k_bthk,
            v_bthv,
            decay_bth,
            write_bth,
            a_log_h,
            dt_bias_h,
            write_scale,
            state_bhvk,
        )
