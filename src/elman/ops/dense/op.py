"""Dense recurrences as the layers call them: shapes, dtypes, choice of implementation.

Shape legend: b batch, t time, i channels of the state.
"""

from __future__ import annotations

from torch import Tensor

from elman.ops.dense import reference
from elman.ops.precision import no_autocast
from elman.ops.uncompiled import uncompiled

_ELMAN = {"reference": reference.elman}


@uncompiled
def elman(
    input_bti: Tensor, weight_ii: Tensor, state_bi: Tensor, *, linear: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """Run ``h_t = phi(input_t + W h_{t-1})`` over time (vector-state specification 2.7).

    Gradients reach the inputs, the weight and the first state.

    Args:
        input_bti: The part of the pre-activation that does not depend on the state, bias included.
        weight_ii: Recurrent matrix W [out, in], already constrained.
        state_bi: State before the first step.
        linear: Whether phi is the identity instead of tanh.
        backend: Name of the implementation, as chosen by ``elman.kernels.backends``.

    Returns:
        All states h_bti and the last one. Both, and all of the computation, have the dtype of
        ``state_bi`` (fp32 or wider), whatever autocast says.
    """
    dtype = state_bi.dtype
    with no_autocast(state_bi):
        return _ELMAN[backend](input_bti.to(dtype), weight_ii.to(dtype), state_bi, linear)
