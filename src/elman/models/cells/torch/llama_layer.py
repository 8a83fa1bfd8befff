"""Layer llama: attention and SwiGLU, each after an RMSNorm and added to the residual stream.

Shape legend: b batch, t time, s time with what was carried, d model width, h heads, c channels of a
head, a = h c channels of all heads, m width of the SwiGLU; kv is keys beside values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.blocks.norm import RMSNorm
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.declaration import Value
from elman.models.cells.torch.llama import CELL
from elman.models.state import State
from elman.ops.attention import causal_attention
from elman.ops.common.door import Shape
from elman.ops.linear import linear


class Llama(Mixer):
    """a = attention(norm x), y = a + W_2 (silu(W_1 n) o W_3 n), n = norm(x + a); x the stream.

    The pre-norm transformer block, x + y in all (lm-and-training specification 5.3, without the
    second norm and residual that the original laid around it). RMSNorms are the language model's,
    eps 1e-5. No biases. State: ``past`` [B, S, 2 a], keys before their rotation beside values, of
    the S positions that the next one attends to, in the dtype of the projections.

    Args:
        dim: Model width.
        backend: As ``kernels.backend``.
        device: Where the weights are made.
        dtype: Their dtype.
        options: The cell's options.
    """

    cell = CELL

    def __init__(
        self,
        dim: int,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Value,
    ) -> None:
        super().__init__(dim, backend=backend, **options)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.head_dim = self.settings.count("head_dim")
        self.inner = self.head_dim * (dim // self.head_dim)
        width = self.settings.count("mlp_width") or _swiglu_width(dim)
        self.attention_norm = RMSNorm(dim, backend=backend, **to)
        # Rows: queries, keys, values.
        self.in_proj = nn.Parameter(torch.empty(3 * self.inner, dim, **to))
        self.out_proj = nn.Parameter(torch.empty(dim, self.inner, **to))
        self.mlp_norm = RMSNorm(dim, backend=backend, **to)
        # Rows: the gate W_1, the value W_3.
        self.mlp_in = nn.Parameter(torch.empty(2 * width, dim, **to))
        self.mlp_out = nn.Parameter(torch.empty(dim, width, **to))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all seven matrices anew, Xavier by the shape of each, and set the gains to 1."""
        self.attention_norm.reset_parameters()
        init.xavier_blocks_(self.in_proj, 3)
        init.xavier_(self.out_proj)
        self.mlp_norm.reset_parameters()
        init.xavier_blocks_(self.mlp_in, 2)
        init.xavier_(self.mlp_out)

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.in_proj

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shape of the keys and values, of any number of positions."""
        return {"past": (None, 2 * self.inner)}

    def forward(  # type: ignore[override]  # its cell says why it takes no resets
        self, x_btd: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        a_btd, past_bsk = self._attend(self.attention_norm(x_btd)[1], state.get("past"))
        a_btd = a_btd.to(x_btd.dtype)
        m_btd = self._swiglu(self.mlp_norm(x_btd, a_btd)[1])
        return a_btd + m_btd.to(x_btd.dtype), {"past": past_bsk}

    def _attend(self, x_btd: Tensor, past_bsk: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the attention's output and the keys and values to carry."""
        qkv_btk = linear(x_btd, self.in_proj)
        q_bta, kv_bsk = qkv_btk.split([self.inner, 2 * self.inner], dim=-1)
        if past_bsk is not None:
            kv_bsk = torch.cat([past_bsk.to(kv_bsk.dtype), kv_bsk], dim=1)
        context = self.settings.count("context")
        q_bthc, k_bshc, v_bshc = (
            part.unflatten(-1, (-1, self.head_dim)) for part in (q_bta, *kv_bsk.chunk(2, dim=-1))
        )
        theta = self.settings.number("rope_theta")
        o_bthc = causal_attention(q_bthc, k_bshc, v_bshc, theta=theta, context=context)
        if 0 < context <= kv_bsk.shape[1]:
            # A copy: a view would keep the whole older tensor alive between calls.
            kv_bsk = kv_bsk[:, kv_bsk.shape[1] - (context - 1) :].clone()
        return linear(o_bthc.flatten(2), self.out_proj), kv_bsk

    def _swiglu(self, x_btd: Tensor) -> Tensor:
        gate_btm, value_btm = linear(x_btd, self.mlp_in).chunk(2, dim=-1)
        return linear(functional.silu(gate_btm) * value_btm, self.mlp_out)


def _swiglu_width(dim: int) -> int:
    """Return int(8/3 dim) rounded up to a multiple of 256 (lm-and-training specification 5.3)."""
    return -(-(8 * dim // 3) // 256) * 256
