"""Gated dense recurrences as the layers call them: shapes, dtypes, choice of implementation.

Shape legend: b batch, t time, i channels of the state, k = blocks * i channels of the
pre-activations, p = products * i of them that read the state, r rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from elman.ops.dense import gated_reference
from elman.ops.precision import no_autocast
from elman.ops.uncompiled import uncompiled

Step = Literal[
    "normalised_scalar",
    "normalised",
    "mix",
    "mix_all",
    "two_gates",
    "two_gates_all",
    "residual",
    "mix_gate",
]
"""Names of the steps, as :func:`gated` describes them."""

_GATED = {"reference": gated_reference.gated}


@uncompiled
def gated(
    step: Step,
    inputs_btk: Tensor,
    recurrent: Sequence[Tensor],
    parameters: Sequence[Tensor],
    state_bi: Tensor,
    *,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run a recurrence with one dense product and one gated pointwise step over time.

    The pre-activations are the inputs, plus R h_{t-1} in their first blocks. With a, c, d the
    pre-activations in the order of their blocks, s = sigma and rn = x / sqrt(mean(x^2) + 1e-6):

    ===================  ==========================================  ==========  ===============
    step                 h_t, where h is h_{t-1}                     reads h     cell
    ===================  ==========================================  ==========  ===============
    normalised_scalar    rn(h + alpha tanh(a))                       a           E60
    normalised           rn(h + s(c) tanh(a))                        a           E60b
    mix                  s(c) h + (1 - s(c)) tanh(a)                 a           E63, E66
    mix_all              s(c) h + (1 - s(c)) tanh(a)                 a, c        E60c
    two_gates            s(c) h + s(d) tanh(a)                       a           E63 independent
    two_gates_all        s(c) h + s(d) tanh(a)                       a, c, d     E63 h_dependent
    residual             h + s(c) tanh(a)                            a           E63 residual
    mix_gate             s(a) h + (1 - s(a)) tanh(c)                 a           E67lr
    ===================  ==========================================  ==========  ===============

    (vector-state specification 3.12, 4.3, 4.6 and 4.7.) Gradients reach every tensor argument.

    Args:
        step: Name of the step.
        inputs_btk: The part of the pre-activations that does not depend on the state, biases
            included, one block of i channels after another.
        recurrent: The matrix R_pi [out, in], or its two factors U_pr and V_ri with R = U V.
        parameters: The step's own parameters: alpha [1] of ``normalised_scalar``.
        state_bi: State before the first step.
        backend: Name of the implementation, as chosen by ``elman.kernels.backends``.

    Returns:
        All states h_bti and the last one. Both, and all of the computation, have the dtype of
        ``state_bi`` (fp32 or wider), whatever autocast says.
    """
    dtype = state_bi.dtype
    with no_autocast(state_bi):
        return _GATED[backend](
            step,
            inputs_btk.to(dtype),
            [matrix.to(dtype) for matrix in recurrent],
            [parameter.to(dtype) for parameter in parameters],
            state_bi,
        )
