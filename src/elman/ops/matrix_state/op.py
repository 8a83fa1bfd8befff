"""Matrix-state recurrences as the layers call them: shapes, dtypes, choice of implementation.

Shape legend: b batch, t time, h heads, n state columns (keys), v state rows (values),
r = 1 or v (rows with a decay of their own).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from elman.ops.matrix_state import reference
from elman.ops.precision import no_autocast
from elman.ops.uncompiled import uncompiled

_DELTA_RULE = {"reference": reference.delta_rule}
_RECURRENCE = {"reference": reference.recurrence}


@uncompiled
def delta_rule(
    q_bthn: Tensor,
    k_bthn: Tensor,
    v_bthv: Tensor,
    *,
    decay_bthr: Tensor | None,
    write_bth: Tensor | None,
    state_bhvn: Tensor,
    linear_state: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule over time, from a given state to the final one.

    With S [v, n] per head: ``S' = phi(c S + w (v - S k) k^T)`` and ``y = S' q``, where phi is tanh
    or the identity, c is the decay and w the write gate (matrix-state specification 10 and 12.1;
    E88 is written there with the transposed state). Gradients reach every tensor argument.

    Args:
        q_bthn: Queries.
        k_bthn: Keys, already normalised where the cell normalises them.
        v_bthv: Values.
        decay_bthr: Decay per head (r = 1) or per value row (r = v); None is 1.
        write_bth: Write gate per head; None is 1.
        state_bhvn: State before the first step.
        linear_state: Whether phi is the identity.
        backend: Name of the implementation, as chosen by ``elman.kernels.backends``.

    Returns:
        Reads y_bthv and the state after the last step. Both, and all of the computation, have the
        dtype of ``state_bhvn`` (fp32 or wider), whatever autocast says.
    """
    dtype = state_bhvn.dtype
    decay_bthr = None if decay_bthr is None else decay_bthr.to(dtype)
    write_bth = None if write_bth is None else write_bth.to(dtype)
    with no_autocast(state_bhvn):
        return _DELTA_RULE[backend](
            q_bthn.to(dtype),
            k_bthn.to(dtype),
            v_bthv.to(dtype),
            decay_bthr,
            write_bth,
            state_bhvn,
            linear_state,
        )


@uncompiled
def recurrence(
    step: str,
    sequences: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor,
    *,
    nonlinearity: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run one of the matrix-state steps over time, from a given state to the final one.

    With S [v, n] per head: ``S' = f(step(S, r, inputs))``, ``y = S' q``, where r = S k or, given
    ``read``, S read. Gradients reach every sequence, every parameter and the first state.

    Args:
        step: Name in :data:`elman.ops.matrix_state.steps.STEPS`.
        sequences: ``q`` and what the step takes, over columns [b, t, h, n] or rows [b, t, h, v].
        parameters: What the step takes that does not change over time.
        state_bhvn: State before the first step.
        nonlinearity: f, a name in :data:`elman.ops.matrix_state.steps.NONLINEARITIES`.
        backend: Name of the implementation, as chosen by ``elman.kernels.backends``.

    Returns:
        Reads y_bthv and the state after the last step. Both, and all of the computation, have the
        dtype of ``state_bhvn`` (fp32 or wider), whatever autocast says.
    """
    dtype = state_bhvn.dtype
    with no_autocast(state_bhvn):
        return _RECURRENCE[backend](
            step,
            {name: sequence.to(dtype) for name, sequence in sequences.items()},
            {name: parameter.to(dtype) for name, parameter in parameters.items()},
            state_bhvn,
            nonlinearity,
        )
