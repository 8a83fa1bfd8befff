"""The matrix-state engine as layers call it: checks, dtypes, then the chosen backend.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns (keys), v state rows
(values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.uncompiled import uncompiled
from elman.ops.common.checks import (
    check_resets,
    check_sequences,
    check_state,
    empty_results,
    is_empty,
)
from elman.ops.common.precision import no_autocast
from elman.ops.matrix_state.backends import BACKENDS
from elman.ops.matrix_state.custom_op import KERNELS, check_call
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.reference import first_state
from elman.ops.matrix_state.reference import recurrence as _by_step


def run(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor | None,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a plan over time, from a given state to the final one.

    Gradients reach every tensor argument, through the output and the final state.

    Args:
        plan: What is computed, and where in the sources its sequences lie.
        sources_btc: Projections before their biases and activations.
        parameters: Those of ``plan.parameter_names`` by name, of ``plan.parameter_shape``.
        state_bhvn: State before the first step; None is zeros.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.
        resets_bt: True where the state of a row before a step is zero, whatever came before it:
            no gradient passes there. None is nowhere.

    Returns:
        The output [B, T, heads, rows] and the state after the last step. The state and all of the
        computation are in fp32 or wider, whatever autocast says. So is the output, except for the
        triton and cuda backends, which write it in the sources' dtype.

    Raises:
        ValueError: a tensor has another shape, dtype or device than the plan asks for.
        UserError: the backend has no kernel for this plan, or cannot build it.
    """
    if backend in KERNELS and (problem := KERNELS[backend].problem(plan)):
        raise UserError(f"kernels.backend={backend}: {problem}; use kernels.backend=reference")
    chosen = BACKENDS[backend]
    check_call(plan, sources_btc, parameters, state_bhvn, resets_bt)
    source_btc = sources_btc[0]
    if is_empty(source_btc):
        first_bhvn = first_state(plan, source_btc) if state_bhvn is None else state_bhvn
        shape = (*source_btc.shape[:2], plan.heads, plan.rows)
        io = chosen.io_dtype(source_btc.dtype)
        read = (*sources_btc, *parameters.values())
        out_bthv, (last_bhvn,) = empty_results(shape, io, [first_bhvn], read)
        return out_bthv, last_bhvn
    return chosen.run(plan, sources_btc, parameters, state_bhvn, resets_bt)


@uncompiled
def recurrence(
    step: str,
    sequences: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor,
    *,
    nonlinearity: str,
    backend: str,
    resets_bt: Tensor | None = None,
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
        backend: ``reference``, which alone runs steps without a plan.
        resets_bt: As for :func:`run`.

    Returns:
        Reads y_bthv and the state after the last step. Both, and all of the computation, have the
        dtype of ``state_bhvn`` (fp32 or wider), whatever autocast says.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
    """
    assert backend == "reference", backend
    q_bthn, dtype, of = sequences["q"], state_bhvn.dtype, f"matrix_state {step}"
    check_sequences(of, list(sequences.values()))
    check_resets(of, resets_bt, q_bthn)
    batch, steps, heads, columns = q_bthn.shape
    check_state("state", of, state_bhvn, (batch, heads, None, columns), q_bthn)
    if is_empty(q_bthn):
        read = (*sequences.values(), *parameters.values())
        shape = (batch, steps, heads, state_bhvn.shape[2])
        y_bthv, (last_bhvn,) = empty_results(shape, dtype, [state_bhvn], read)
        return y_bthv, last_bhvn
    with no_autocast(state_bhvn):
        return _by_step(
            step,
            {name: sequence.to(dtype) for name, sequence in sequences.items()},
            {name: parameter.to(dtype) for name, parameter in parameters.items()},
            state_bhvn,
            nonlinearity,
            resets_bt,
        )
