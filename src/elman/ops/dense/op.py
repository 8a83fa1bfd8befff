"""Dense recurrences as the layers call them: shapes, dtypes, choice of implementation.

Shape legend: b batch, t time, i channels of the state.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from elman.ops.dense import reference
from elman.ops.precision import no_autocast
from elman.ops.uncompiled import uncompiled

_RECURRENCE = {"reference": reference.dense_recurrence}


@uncompiled
def dense_recurrence(
    step: str,
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    state: Sequence[Tensor],
    *,
    backend: str,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one kind of step over time, from a given state to the final one.

    ======== ======================== ================= ========= ==================================
    step     inputs                   weights           state     equation (vector-state spec.)
    ======== ======================== ================= ========= ==================================
    tanh     a [i]                    W [i, i]          h         h' = tanh(a + W h), 2.7
    linear   a [i]                    W [i, i]          h         h' = a + W h, 2.7
    low_rank a [i]                    U [i, r] V [r, i] h         h' = tanh(a + U V h), 3.3
    gru      zr [2i], n [i]           [2i, i] [i, i]    h         reset before the matrix, 5.1
    lstm     forget, in, out, new     [4i, i]           h, c      5.2
             [4i]
    ======== ======================== ================= ========= ==================================

    Gradients reach the inputs, the weights and the first state.

    Args:
        step: Name of the step.
        inputs: Sequences [B, T, channels]: the parts of the pre-activations that do not depend on
            the state, biases included.
        weights: Recurrent matrices [out, in], already constrained.
        state: State before the first step, [B, i] each, h first.
        backend: Name of the implementation, as chosen by ``elman.kernels.backends``.

    Returns:
        h of all steps [B, T, i] and the state after the last one. Both, and all of the computation,
        have the dtype of ``state`` (fp32 or wider), whatever autocast says.
    """
    dtype = state[0].dtype
    with no_autocast(state[0]):
        return _RECURRENCE[backend](
            step,
            [sequence.to(dtype) for sequence in inputs],
            [weight.to(dtype) for weight in weights],
            [part.to(dtype) for part in state],
        )


def elman(
    input_bti: Tensor, weight_ii: Tensor, state_bi: Tensor, *, linear: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """Run ``h_t = phi(input_t + W h_{t-1})`` over time; see :func:`dense_recurrence`.

    Args:
        input_bti: The part of the pre-activation that does not depend on the state, bias included.
        weight_ii: Recurrent matrix W [out, in], already constrained.
        state_bi: State before the first step.
        linear: Whether phi is the identity instead of tanh.
        backend: Name of the implementation.

    Returns:
        All states h_bti and the last one.
    """
    step = "linear" if linear else "tanh"
    h_bti, (final_bi,) = dense_recurrence(
        step, [input_bti], [weight_ii], [state_bi], backend=backend
    )
    return h_bti, final_bi
