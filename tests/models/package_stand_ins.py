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
    from elman.ops.gated_delta import package as fla
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
    monkeypatch.setattr(mixer, "choose_backend", lambda cell, requested, device: requested)
    return called
