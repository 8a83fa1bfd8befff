"""The packages of ``kernels.backend=flash_qla`` as loops over time, from their documentation.

``chunk_gated_delta_rule`` has the signature of flash-qla 0.1.2, ``l2norm`` that of
flash-linear-attention 0.6.0. The recurrence is written here once more, on states [b, h, k, v],
which is the package's own layout.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from elman.ops.gated_delta import flash_qla

WIDTH = 128


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    state_v_first: bool = False,
    auto_cp: bool = True,
    enable_fwd_cp_cache: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """q, k, v [b, t, h, 128]; g in log space and beta [b, t, h]; states [b, h, k, v] in fp32."""
    assert q.dtype == k.dtype == v.dtype
    assert q.shape[-1] == v.shape[-1] == WIDTH
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    assert g.dtype == beta.dtype == wide
    assert cu_seqlens is None
    assert not head_first
    assert not use_qk_l2norm_in_kernel
    assert not auto_cp, "rows would be cut into pieces"
    batch, steps, heads, keys = q.shape
    scale = keys**-0.5 if scale is None else scale
    if initial_state is None:
        state = torch.zeros(batch, heads, keys, v.shape[3], dtype=wide)
    else:
        assert initial_state.dtype == wide
        state = initial_state.mT if state_v_first else initial_state
    reads = []
    for t in range(steps):
        state = state * g[:, t, :, None, None].exp()
        key, query = k[:, t].to(wide), q[:, t].to(wide)
        held = torch.einsum("bhk,bhkv->bhv", key, state)
        error = beta[:, t, :, None] * (v[:, t].to(wide) - held)
        state = state + key.unsqueeze(-1) * error.unsqueeze(-2)
        reads.append(scale * torch.einsum("bhk,bhkv->bhv", query, state))
    last = state.mT if state_v_first else state
    return torch.stack(reads, 1).to(q.dtype), last.contiguous() if output_final_state else None


def l2norm(x: Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> Tensor:
    """x / sqrt(|x|^2 + eps), in the dtype of x."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    return (wide / (wide.square().sum(-1, keepdim=True) + eps).sqrt()).to(output_dtype or x.dtype)


def install(monkeypatch: Any, *dtypes: torch.dtype) -> list[dict[str, Any]]:
    """Put both packages where ``import`` finds them; return the arguments of the rule's calls.

    Args:
        monkeypatch: Takes it back.
        dtypes: Dtypes that are let through beside those of the package.
    """
    called: list[dict[str, Any]] = []

    def rule(**named: Any) -> Any:
        called.append(named)
        return chunk_gated_delta_rule(**named)

    names = ("flash_qla", "fla", "fla.ops", "fla.modules.norm.l2norm")
    modules = {name: ModuleType(name) for name in names}
    vars(modules["flash_qla"])["chunk_gated_delta_rule"] = rule
    vars(modules["fla.modules.norm.l2norm"])["l2norm"] = l2norm
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    # Modules that are kept for good would outlive this test.
    for kept in ("_rule", "_norm"):
        monkeypatch.setattr(flash_qla, kept, getattr(flash_qla, kept).__wrapped__)
    monkeypatch.setattr(flash_qla, "_NARROW", (*flash_qla._NARROW, *dtypes))
    return called
