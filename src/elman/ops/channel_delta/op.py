"""The delta rule with channel decays as the layers call it: checks, dtypes, the chosen backend.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.channel_delta.backends import BACKENDS
from elman.ops.channel_delta.rules import Rule
from elman.ops.common.checks import check_sequences, check_state, empty_results, is_empty
from elman.ops.common.precision import no_autocast, wide_dtype


@uncompiled
def channel_delta(rule: Rule, *, state_bhvk: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
    """Run a rule over time, from a given state to the final one. Gradients reach every tensor.

    Args:
        rule: The rule with its tensors; its class has the equation.
        state_bhvk: State before the first step, fp32 or wider; None starts a sequence.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.

    Returns:
        Reads y_bthv and the state after the last step, in fp32 or wider; the reads of ``triton``
        have the dtype of ``q``.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
    """
    of, chosen = "channel_delta", BACKENDS[backend]
    q_bthk, v_bthv = rule.q_bthk, rule.v_bthv
    check_sequences(of, rule.sequences())
    batch, _, heads, keys = q_bthk.shape
    shape = (batch, heads, v_bthv.shape[3], keys)
    if state_bhvk is not None:
        check_state("state", of, state_bhvk, shape, q_bthk)
    if is_empty(q_bthk):
        wide = wide_dtype(q_bthk.dtype)
        states = [q_bthk.new_zeros(shape, dtype=wide) if state_bhvk is None else state_bhvk]
        read = (*rule.sequences(), *rule.parameters())
        y_bthv, (last_bhvk,) = empty_results(
            v_bthv.shape, chosen.io_dtype(q_bthk.dtype), states, read
        )
        return y_bthv, last_bhvk
    with no_autocast(q_bthk):
        return chosen.run(rule, state_bhvk)
