"""Several delta rules in each step, as the layer calls them: checks and both implementations.

Shape legend: b batch, t time, s = n t delta rules, h heads, k key width of a head, v value width of
a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.base.errors import UserError
from elman.kernels.uncompiled import uncompiled
from elman.ops.common.backend import Backend
from elman.ops.common.checks import check_sequences, check_state, empty_results, is_empty
from elman.ops.common.packages import package_kernels
from elman.ops.common.precision import no_autocast, wide_dtype
from elman.ops.gated_delta import chunked

Run = Callable[
    [Tensor, Tensor, Tensor, Tensor | None, Tensor, int, Tensor | None], tuple[Tensor, Tensor]
]
_EPS = 1e-6
"""Added by flash-linear-attention to the squared length of a key or a query."""


@uncompiled
def gated_delta_product(
    q_bthk: Tensor,
    k_bshk: Tensor,
    v_bshv: Tensor,
    log_decay_bth: Tensor | None,
    write_bsh: Tensor,
    *,
    rules: int,
    state_bhvk: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Run ``rules`` delta rules in each step of time, from a given state to the final one.

    In every step S is multiplied by exp(log_decay), then ``S <- S + w_j (v_j - S k_j) k_j^T`` for
    each rule j, then ``y = S q`` (Siems et al. 2025, DeltaProduct, arXiv 2502.10297, section 4). q
    and k are divided by sqrt(|.|^2 + 1e-6), q by sqrt(k) besides. Gradients reach every tensor.

    Args:
        q_bthk: Queries.
        k_bshk: Keys; those of one step lie together.
        v_bshv: Values.
        log_decay_bth: Logarithm of the decay, fp32 or wider; None is no decay.
        write_bsh: Strength of each write.
        rules: Delta rules in a step, s = rules * t.
        state_bhvk: State before the first step, fp32 or wider; None starts a sequence.
        backend: Name of the implementation, as chosen by ``elman.models.backends``.

    Returns:
        Reads y_bthv and the state after the last step, in fp32 or wider; the reads of ``triton``
        have the dtype of ``q``.

    Raises:
        ValueError: the state or a sequence has another shape, dtype or device than the rest.
    """
    of, chosen = "gated_delta_product", BACKENDS[backend]
    check_sequences(of, (q_bthk,) if log_decay_bth is None else (q_bthk, log_decay_bth))
    check_sequences(of, (k_bshk, v_bshv, write_bsh))
    (batch, steps, heads, keys), values = q_bthk.shape, v_bshv.shape[3]
    shape = (batch, heads, values, keys)
    if state_bhvk is not None:
        check_state("state", of, state_bhvk, shape, q_bthk)
    if is_empty(q_bthk):
        wide = wide_dtype(q_bthk.dtype)
        states = [q_bthk.new_zeros(shape, dtype=wide) if state_bhvk is None else state_bhvk]
        read = (q_bthk, k_bshk, v_bshv, log_decay_bth, write_bsh)
        made = (batch, steps, heads, values)
        y_bthv, (last_bhvk,) = empty_results(made, chosen.io_dtype(q_bthk.dtype), states, read)
        return y_bthv, last_bhvk
    with no_autocast(q_bthk):
        return chosen.run(q_bthk, k_bshk, v_bshv, log_decay_bth, write_bsh, rules, state_bhvk)


def _chunked(
    q_bthk: Tensor,
    k_bshk: Tensor,
    v_bshv: Tensor,
    log_decay_bth: Tensor | None,
    write_bsh: Tensor,
    rules: int,
    state_bhvk: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run s steps of one rule: the decay in the first of each n, the read in the last."""
    dtype = wide_dtype(q_bthk.dtype)
    batch, steps, heads, keys = q_bthk.shape
    if state_bhvk is None:
        state_bhvk = q_bthk.new_zeros(batch, heads, v_bshv.shape[3], keys, dtype=dtype)
    if log_decay_bth is None:
        log_decay_bth = q_bthk.new_zeros(batch, steps, heads, dtype=dtype)
    q_bthk = _unit(q_bthk.to(dtype)) * keys**-0.5
    log_bsh = functional.pad(log_decay_bth.to(dtype).unsqueeze(2), (0, 0, 0, rules - 1))
    y_bshv, state_bhvk = chunked.gated_delta_rule(
        functional.pad(q_bthk.unsqueeze(2), (0, 0, 0, 0, rules - 1, 0)).flatten(1, 2),
        _unit(k_bshk.to(dtype)),
        v_bshv.to(dtype),
        log_bsh.flatten(1, 2),
        write_bsh.to(dtype),
        state_bhvk,
    )
    return y_bshv[:, rules - 1 :: rules], state_bhvk


def _unit(x_bthk: Tensor) -> Tensor:
    return x_bthk * (x_bthk.square().sum(-1, keepdim=True) + _EPS).rsqrt()


def _package(
    q_bthk: Tensor,
    k_bshk: Tensor,
    v_bshv: Tensor,
    log_decay_bth: Tensor | None,
    write_bsh: Tensor,
    rules: int,
    state_bhvk: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Call the package as its own layer does; it keeps the state as [b, h, k, v]."""
    if q_bthk.dtype == torch.float32:
        raise UserError(
            "model.cell=deltaproduct on a GPU: the package's kernels take no fp32; "
            "use train.precision=bf16, or kernels.backend=reference with baseline.allow_slow=true"
        )
    y_bthv, last_bhkv = _kernels().chunk_gated_delta_product(
        q=q_bthk,
        k=k_bshk,
        v=v_bshv,
        g=log_decay_bth,
        beta=write_bsh,
        initial_state=None if state_bhvk is None else state_bhvk.mT.contiguous(),
        output_final_state=True,
        num_householder=rules,
        use_qk_l2norm_in_kernel=True,
    )
    return y_bthv, last_bhkv.mT


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_chunked),
    "triton": Backend(_package, narrow=True),
}
"""By the name that ``kernels.backend`` has."""


@cache
def _kernels() -> Any:
    return package_kernels("flash-linear-attention", "ops.gated_delta_product")
