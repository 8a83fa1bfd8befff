"""The decay of the matrix states: the factor by which a step multiplies its old state.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns (keys), v state rows
(values), x rows or columns or 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.precision import no_autocast
from elman.ops.common.scan import states_before
from elman.ops.common.slices import Slice
from elman.ops.matrix_state.op import run
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.reference import first_state, step_call

# The sequences of a step that multiply its old state; the row of the delta rule scales its read.
_FACTORS = {
    "decayed": ("row", "column", "decay"),
    "delta": ("decay",),
    "value_gated": ("row",),
    "value_gated_inverse": ("row",),
}


def decays(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor | None,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> Tensor | None:
    """Return the decay of each head in all steps, before any nonlinearity of the new state.

    What a delta rule erases along its key is no decay. The factors of E74's erase and write differ
    in every entry of the state.

    Args:
        plan: As for :func:`elman.ops.matrix_state.op.run`, and so are all others.
        sources_btc: Projections before their biases and activations.
        parameters: Those of ``plan.parameter_names``.
        state_bhvn: State before the first step; None is zeros.
        backend: Name of the implementation, which gates that read the state need.
        resets_bt: Whether the state of a row is zero before a step.

    Returns:
        Factors [B or 1, T or 1, h, x] in fp32 or wider, of rows, of columns or of whole heads.
        Where they differ in rows and columns, those of the rows, as means over the columns. None:
        the step has no decay.
    """
    first_bhvn = first_state(plan, sources_btc[0]) if state_bhvn is None else state_bhvn
    with no_autocast(first_bhvn):
        inputs, call = step_call(plan, sources_btc, parameters, first_bhvn.dtype)
    step = call.step or plan.cell
    if step == "erase_write":
        return 1 - call.sequences["erase"] * inputs.roles["k"].mean(dim=-1, keepdim=True)
    if step == "read_gated":
        reads_bthv = _reads(plan, sources_btc, parameters, first_bhvn, backend, resets_bt)
        return torch.sigmoid(call.sequences["logit"] + call.parameters["slope"] * reads_bthv)
    given = {**call.parameters, **call.sequences}
    factors = [given[name] for name in _FACTORS.get(step, ()) if name in given]
    if not factors:
        return None
    row_bthx, *columns = factors
    for column_bthn in columns:
        row_bthx = row_bthx * column_bthn.mean(dim=-1, keepdim=True)
    return row_bthx if row_bthx.ndim == 4 else row_bthx[None, None]


def _reads(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    first_bhvn: Tensor,
    backend: str,
    resets_bt: Tensor | None,
) -> Tensor:
    """Return S k of the state before each step; no activation may stand behind k.

    It is what a query that is the key of the next step reads of the state after a step.
    """
    assert (plan.k_act, plan.k_unit, plan.q_act, plan.q_unit) == ("none", False, "none", False)
    keys = dict(plan.roles)["k"]
    width = plan.heads * plan.columns
    keys_btc = sources_btc[keys.source].narrow(-1, keys.start, width)
    next_keys_btc = functional.pad(keys_btc[:, 1:], (0, 0, 0, 1))
    roles = {**dict(plan.roles), "q": Slice(len(sources_btc), 0)}
    reading = replace(plan, roles=tuple(roles.items()), self_gate=False)
    reads_bthv, _ = run(
        reading,
        [*sources_btc, next_keys_btc],
        parameters,
        first_bhvn,
        backend=backend,
        resets_bt=resets_bt,
    )
    first_key_bhn = keys_btc[:, 0].to(first_bhvn.dtype).unflatten(-1, (plan.heads, -1))
    first_read_bhv = (first_bhvn @ first_key_bhn.unsqueeze(-1)).squeeze(-1)
    return states_before(reads_bthv, first_read_bhv, resets_bt)
