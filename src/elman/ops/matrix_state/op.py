"""The door of the matrix-state engine: it checks a call, sets the dtypes and runs the backend.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns (keys), v state rows
(values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn import functional

from elman.base.errors import UserError
from elman.ops.common.door import (
    check_resets,
    check_sequences,
    check_state,
    empty_results,
    is_empty,
)
from elman.ops.common.precision import no_autocast, wide_dtype
from elman.ops.common.transforms import keeps
from elman.ops.common.uncompiled import uncompiled
from elman.ops.matrix_state import row_mix, slots
from elman.ops.matrix_state.backends import BACKENDS
from elman.ops.matrix_state.custom_op import KERNELS, check_call
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.reference import first_state
from elman.ops.matrix_state.reference import recurrence as _by_step
from elman.ops.matrix_state.triton.row_mix_launch import NAMES


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


def slot_recurrence(
    sequences: Mapping[str, Tensor],
    mix_nn: Tensor,
    state_bhni: Tensor,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run E63m over time, whose slots all read one another.

    S' = a > S + (1 - a) > v k^T, v = tanh(input + mix tanh(S k)), y = S' q (matrix-state
    specification 4). Gradients reach every tensor argument.

    Args:
        sequences: ``k`` and ``q`` [B, T, 1, columns], ``input`` and ``row`` (a) [B, T, 1, slots].
        mix_nn: W_r [slots, slots].
        state_bhni: State before the first step [B, 1, slots, columns].
        backend: ``reference``, ``cpu`` or ``cuda``.
        resets_bt: As for :func:`run`.

    Returns:
        As of :func:`recurrence`.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
        UserError: the backend cannot read the tensors' device or dtype.
    """
    k_bthi = sequences["k"]
    batch, _, _, columns = k_bthi.shape
    if backend == "reference" or is_empty(k_bthi):
        mix = {"mix": mix_nn.unsqueeze(0)}
        return recurrence(
            "e63m",
            sequences,
            mix,
            state_bhni,
            nonlinearity="linear",
            backend="reference",
            resets_bt=resets_bt,
        )
    check_sequences("matrix_state e63m", list(sequences.values()))
    check_resets("matrix_state e63m", resets_bt, k_bthi)
    shape = (batch, 1, mix_nn.shape[0], columns)
    check_state("state", "matrix_state e63m", state_bhni, shape, k_bthi)
    dtype = state_bhni.dtype
    k, q, value, row = (sequences[name].squeeze(2).to(dtype) for name in ("k", "q", "input", "row"))
    first_bni = state_bhni.squeeze(1)
    call = slots.Call(backend, k, q, value, row, mix_nn.to(dtype), first_bni, resets_bt)
    slots.check_call(call)
    y_btn, last_bni = slots.SLOTS.run(call)
    return y_btn.unsqueeze(2), last_bni.unsqueeze(1)


def row_mix_recurrence(
    sequences: Mapping[str, Tensor],
    mix_huv: Tensor,
    residual_hv: Tensor,
    state_bhvn: Tensor,
    *,
    backend: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run M2RNN over time, whose matrix mixes all rows of a state.

    S' = f S + (1 - f) tanh(W^T S + v k^T), out = (S' q + D v) silu(g) (matrix-state specification
    13). Gradients reach every tensor argument.

    Args:
        sequences: ``q`` and ``k`` [B, T, heads, columns], ``v`` and ``gate`` (g) [B, T, heads,
            rows], ``decay`` (f) [B, T, heads] in fp32 or wider.
        mix_huv: W [heads, rows, rows].
        residual_hv: D [heads, rows].
        state_bhvn: State before the first step.
        backend: ``reference`` or ``triton``.
        resets_bt: As for :func:`run`.

    Returns:
        The output [B, T, heads, rows] and the state after the last step, in fp32 or wider; triton
        writes the output in the gate's dtype.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
        UserError: Triton does not run on the tensors' device or dtype.
    """
    v_bthv, gate_bthv = sequences["v"], sequences["gate"]
    if backend == "reference" or is_empty(v_bthv):
        inputs = {name: sequences[name] for name in ("q", "k", "v")}
        inputs["decay"] = sequences["decay"].unsqueeze(-1)
        y_bthv, last_bhvn = recurrence(
            "m2rnn",
            inputs,
            {"mixes": mix_huv},
            state_bhvn,
            nonlinearity="linear",
            backend="reference",
            resets_bt=resets_bt,
        )
        wide = state_bhvn.dtype
        y_bthv = y_bthv + residual_hv.to(wide) * v_bthv.to(wide)
        return y_bthv * functional.silu(gate_bthv.to(wide)), last_bhvn
    wide = wide_dtype(v_bthv.dtype)
    q, k, v, decay, gate = (sequences[name] for name in NAMES)
    tensors = (q, k, v, decay, gate, mix_huv.to(wide), residual_hv.to(wide), state_bhvn)
    call = row_mix.Call(keeps(tensors), *tensors, resets_bt)
    row_mix.check_call(call)
    out_bthv, last_bhvn = row_mix.ROW_MIX.run(call)
    return out_bthv, last_bhvn


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
