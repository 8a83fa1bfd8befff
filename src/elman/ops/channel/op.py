"""The channel engine as layers call it: checks, dtypes, then the chosen backend.

Shape legend: b batch, t time, c channels of the state, s all channels of a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from elman.ops.channel.backends import BACKENDS
from elman.ops.channel.custom_op import check_call
from elman.ops.channel.plan import Plan
from elman.ops.common.checks import empty_results, is_empty
from elman.ops.common.precision import cast
from elman.ops.common.slices import Slice


def run(
    plan: Plan,
    sources_bts: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a recurrence without a matrix over time, from a given state to the final one.

    Every (batch, channel) is independent. The exceptions are the steps with a norm over all
    channels: ``e59``, ``e59b``, ``*_rmsnorm`` and ``*_frobnorm``.
    Gradients reach every tensor argument.

    Args:
        plan: What is computed, and where in the sources its sequences lie.
        sources_bts: Projections before their biases and activations.
        parameters: The step's other tensors by name: [channels], or [1] where the step says so.
        state_bc: State before the first step.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.
        resets_bt: Whether the state before a step is zero, bool; None: it never is. No gradient
            flows through a reset.

    Returns:
        The output y_btc (the states, or what the plan makes of them) and the last state. The state
        and all of the computation have the dtype of ``state_bc`` (fp32 or wider), whatever autocast
        says. The output has it, too, except for the cuda backend, which writes the sources' dtype.

    Raises:
        ValueError: a tensor has another shape, dtype or device than the plan asks for.
        UserError: the backend has no kernel for the plan's step or the state's dtype, or none for
            so many channels.
    """
    chosen = BACKENDS[backend]
    check_call(plan, sources_bts, parameters, state_bc, resets_bt)
    io = chosen.io_dtype(sources_bts[0].dtype)
    if is_empty(sources_bts[0]):
        shape = (*sources_bts[0].shape[:2], state_bc.shape[1])
        read = (*sources_bts, *parameters.values())
        y_btc, (last_bc,) = empty_results(shape, io, [state_bc], read)
        return y_btc, last_bc
    sources_bts = [cast(source_bts, io) for source_bts in sources_bts]
    parameters = {name: cast(one, state_bc.dtype) for name, one in parameters.items()}
    return chosen.run(plan, sources_bts, parameters, state_bc, resets_bt)


def channel(
    step: str,
    inputs: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a step over sequences that are tensors of their own; otherwise as :func:`run`.

    Returns all states and the last one.

    Args:
        step: Name of the step; its equation stands in :mod:`elman.ops.channel.steps`.
        inputs: The step's sequences by name, each [B, T, channels].
        parameters: As for :func:`run`.
        state_bc: As for :func:`run`.
        backend: As for :func:`run`.
        resets_bt: As for :func:`run`.
    """
    places = tuple((name, Slice(n, 0)) for n, name in enumerate(inputs))
    plan = Plan(step, places)
    sources = list(inputs.values())
    return run(plan, sources, parameters, state_bc, backend=backend, resets_bt=resets_bt)
