"""Functions with the signatures of mamba-ssm 2.3.2 and flash-linear-attention 0.6.0, as loops.

They do what the packages' own documentation says of the arguments that the layers pass, and take
no others, so that a layer on the backend ``triton`` can be checked without a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.gated_delta import reference as gated_delta
from elman.ops.ssd import reference as ssd


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk_size: int,
    *,
    D: Tensor,
    dt_bias: Tensor,
    initial_states: Tensor | None,
    dt_softplus: bool,
    return_final_states: bool,
) -> tuple[Tensor, Tensor]:
    """x [b, l, h, p], dt [b, l, h], a [h], b and c [b, l, g, n], states [b, h, p, n]."""
    assert dt_softplus
    assert return_final_states
    assert chunk_size >= 16
    step = functional.softplus(dt + dt_bias)
    if initial_states is None:
        initial_states = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[3])
    y, final = ssd.ssd(x * step.unsqueeze(-1), a * step, b, c, initial_states)
    return y + D[:, None] * x, final


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: None,
    *,
    z: Tensor,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
) -> Tensor:
    """RMSNorm of x silu(z) in groups of ``group_size`` channels."""
    assert bias is None
    assert not norm_before_gate
    gated = (x * functional.silu(z)).unflatten(-1, (-1, group_size))
    scale = (gated.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (gated * scale).flatten(-2) * weight


def chunk_gated_delta_rule(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    state_v_first: bool,
    use_gate_in_kernel: bool,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """q and k [b, t, h, k], v [b, t, h, v], raw gates [b, t, h], states [b, h, v, k]."""
    assert output_final_state
    assert use_qk_l2norm_in_kernel
    assert use_beta_sigmoid_in_kernel
    assert state_v_first
    assert use_gate_in_kernel
    if initial_state is None:
        initial_state = q.new_zeros(q.shape[0], q.shape[2], v.shape[3], q.shape[3])
    q, k = (one / (one.square().sum(-1, keepdim=True) + 1e-6).sqrt() for one in (q, k))
    return gated_delta.gated_delta_rule(
        q * q.shape[-1] ** -0.5,
        k,
        v,
        -A_log.exp() * functional.softplus(g + dt_bias),
        beta.sigmoid() * (2 if allow_neg_eigval else 1),
        initial_state,
    )


def chunk_kda(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
    initial_state: Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    state_v_first: bool,
) -> tuple[Tensor, Tensor]:
    """As the gated delta rule with raw gates [b, t, h, k]; dt_bias [h k], states [b, h, v, k]."""
    assert output_final_state
    assert use_qk_l2norm_in_kernel
    assert use_gate_in_kernel
    assert use_beta_sigmoid_in_kernel
    assert state_v_first
    log = -A_log.exp()[:, None] * functional.softplus(g + dt_bias.view(g.shape[2:]))
    write = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    state = None if initial_state is None else initial_state.mT
    gated = write.unsqueeze(-1)
    y, last = _keys_first(q, k, gated * v, log, gated.expand_as(k), state)
    return y, last.mT


def chunk_gdn2(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    initial_state: Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
) -> tuple[Tensor, Tensor]:
    """Log decays g, erase gate b [b, t, h, k], write gate w [b, t, h, v], states [b, h, k, v]."""
    assert output_final_state
    assert use_qk_l2norm_in_kernel
    return _keys_first(q, k, w * v, g, b, initial_state)


def _keys_first(
    q: Tensor, k: Tensor, v: Tensor, log: Tensor, erase: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """S [k, v]: S' = (I - k (erase k)^T) diag(exp(log)) S + k v^T, y = q^T S'."""
    q, k = (one / (one.square().sum(-1, keepdim=True) + 1e-6).sqrt() for one in (q, k))
    if state is None:
        state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    reads = []
    for t in range(q.shape[1]):
        state = state * log[:, t].exp().unsqueeze(-1)
        read = ((erase[:, t] * k[:, t]).unsqueeze(-1) * state).sum(-2)
        state = state + k[:, t].unsqueeze(-1) * (v[:, t] - read).unsqueeze(-2)
        reads.append((q[:, t].unsqueeze(-1) * state).sum(-2) * q.shape[-1] ** -0.5)
    return torch.stack(reads, 1), state


def chunk_gated_delta_product(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    initial_state: Tensor | None,
    output_final_state: bool,
    num_householder: int,
    use_qk_l2norm_in_kernel: bool,
) -> tuple[Tensor, Tensor]:
    """q [b, t, h, k]; k, v and beta have n steps for each of q; states [b, h, k, v]."""
    assert output_final_state
    assert use_qk_l2norm_in_kernel
    n, shape = num_householder, (q.shape[0], q.shape[1], num_householder, *q.shape[2:])
    log = q.new_zeros(shape[:4])
    if g is not None:
        log[:, :, 0] = g
    asked = q.new_zeros(shape)
    asked[:, :, -1] = q
    write = beta.unsqueeze(-1)
    y, last = _keys_first(
        asked.flatten(1, 2),
        k,
        write * v,
        log.flatten(1, 2).unsqueeze(-1).expand_as(k),
        write.expand_as(k),
        initial_state,
    )
    return y[:, n - 1 :: n], last


def chunk_rwkv7(
    *,
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float,
    initial_state: Tensor | None,
    output_final_state: bool,
    safe_gate: bool,
    lower_bound: float,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """S [k, v]: S' = diag(exp(w)) S + b (a^T S) + k v^T, o = r^T S'."""
    assert output_final_state
    assert safe_gate
    assert (w >= lower_bound).all()
    assert (scale, chunk_size) == (1.0, 64)
    state = initial_state
    if state is None:
        state = r.new_zeros(r.shape[0], r.shape[2], r.shape[3], v.shape[3])
    reads = []
    for t in range(r.shape[1]):
        read = (a[:, t].unsqueeze(-1) * state).sum(-2)
        state = state * w[:, t].exp().unsqueeze(-1) + b[:, t].unsqueeze(-1) * read.unsqueeze(-2)
        state = state + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        reads.append((r[:, t].unsqueeze(-1) * state).sum(-2))
    return torch.stack(reads, 1), state


def fused_addcmul_rwkv7(
    hidden_states: Tensor, delta: Tensor, *shares: Tensor
) -> tuple[Tensor, ...]:
    """hidden_states + delta * share, for r, w, k, v, a and g."""
    assert len(shares) == 6
    return tuple(hidden_states + delta * share for share in shares)


def fused_k_rwkv7(k: Tensor, a: Tensor, ka: Tensor) -> Tensor:
    """Return k (1 + (a - 1) ka)."""
    return k * (1 + (a - 1) * ka)


def gate_output_correction(
    o: Tensor, r: Tensor, k: Tensor, r_k: Tensor, v: Tensor, g: Tensor
) -> Tensor:
    """Of o and g [b, t, h k]; r, k and v [b, t, h, k]."""
    return (o + ((r * k * r_k).sum(-1, keepdim=True) * v).view(o.shape)) * g


def rms_norm_gated(
    x: Tensor, g: Tensor, weight: Tensor, bias: None, activation: str, *, eps: float
) -> Tensor:
    """RMSNorm of x over the last axis, times an activation of g."""
    assert bias is None
    scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return x * scale * weight * {"silu": functional.silu, "sigmoid": torch.sigmoid}[activation](g)


def install(monkeypatch: Any) -> list[str]:
    """Make the layers' backend ``triton`` call these; return the names of what was called."""
    from elman.models.cells.common import mixer
    from elman.ops.channel_delta import package as channel_delta
    from elman.ops.channel_delta import rwkv7_mix
    from elman.ops.gated_delta import package as fla
    from elman.ops.gated_delta import product
    from elman.ops.ssd import package as mamba

    called: list[str] = []

    def noted(*functions: Any) -> Any:
        def one(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                called.append(function.__name__)
                return function(*args, **kwargs)

            return call

        return SimpleNamespace(**{f.__name__: one(f) for f in functions})

    monkeypatch.setattr(mamba, "_kernels", lambda: noted(mamba_chunk_scan_combined))
    monkeypatch.setattr(mamba, "_norm", lambda: noted(rmsnorm_fn))
    monkeypatch.setattr(fla, "_rule", lambda: noted(chunk_gated_delta_rule))
    monkeypatch.setattr(fla, "_norm", lambda: noted(rms_norm_gated))
    rules = noted(chunk_kda, chunk_gdn2, chunk_rwkv7)
    monkeypatch.setattr(channel_delta, "_kernels", lambda name: rules)
    monkeypatch.setattr(product, "_kernels", lambda: noted(chunk_gated_delta_product))
    around = noted(fused_addcmul_rwkv7, fused_k_rwkv7, gate_output_correction)
    monkeypatch.setattr(rwkv7_mix, "_module", lambda name: around)
    monkeypatch.setattr(mixer, "choose_backend", lambda cell, requested, device: requested)
    return called
