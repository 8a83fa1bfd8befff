"""The decay of the channel recurrences: the factor by which a step multiplies its old state.

Shape legend: b batch, t time, c channels of the state, s all channels of a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from elman.ops.channel.op import run
from elman.ops.channel.plan import Plan
from elman.ops.channel.reference import step_inputs
from elman.ops.channel.steps import NONLINEARITIES, STEPS
from elman.ops.common.precision import no_autocast
from elman.ops.common.scan import states_before


def _of_e74(*updates: str) -> set[str]:
    return {f"e74_{update}_{word}" for update in updates for word in NONLINEARITIES}


# The steps that give the loop over time their decay first.
_FIRST = {"e61", "e61_tanh", "e61_additive", "tied", "e62", "e62_decay", "e64", "e65"}
_FIRST |= {"e68", "e68_inverse", "mingru", "minlstm"} | _of_e74("delta", "ema")
_CONSTANT = {"e34"} | _of_e74("simple")
_READ_STATE = {"e67"} | _of_e74("retain", "state")


def decays(
    plan: Plan,
    sources_bts: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> Tensor | None:
    """Return the decay of each channel in all steps, before any nonlinearity of the new state.

    A candidate that reads the old state, as in E64, is a write and does not count.

    Args:
        plan: As for :func:`elman.ops.channel.op.run`, and so are all others.
        sources_bts: Projections before their biases and activations.
        parameters: The step's other tensors by name.
        state_bc: State before the first step.
        backend: Name of the implementation, which gates that read the state need.
        resets_bt: Whether the state before a step is zero.

    Returns:
        Factors [B or 1, T or 1, c] in the dtype of the state. None: the step adds to its old
        state, as E59 does, or is one of another package.
    """
    step = plan.step.removesuffix("_parallel")
    if step not in _FIRST | _CONSTANT | _READ_STATE:
        return None
    before_btc = None
    if step in _READ_STATE:
        states = replace(plan, query=None, self_gate=False)
        after_btc, _ = run(
            states, sources_bts, parameters, state_bc, backend=backend, resets_bt=resets_bt
        )
        before_btc = states_before(after_btc, state_bc, resets_bt)
    with no_autocast(state_bc):
        given = {name: one.to(state_bc.dtype) for name, one in parameters.items()}
        wide_bts = [source.to(state_bc.dtype) for source in sources_bts]
        inputs = step_inputs(plan, wide_bts, state_bc.shape[-1])
        return _of_step(step, inputs, given, before_btc)


def _of_step(
    step: str,
    inputs: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    before_btc: Tensor | None,
) -> Tensor:
    """Return the decay of a step that has one."""
    if step == "e34":
        return parameters["coefficient"].view(1, 1, -1)
    if step in _CONSTANT:
        return torch.sigmoid(parameters["retain_logit"]).view(1, 1, -1)
    first_btc = STEPS[step](**inputs, **parameters)[0][0]
    if before_btc is None:
        return first_btc
    if step == "e67":
        return torch.sigmoid(first_btc + parameters["coefficient"] * before_btc)
    gate_btc = torch.sigmoid(parameters["gate_bias"] + parameters["gate_scale"] * before_btc)
    ones_btc = torch.ones_like(first_btc)
    if step.startswith("e74_retain"):
        return torch.lerp(first_btc, ones_btc, gate_btc)
    return torch.lerp(ones_btc, first_btc, gate_btc)
