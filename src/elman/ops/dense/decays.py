"""The decay of the dense recurrences: the factor by which a step multiplies its old state.

Shape legend: b batch, t time, i channels of the state, p rows of the recurrent matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.ops.common.precision import no_autocast
from elman.ops.common.scan import states_before
from elman.ops.dense.heads import row_count
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.reference import added, transposed

_OF_INPUT = frozenset({"mix", "two_gates"})
_BLOCK = {"gru": 0, "gru_reset_after": 1, "lstm": 0, "slstm": 3}
_BLOCK |= {"mix_all": 1, "mix_gate": 0, "two_gates_all": 1}
"""Which block of the rows that read the state is the logit of the decay; of a GRU, of 1 - decay."""


def decays(
    step: str,
    inputs: Sequence[Tensor],
    recurrent: Sequence[Tensor],
    state: Sequence[Tensor],
    parameters: Sequence[Tensor] = (),
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> Tensor | None:
    """Return the decay of each channel in all steps.

    It multiplies h, and in an LSTM c. In an sLSTM it is sigmoid(f), which multiplies the memory
    without its stabilizer. A product of the old state with a matrix is no decay.

    Args:
        step: As for :func:`elman.ops.dense.op.dense_recurrence`, and so are all others.
        inputs: The parts of the pre-activations that do not depend on the state.
        recurrent: The recurrent matrix, or its factors.
        state: State before the first step.
        parameters: The step's own.
        backend: Name of the implementation, which gates that read the state need.
        resets_bt: Whether the state of a row is zero before a step.

    Returns:
        Factors [B, T, i] in the dtype of the state; None: the step has no decay.
    """
    dtype = state[0].dtype
    if step in _OF_INPUT:
        return torch.sigmoid(inputs[1].to(dtype))
    if step not in _BLOCK:
        return None
    after_bti, _ = dense_recurrence(
        step,
        inputs,
        recurrent,
        state,
        parameters=parameters,
        backend=backend,
        resets_bt=resets_bt,
    )
    read = states_before(after_bti, state[0], resets_bt).flatten(0, 1)
    with no_autocast(read):
        *inner, outer = (transposed(matrix.to(dtype)) for matrix in reversed(recurrent))
        for factor in inner:
            read = read @ factor
        pre_bp = added(inputs[0].to(dtype).flatten(0, 1), read, outer)
    blocks = row_count(recurrent) // after_bti.shape[-1]
    logit_bi = pre_bp.chunk(blocks, dim=-1)[_BLOCK[step]]
    decay_bi = torch.sigmoid(-logit_bi if step == "gru" else logit_bi)
    return decay_bi.view(after_bti.shape)
