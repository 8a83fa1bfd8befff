"""The dense engine as layers call it: checks, dtypes, then the chosen backend.

Shape legend: b batch, t time, i channels of the state.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from elman.ops.common.checks import empty_results, is_empty
from elman.ops.common.precision import cast, io_dtype
from elman.ops.dense import custom_op
from elman.ops.dense.backends import BACKENDS
from elman.ops.dense.heads import channel_count


def dense_recurrence(
    step: str,
    inputs: Sequence[Tensor],
    recurrent: Sequence[Tensor],
    state: Sequence[Tensor],
    *,
    parameters: Sequence[Tensor] = (),
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one kind of step over time, from a given state to the final one.

    Every step adds R h to its first input. In the table h is the state before the step; a (or
    [a, c, ...], blocks of i channels) is that sum; p and q are the other inputs; s = sigma; and
    rn(x) = x / sqrt(mean(x^2) + 1e-6):

    ================= ========== =================================================== ===============
    step              a, others  new state                                           cell
    ================= ========== =================================================== ===============
    tanh              a          tanh(a)                                             E0 to E56
    linear            a          a                                                   E36, E42
    gru               [z r], p   (1 - s(z)) h + s(z) tanh(p + U (s(r) h))            CudaGRU
    gru_reset_after   [r z q], p s(z) h + (1 - s(z)) tanh(p + s(r) q)                PyTorch's GRU
    lstm              [f i o n]  c' = s(f) c + s(i) tanh(n), h' = s(o) tanh(c')      CudaLSTM
    slstm             [z o i f]  c' = F c + I tanh(z), n' = F n + I, h' = s(o) c'/n' sLSTM
    normalized_scalar a          rn(h + alpha tanh(a))                               E60
    normalized        a, p       rn(h + s(p) tanh(a))                                E60b
    normalized_sum    a          rn(h + a)                                           E59c
    mix               a, p       s(p) h + (1 - s(p)) tanh(a)                         E63, E66
    mix_all           [a c]      s(c) h + (1 - s(c)) tanh(a)                         E60c
    mix_gate          a, p       s(a) h + (1 - s(a)) tanh(p)                         E67lr
    two_gates         a, p, q    s(p) h + s(q) tanh(a)                               E63 independent
    two_gates_all     [a c d]    s(c) h + s(d) tanh(a)                               E63 h_dependent
    residual          a, p       h + s(p) tanh(a)                                    E63 residual
    ================= ========== =================================================== ===============

    (vector-state specification 2.7, 3.12, 4.3, 4.6, 4.7, 5.1 and 5.2; slstm: arXiv 2405.04517,
    equations 8 to 17, where F = exp(log s(f) + m - m'), I = exp(i - m') and m' = max(log s(f) + m,
    i); of a memory with n = 0 nothing is read.) Gradients reach every tensor argument.

    Args:
        step: Name in :data:`elman.ops.dense.steps.STEPS`.
        inputs: Sequences [B, T, channels]: the parts of the pre-activations that do not depend on
            the state, biases included.
        recurrent: The matrix R [out, in], already constrained, or its factors U, V with R = U V;
            or a block-diagonal one [heads, out, in], as :mod:`elman.ops.dense.heads` has it.
        state: State before the first step, [B, i] each, h first.
        parameters: The step's own: U [i, i] of ``gru``, alpha [1] of ``normalized_scalar``.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.
        resets_bt: Whether the state of a row is zero before a step, bool; None: never. A reset
            before the first step drops the given state. No gradient passes a reset.

    Returns:
        h of all steps [B, T, i] and the state after the last one. Both, and all of the computation,
        have the dtype of ``state`` (fp32 or wider), whatever autocast says. The backend cuda
        alone follows autocast: it reads inputs and matrices in autocast's dtype or else in that
        of the inputs, writes h of all steps in it, and sums in the state's.

    Raises:
        ValueError: a tensor has another shape, dtype or device than the step asks for.
        UserError: the backend has no kernel for the step or dtype, or cannot build it.
    """
    chosen, dtype = BACKENDS[backend], state[0].dtype
    custom_op.check_call(step, inputs, recurrent, state, resets_bt)
    batch, steps, _ = inputs[0].shape
    channels = channel_count(recurrent)
    io = io_dtype(inputs[0]) if chosen.narrow else dtype
    if is_empty(inputs[0]):
        read = (*inputs, *recurrent, *parameters)
        h_bti, last = empty_results((batch, steps, channels), io, state, read)
        return h_bti, tuple(last)
    inputs = [cast(one, io) for one in inputs]
    recurrent, state, parameters = (
        [cast(one, dtype) for one in group] for group in (recurrent, state, parameters)
    )
    return chosen.run(step, inputs, recurrent, state, parameters, resets_bt)


def elman(
    input_bti: Tensor,
    weight_ii: Tensor,
    state_bi: Tensor,
    *,
    linear: bool,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run ``h_t = phi(input_t + W h_{t-1})`` over time; see :func:`dense_recurrence`.

    Args:
        input_bti: The part of the pre-activation that does not depend on the state, bias included.
        weight_ii: Recurrent matrix W [out, in], already constrained.
        state_bi: State before the first step.
        linear: Whether phi is the identity instead of tanh.
        backend: Name of the implementation.
        resets_bt: Whether the state of a row is zero before a step; None: never.

    Returns:
        All states h_bti and the last one.
    """
    step = "linear" if linear else "tanh"
    h_bti, (final_bi,) = dense_recurrence(
        step, [input_bti], [weight_ii], [state_bi], backend=backend, resets_bt=resets_bt
    )
    return h_bti, final_bi
