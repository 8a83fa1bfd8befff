"""Mamba2's recurrence as the layer calls it: checks, dtypes, the chosen backend.

Shape legend: b batch, t time, h heads, p channels of a head, g groups of heads that share B and C,
n state columns.
"""

from __future__ import annotations

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.checks import check_sequences, check_state, empty_results, is_empty
from elman.ops.common.precision import no_autocast, wide_dtype
from elman.ops.ssd.backends import BACKENDS


@uncompiled
def selective_scan(
    x_bthp: Tensor,
    dt_bth: Tensor,
    b_btgn: Tensor,
    c_btgn: Tensor,
    *,
    a_log_h: Tensor,
    dt_bias_h: Tensor,
    skip_h: Tensor,
    state_bhpn: Tensor | None,
    chunk: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run Mamba2's recurrence over time, from a given state to the final one.

    With S [p, n] per head and d = softplus(dt + dt_bias): ``S' = exp(-d exp(a_log)) S + d x B^T``
    and ``y = S' C + skip x`` (lm-and-training specification 5.1). Gradients reach every tensor.

    Args:
        x_bthp: Input of each head.
        dt_bth: Logits of the time steps.
        b_btgn: Columns written to; head i belongs to group i // (heads / groups).
        c_btgn: Columns read.
        a_log_h: Logarithm of the decay rate.
        dt_bias_h: Added to the logits.
        skip_h: Weight of the input in the output.
        state_bhpn: State before the first step, fp32 or wider; None starts a sequence.
        chunk: Steps computed at once; 0 is the implementation's own choice.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.

    Returns:
        Reads y_bthp and the state after the last step, in fp32 or wider; the reads of ``triton``
        have the dtype of ``x``.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
    """
    of, chosen = "selective_scan", BACKENDS[backend]
    check_sequences(of, [x_bthp, dt_bth, b_btgn, c_btgn])
    shape = (x_bthp.shape[0], *x_bthp.shape[2:], b_btgn.shape[3])
    if state_bhpn is not None:
        check_state("state", of, state_bhpn, shape, x_bthp)
    if is_empty(x_bthp):
        wide = wide_dtype(x_bthp.dtype)
        states = [x_bthp.new_zeros(shape, dtype=wide) if state_bhpn is None else state_bhpn]
        read = (x_bthp, dt_bth, b_btgn, c_btgn, a_log_h, dt_bias_h, skip_h)
        io = chosen.io_dtype(x_bthp.dtype)
        y_bthp, (last_bhpn,) = empty_results(x_bthp.shape, io, states, read)
        return y_bthp, last_bhpn
    with no_autocast(x_bthp):
        return chosen.run(
            x_bthp, dt_bth, b_btgn, c_btgn, a_log_h, dt_bias_h, skip_h, state_bhpn, chunk
        )
