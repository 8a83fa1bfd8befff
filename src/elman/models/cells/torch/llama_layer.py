"""Layer llama: attention and SwiGLU, each after an RMSNorm and added to the residual stream.

Shape legend: b batch, t time, s time with what was carried, d model width, h heads, c channels of a
head, a = h c channels of all heads, m width of the SwiGLU; kv is keys beside values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.blocks.norm import RMSNorm
from elman.models.cells.common.mixer import StreamMixer, copyable
from elman.models.cells.torch.llama import CELL
from elman.models.state import State
from elman.ops.attention import attend, causal_attention
from elman.ops.common.checks import Shape
from elman.ops.linear import linear
from elman.ops.rotary.op import can_turn, turned
from elman.ops.silu_gate.op import swiglu


class Llama(StreamMixer):
    """a = attention(norm x), y = a + W_2 (silu(W_1 n) o W_3 n), n = norm(x + a); x the stream.

    The pre-norm transformer block, x + y in all (lm-and-training specification 5.3, without the
    second norm and residual that the original laid around it). RMSNorms are the language model's,
    eps 1e-5. No biases. State: ``past`` [B, S, 2 a], keys before their rotation beside values, of
    the S positions that the next one attends to, in the dtype of the projections.

    Attention is PyTorch's fused kernel on every backend. ``cuda`` has kernels of this project for
    the rotary positions and the SwiGLU besides; ``torch`` is PyTorch alone.
    """

    cell = CELL

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        self.head_dim = self.settings.count("head_dim")
        self.inner = self.head_dim * (self.dim // self.head_dim)
        width = self.settings.count("mlp_width") or _swiglu_width(self.dim)
        self.attention_norm = RMSNorm(self.dim, backend=self.backend, **to)
        # Rows: queries, keys, values.
        self.in_proj = nn.Parameter(torch.empty(3 * self.inner, self.dim, **to))
        self.out_proj = nn.Parameter(torch.empty(self.dim, self.inner, **to))
        self.mlp_norm = RMSNorm(self.dim, backend=self.backend, **to)
        # Rows: the gate W_1, the value W_3.
        self.mlp_in = nn.Parameter(torch.empty(2 * width, self.dim, **to))
        self.mlp_out = nn.Parameter(torch.empty(self.dim, width, **to))
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
        a_btd, _, n_btd, carried = self._through_attention(x_btd, None, state)
        return a_btd.to(x_btd.dtype) + self._swiglu(n_btd).to(x_btd.dtype), carried

    def advance(
        self, stream_btd: Tensor, branch_btd: Tensor | None, state: State | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.StreamMixer`."""
        _, stream_btd, n_btd, carried = self._through_attention(stream_btd, branch_btd, state)
        return stream_btd, self._swiglu(n_btd), copyable(carried)

    def _through_attention(
        self, stream_btd: Tensor, branch_btd: Tensor | None, state: State | None
    ) -> tuple[Tensor, Tensor, Tensor, State]:
        """Return the attention's output, the stream behind it and its norm, and the state."""
        state = self.begin(stream_btd, state)
        stream_btd, x_btd = self.attention_norm(stream_btd, branch_btd)
        a_btd, past_bsk = self._attend(x_btd, state.get("past"))
        stream_btd, n_btd = self.mlp_norm(stream_btd, a_btd)
        return a_btd, stream_btd, n_btd, {"past": past_bsk}

    def _attend(self, x_btd: Tensor, past_bsk: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the attention's output and the keys and values to carry."""
        qkv_btk = linear(x_btd, self.in_proj)
        q_bta, kv_bsk = qkv_btk.split([self.inner, 2 * self.inner], dim=-1)
        if past_bsk is not None:
            kv_bsk = torch.cat([past_bsk.to(kv_bsk.dtype), kv_bsk], dim=1)
        context, theta = self.settings.count("context"), self.settings.number("rope_theta")
        if past_bsk is None and can_turn(qkv_btk, self.backend_for(x_btd)):
            o_bthc = attend(*turned(qkv_btk, self.head_dim, theta), context=context)
        else:
            q_bthc, k_bshc, v_bshc = (
                part.unflatten(-1, (-1, self.head_dim))
                for part in (q_bta, *kv_bsk.chunk(2, dim=-1))
            )
            o_bthc = causal_attention(q_bthc, k_bshc, v_bshc, theta=theta, context=context)
        if 0 < context <= kv_bsk.shape[1]:
            # A copy: a view would keep the whole older tensor alive between calls.
            kv_bsk = kv_bsk[:, kv_bsk.shape[1] - (context - 1) :].clone()
        return linear(o_bthc.flatten(2), self.out_proj), kv_bsk

    def _swiglu(self, x_btd: Tensor) -> Tensor:
        backend = self.backend_for(x_btd)
        return linear(swiglu(linear(x_btd, self.mlp_in), backend=backend), self.mlp_out)


def _swiglu_width(dim: int) -> int:
    """Return int(8/3 dim) rounded up to a multiple of 256 (lm-and-training specification 5.3)."""
    return -(-(8 * dim // 3) // 256) * 256
