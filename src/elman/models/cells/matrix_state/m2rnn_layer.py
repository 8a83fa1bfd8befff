"""Layer M2RNN: matrix states that a matrix of each head mixes.

Shape legend: b batch, t time, d model width, c projected channels, h heads, n key width of a head,
v value width of a head, x either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.blocks.conv import CausalConv
from elman.models.blocks.dropout import Dropout
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.matrix_state.m2rnn import CELL
from elman.models.state import State, first_state
from elman.ops.common.checks import Shape
from elman.ops.common.gates import softplus_decay
from elman.ops.common.precision import wide_dtype
from elman.ops.head_norm.op import head_norm
from elman.ops.linear import linear
from elman.ops.matrix_state.row_mix.op import row_mix_recurrence

_CONV_STD = 0.02


class M2RNN(Mixer):
    """S' = f S + (1 - f) tanh(W^T S + v k^T), y = S' q + D o v, out = W_o (y silu(g)), per head.

    f = exp(-exp(A) softplus(W_f x + dt)) (matrix-state specification 13, which writes the transpose
    of S). State: ``S`` [B, H, v, n] in fp32 or wider, and with use_conv ``conv``. The row blocks of
    the projection are q, k, v, f, g.
    """

    cell = CELL

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        given = self.settings
        self.heads, self.value_width = given.count("n_heads"), given.count("n_state")
        self.key_width = given.count("key_width") or self.value_width
        keys = self.key_width * (1 if given.flag("shared_keys") else self.heads)
        values = self.heads * self.value_width
        self.rows = {"q": keys, "k": keys, "v": values, "f": self.heads, "g": values}
        self.in_proj = nn.Parameter(torch.empty(sum(self.rows.values()), self.dim, **to))
        self.conv = (
            CausalConv(2 * keys + values, given.count("d_conv"), bias=False, **to)
            if given.flag("use_conv")
            else None
        )
        self.a_log, self.dt_bias = (nn.Parameter(torch.empty(self.heads, **to)) for _ in range(2))
        self.mix = nn.Parameter(torch.empty(self.heads, self.value_width, self.value_width, **to))
        self.residual = init.no_decay(torch.empty(self.heads, self.value_width, **to))
        self.norm_gain = (
            nn.Parameter(torch.empty(values, **to)) if given.flag("use_output_norm") else None
        )
        self.out_proj = nn.Parameter(torch.empty(self.dim, values, **to))
        self.dropout = Dropout(given.number("dropout"))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every weight anew; W starts as the identity."""
        init.xavier_(self.in_proj)
        if self.conv is not None:
            init.normal_(self.conv.weight, _CONV_STD)
        init.decay_rate_(self.a_log, 1e-4, 16.0)
        init.time_step_(self.dt_bias, 0.001, 0.1)
        self.mix.zero_().diagonal(dim1=1, dim2=2).fill_(1)
        nn.init.ones_(self.residual)
        if self.norm_gain is not None:
            nn.init.ones_(self.norm_gain)
        init.xavier_(self.out_proj)

    @torch.no_grad()
    def bound_recurrence(self) -> None:
        """Divide each W by its largest singular value if that is over 1."""
        size_h11 = torch.linalg.matrix_norm(self.mix, 2, keepdim=True)
        self.mix.div_(size_h11.clamp(min=1))

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.in_proj

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of S and of the convolution's history."""
        shapes: dict[str, Shape] = {"S": (self.heads, self.value_width, self.key_width)}
        if self.conv is not None:
            channels, taps = self.conv.weight.shape
            shapes["conv"] = (taps - 1, channels)
        return shapes

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        carried: State = {}
        projected_btc = linear(x_btd, self.in_proj)
        widths = list(self.rows.values())
        qkv_btc, f_bth, g_btc = projected_btc.split([sum(widths[:3]), *widths[3:]], dim=-1)
        if self.conv is not None:
            qkv_btc, carried["conv"] = self.conv(qkv_btc, state.get("conv"), resets_bt)
            qkv_btc = functional.silu(qkv_btc)
        q_bthn, k_bthn, v_bthv = self._heads(qkv_btc.split(widths[:3], dim=-1))
        y_bthv, carried["S"] = row_mix_recurrence(
            {
                "q": q_bthn,
                "k": k_bthn,
                "v": v_bthv,
                "decay": softplus_decay(f_bth, self.a_log, self.dt_bias),
                "gate": g_btc.unflatten(-1, (self.heads, -1)),
            },
            self.mix,
            self.residual,
            first_state(state.get("S"), q_bthn, self.heads, self.value_width, self.key_width),
            backend=self.backend_for(x_btd),
            resets_bt=resets_bt,
        )
        y_btc = y_bthv.flatten(-2)
        if self.norm_gain is not None:
            y_btc = head_norm(
                y_btc,
                self.norm_gain,
                dtype=projected_btc.dtype,
                backend=self.kernels_beside(self.backend_for(x_btd), x_btd),
                eps=torch.finfo(wide_dtype(y_btc.dtype)).eps,
            )
        return self.dropout(linear(y_btc.to(projected_btc.dtype), self.out_proj)), carried

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor:
        """Return each head's decay [B, T, heads]."""
        weight = self.in_proj.split(list(self.rows.values()))[3]
        return softplus_decay(linear(x_btd, weight), self.a_log, self.dt_bias)

    def _heads(self, parts: tuple[Tensor, ...]) -> list[Tensor]:
        """Return q, k and v [b, t, h, x]; a shared head is the same one for all."""
        q_bthn, k_bthn = (part.unflatten(-1, (-1, self.key_width)) for part in parts[:2])
        if self.settings.flag("use_l2_norm"):
            wide = wide_dtype(q_bthn.dtype)
            q_bthn, k_bthn = (
                functional.normalize(one.to(wide), dim=-1) for one in (q_bthn, k_bthn)
            )
        q_bthn, k_bthn = (one.expand(-1, -1, self.heads, -1) for one in (q_bthn, k_bthn))
        return [q_bthn, k_bthn, parts[2].unflatten(-1, (self.heads, -1))]
