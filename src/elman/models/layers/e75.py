"""Layer E75: a delta rule per head whose value rows forget at gated rates, then a self gate.

Shape legend: b batch, t time, d model width, i = int(d * expansion) inner channels, h heads,
n rows and columns of a head's state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.conv import CausalConv
from elman.models.layers.gates import self_gate, unit
from elman.models.layers.mixer import Mixer
from elman.models.registry.e75 import CELL
from elman.models.registry.spec import Value
from elman.models.state import State
from elman.ops.matrix_state.op import delta_rule
from elman.ops.precision import wide_dtype

FORGET_BIAS = 2.0
"""Initial bias of the forget gate: beta = 0.88 for a zero input."""


class E75(Mixer):
    """S' = tanh(beta > S + (v - S k) k^T), y = S' q, out = y silu(y), per head.

    beta > S scales the value rows of S; k is normalised, q is not; S is read before it forgets
    (matrix-state specification 10 and 11). One head is the single-head form, whose dropout stands
    before the output projection instead of after it.

    State: ``S`` [B, H, n, n] (value rows, key columns) in fp32 or wider, and with use_conv
    ``conv``, the last d_conv - 1 inputs of the convolution.
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
        given = self.settings
        self.heads = given.count("n_heads")
        self.size = given.count("n_state")
        inner = int(dim * given.number("expansion"))
        width = self.heads * self.size
        self.in_proj = nn.Parameter(torch.empty(inner, dim, device=device, dtype=dtype))
        self.conv = (
            CausalConv(inner, given.count("d_conv"), bias=True, device=device, dtype=dtype)
            if given.flag("use_conv")
            else None
        )
        # Rows: k, v, q, beta; in each, one block of n rows for every head.
        self.cell_proj = nn.Parameter(torch.empty(4 * width, inner, device=device, dtype=dtype))
        self.forget_bias = init.no_decay(
            torch.empty(self.heads, self.size, device=device, dtype=dtype)
        )
        self.out_proj = nn.Parameter(torch.empty(dim, width, device=device, dtype=dtype))
        self.dropout = nn.Dropout(given.number("dropout"))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew; the cell's matrices head by head."""
        init.xavier_(self.in_proj)
        if self.conv is not None:
            self.conv.reset_parameters()
        init.xavier_blocks_(self.cell_proj, 4 * self.heads)
        nn.init.constant_(self.forget_bias, FORGET_BIAS)
        init.xavier_(self.out_proj)

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        projected_bti = functional.linear(x_btd, self.in_proj)
        carried: State = {}
        if self.conv is not None:
            projected_bti, carried["conv"] = self.conv(projected_bti, state.get("conv"))
        k_bthn, v_bthn, q_bthn, beta_bthn = self._cell_inputs(functional.silu(projected_bti))
        y_bthn, carried["S"] = delta_rule(
            q_bthn,
            unit(k_bthn),
            v_bthn,
            decay_bthr=beta_bthn,
            write_bth=None,
            state_bhvn=self._matrix(state.get("S"), k_bthn),
            linear_state=False,
            backend=self.backend_for(x_btd),
        )
        return self._output(self_gate(y_bthn).to(projected_bti.dtype).flatten(-2)), carried

    def _cell_inputs(self, c_bti: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return k, v, q and the forget gate, each [b, t, h, n], in fp32 or wider."""
        cell_btc = functional.linear(c_bti, self.cell_proj)
        cell_btc = cell_btc.to(wide_dtype(cell_btc.dtype))
        parts = torch.unflatten(cell_btc, -1, (4, self.heads, self.size)).unbind(-3)
        k_bthn, v_bthn, q_bthn, logit_bthn = parts
        return k_bthn, v_bthn, q_bthn, torch.sigmoid(logit_bthn + self.forget_bias)

    def _matrix(self, s_bhnn: Tensor | None, k_bthn: Tensor) -> Tensor:
        if s_bhnn is not None:
            return s_bhnn
        return k_bthn.new_zeros(k_bthn.shape[0], self.heads, self.size, self.size)

    def _output(self, cell_btc: Tensor) -> Tensor:
        if self.heads == 1:
            cell_btc = self.dropout(cell_btc)
        y_btd = functional.linear(cell_btc, self.out_proj)
        return y_btd if self.heads == 1 else self.dropout(y_btd)
