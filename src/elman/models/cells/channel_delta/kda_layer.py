"""Layer Kimi Delta Attention: parameters and computation of flash-linear-attention's layer.

Shape legend: b batch, t time, d model width, h heads, k key width of a head, v value width of a
head, a channels of a projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.channel_delta.kda import CELL
from elman.models.cells.gated_delta.peer_layer import LowRankGate, twice
from elman.models.state import State
from elman.ops.channel_delta.op import channel_delta
from elman.ops.channel_delta.rules import Kda, log_decays
from elman.ops.common.precision import wide_dtype
from elman.ops.linear import linear


class KimiDeltaAttention(LowRankGate):
    """S' = S C + w (v - S C k) k^T, y = S' q, out = W_o (norm(y) sigmoid(W_g x)), per head.

    C is a decay for each key channel (Kimi team 2025). Names, shapes, order and initial values of
    the parameters are those of ``fla.layers.KimiDeltaAttention`` 0.6.0. State: ``S`` [B, H, v, k]
    in fp32 or wider and, with ``use_conv``, ``conv`` [B, d_conv - 1, channels of q, k and v].
    """

    cell = CELL
    decays_after = "b_proj"

    def add_modules(self, to: dict[str, Any]) -> None:
        """Register everything in the order of the package; ``to`` has device and dtype."""
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        self.add_qkv((keys, keys, values), to)
        self.add_convs(to)
        self.f_proj = self.low_rank(keys, bias=False, to=to)
        self.b_proj = nn.Linear(self.dim, self.heads, bias=False, **to)
        self.A_log = init.no_decay(torch.empty(self.heads, **to))
        self.dt_bias = init.no_decay(torch.empty(keys, **to))
        self.reset_decays()
        self.g_proj = self.low_rank(values, bias=True, to=to)
        self.add_output(to)

    def reset_decays(self) -> None:
        """Draw the parameters of the decays."""
        init.decay_rate_(self.A_log, 1.0, 16.0)
        init.time_step_(self.dt_bias, 0.001, 0.1)

    def recur(
        self, q_bta: Tensor, k_bta: Tensor, v_bta: Tensor, x_btd: Tensor, state: State, backend: str
    ) -> tuple[Tensor, Tensor]:
        """Run the delta rule with a decay for each key channel."""
        rule = Kda(
            self.by_head(q_bta),
            self.by_head(k_bta),
            self.by_head(v_bta),
            self.by_head(twice(x_btd, self.f_proj)),
            linear(x_btd, self.b_proj.weight),
            self.A_log,
            self.dt_bias,
            2.0 if self.settings.flag("allow_neg_eigval") else 1.0,
        )
        return channel_delta(rule, state_bhvk=state.get("S"), backend=backend)

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor:
        """Return the decay of each key channel [B, T, heads, keys]."""
        logits_bthk = self.by_head(twice(x_btd, self.f_proj))
        wide = wide_dtype(logits_bthk.dtype)
        return log_decays(logits_bthk.to(wide), self.A_log, self.dt_bias).exp()
