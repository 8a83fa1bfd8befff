"""Matrix-state recurrences as the layers call them: dtypes, choice of implementation.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns (keys), v state rows
(values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elman.errors import UserError
from elman.ops.matrix_state import custom, interpret, reference
from elman.ops.matrix_state.plan import Plan
from elman.ops.precision import cast, no_autocast, wide_dtype
from elman.ops.uncompiled import uncompiled

REFERENCE = "reference"


def run(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor | None,
    *,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run a plan over time, from a given state to the final one.

    Gradients reach every tensor argument, through the output and the final state.

    Args:
        plan: What is computed, and where in the sources its sequences lie.
        sources_btc: Projections before their biases and activations.
        parameters: Those of ``plan.parameter_names`` by name, of ``plan.parameter_shape``.
        state_bhvn: State before the first step; None is zeros.
        backend: Name of the implementation, as chosen by ``elman.kernels.backends``.

    Returns:
        The output [B, T, heads, rows] and the state after the last step. The state and all of the
        computation are in fp32 or wider, whatever autocast says; so is the output, but for the cuda
        backend, which writes it in the sources' dtype.

    Raises:
        UserError: the backend has no kernel for this plan, or cannot build it.
    """
    dtype = wide_dtype(sources_btc[0].dtype) if state_bhvn is None else state_bhvn.dtype
    if backend == REFERENCE:
        if state_bhvn is None:
            shape = (sources_btc[0].shape[0], plan.heads, plan.rows, plan.columns)
            state_bhvn = sources_btc[0].new_zeros(shape, dtype=dtype)
        return _interpreted(plan, sources_btc, parameters, state_bhvn)
    if plan.kernel_problem:
        raise UserError(
            f"kernels.backend={backend}: {plan.kernel_problem}; use kernels.backend=reference"
        )
    narrow = sources_btc[0].dtype if backend == "cuda" else dtype
    sources_btc = [_adjacent(cast(source_btc, narrow)) for source_btc in sources_btc]
    given = [cast(parameters[name], dtype) for name in plan.parameter_names]
    tensors = [*sources_btc, *given, *([] if state_bhvn is None else [state_bhvn])]
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return custom.run(plan.text, backend, keep, sources_btc, given, state_bhvn)


def _adjacent(source_btc: Tensor) -> Tensor:
    """Return a source with its channels adjacent, which kernels need.

    A convolution's output has them apart. Copied here, once: the backward pass has the copy.
    """
    return source_btc if source_btc.stride(-1) == 1 else source_btc.contiguous()


@uncompiled
def _interpreted(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor,
) -> tuple[Tensor, Tensor]:
    with no_autocast(state_bhvn):
        return interpret.run(plan, sources_btc, parameters, state_bhvn)


_RECURRENCE = {REFERENCE: reference.recurrence}


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
    """Run one of the matrix-state steps over time, without a plan: E63m, and cells under trial.

    With S [v, n] per head: ``S' = f(step(S, r, inputs))``, ``y = S' q``, where r = S k or, given
    ``read``, S read. Gradients reach every sequence, every parameter and the first state.

    Args:
        step: Name in :data:`elman.ops.matrix_state.steps.STEPS`.
        sequences: ``q`` and what the step takes, over columns [b, t, h, n] or rows [b, t, h, v].
        parameters: What the step takes that does not change over time.
        state_bhvn: State before the first step.
        nonlinearity: f, a name in :data:`elman.ops.matrix_state.steps.NONLINEARITIES`.
        backend: Name of the implementation; ``reference`` alone knows steps by name.

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
