"""Layers of other projects, in the form that runs without their fast kernels.

Shape legend: b batch, t time, d model width, h heads, n width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.base.errors import UserError
from elman.sections.measuring import Peer


@dataclass(frozen=True)
class PeerLayer:
    """A layer to time.

    Attributes:
        module: The layer.
        path: A word or two for what computes it.
        level: ``layer``, or ``op`` for a recurrence alone.
    """

    module: nn.Module
    path: str
    level: str = "layer"


@dataclass(frozen=True)
class Sizes:
    """The sizes that peers are built with.

    Args:
        dim: Width of the layer.
        heads: Heads, where a peer has them.
        width: Width of a head.
        batch: B; used only by a recurrence alone.
        steps: T; used only by a recurrence alone.
    """

    dim: int
    heads: int
    width: int
    batch: int
    steps: int


def build_peer(name: Peer, sizes: Sizes, device: torch.device) -> PeerLayer:
    """Return a peer.

    Raises:
        UserError: its package is not installed.
    """
    with device:
        return _BUILDERS[name](sizes)


def _torch_rnn(mode: str) -> Callable[[Sizes], PeerLayer]:
    def build(sizes: Sizes) -> PeerLayer:
        module: nn.Module = getattr(nn, mode)(sizes.dim, sizes.dim, batch_first=True)
        return PeerLayer(module, "torch.nn")

    return build


def _mamba2(sizes: Sizes) -> PeerLayer:
    """transformers' Mamba2 with mamba-ssm's usual sizes; plain torch without its kernels."""
    found = _imported("mamba2_transformers", "transformers.models.mamba2", "transformers")
    expand, head_dim = 2, 64
    config = found.Mamba2Config(
        hidden_size=sizes.dim,
        num_heads=max(1, expand * sizes.dim // head_dim),
        head_dim=head_dim,
        expand=expand,
        n_groups=1,
    )
    module: nn.Module = found.modeling_mamba2.Mamba2Mixer(config, layer_idx=0)
    return PeerLayer(module, "plain path")


def _gated_delta(sizes: Sizes) -> PeerLayer:
    return PeerLayer(GatedDeltaLayer(sizes, _naive_chunk()), "naive chunk")


def _gated_delta_op(sizes: Sizes) -> PeerLayer:
    return PeerLayer(GatedDeltaOperation(sizes, _naive_chunk()), "naive chunk", "op")


def _naive_chunk() -> Callable[..., Any]:
    found = _imported(
        "gated_delta_fla", "fla.ops.gated_delta_rule.naive", "flash-linear-attention einops triton"
    )
    chunk: Callable[..., Any] = found.naive_chunk_gated_delta_rule
    return chunk


def _imported(peer: Peer, module: str, packages: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"bench.peers: {peer} needs {packages} ({error}); pip install {packages}"
        ) from None


class GatedDeltaLayer(nn.Module):
    """Projections, silu, the gated delta rule of flash-linear-attention, norm, gate, projection.

    Args:
        sizes: Width, heads and width of a head.
        rule: ``naive_chunk_gated_delta_rule``.
    """

    def __init__(self, sizes: Sizes, rule: Callable[..., Any]) -> None:
        super().__init__()
        self._rule, self._heads = rule, sizes.heads
        inner = sizes.heads * sizes.width
        self._inner = inner
        self.in_proj = nn.Linear(sizes.dim, 4 * inner + 2 * sizes.heads, bias=False)
        self.norm = nn.RMSNorm(sizes.width)
        self.out_proj = nn.Linear(inner, sizes.dim, bias=False)

    def forward(self, x_btd: Tensor) -> Tensor:
        """Return the layer's output."""
        widths = [*[self._inner] * 4, self._heads, self._heads]
        q, k, v, gate, decay, write = self.in_proj(x_btd).split(widths, dim=-1)
        q, k, v = (self._by_head(functional.silu(part)) for part in (q, k, v))
        y_bthn, _ = self._rule(
            functional.normalize(q, dim=-1),
            functional.normalize(k, dim=-1),
            v,
            functional.logsigmoid(decay),
            torch.sigmoid(write),
        )
        y_bthn = self.norm(y_bthn) * functional.silu(self._by_head(gate))
        out_btd: Tensor = self.out_proj(y_bthn.flatten(-2).to(x_btd.dtype))
        return out_btd

    def _by_head(self, part: Tensor) -> Tensor:
        return torch.unflatten(part, -1, (self._heads, -1))


class GatedDeltaOperation(nn.Module):
    """The gated delta rule of flash-linear-attention alone; its inputs are leaves.

    Args:
        sizes: Rows, steps, heads and width of a head.
        rule: ``naive_chunk_gated_delta_rule``.
    """

    def __init__(self, sizes: Sizes, rule: Callable[..., Any]) -> None:
        super().__init__()
        self._rule = rule
        bth = (sizes.batch, sizes.steps, sizes.heads)
        self.q, self.k, self.v = (nn.Parameter(torch.randn(*bth, sizes.width)) for _ in range(3))
        self.decay, self.write = (nn.Parameter(torch.rand(bth)) for _ in range(2))
        with torch.no_grad():
            self.decay.neg_()
            for part in (self.q, self.k):
                part.copy_(functional.normalize(part, dim=-1))

    def forward(self, x_btd: Tensor) -> Tensor:
        """Return the reads; ``x_btd`` is ignored."""
        y_bthn, _ = self._rule(self.q, self.k, self.v, self.decay, self.write)
        assert isinstance(y_bthn, Tensor)
        return y_bthn


_BUILDERS: dict[Peer, Callable[[Sizes], PeerLayer]] = {
    "mamba2_transformers": _mamba2,
    "gated_delta_fla": _gated_delta,
    "gated_delta_fla_op": _gated_delta_op,
    "torch_lstm": _torch_rnn("LSTM"),
    "torch_gru": _torch_rnn("GRU"),
    "torch_rnn": _torch_rnn("RNN"),
}
