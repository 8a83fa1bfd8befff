"""Layer E0: the stock Elman recurrence with a gate learned from the cell's input.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.layers.dense import DenseSkeleton
from elman.models.registry.e0 import CELL
from elman.models.registry.spec import Value
from elman.models.spectral_norm import SpectralNorm
from elman.models.state import State
from elman.ops.dense.op import elman

SCALE_LOGIT = -0.01
"""Initial logit of the scaled orthogonal matrix: a factor of 0.4975."""


class E0(DenseSkeleton):
    """h' = tanh(W_x u + W_h h + b), y = W_out (h' silu(W_g u + b_g)).

    u = silu(conv(W_in x)) with a convolution, but u = W_in x, without a silu, where use_conv is
    off (vector-state specification 3.1). Under recurrent_norm=scaled_orthogonal W_h is
    sigmoid(l) Q, Q a fixed orthogonal matrix (a buffer) and l its only parameter.
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
        super().__init__(dim, backend=backend, device=device, dtype=dtype, **options)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        i = self.width
        # Rows: W_x, then W_g.
        self.cell_proj = nn.Parameter(torch.empty(2 * i, i, **to))
        self.cell_bias = nn.Parameter(torch.empty(2 * i, **to))
        square = torch.empty(i, i, **to)
        self.fixed = self.settings.word("recurrent_norm") == "scaled_orthogonal"
        if self.fixed:
            self.scale_logit = nn.Parameter(torch.empty((), **to))
            self.register_buffer("recurrent", square)
        else:
            self.recurrent = nn.Parameter(square)
        self.norm = (
            SpectralNorm(i, self.settings.number("spectral_radius"), **to)
            if self.settings.word("recurrent_norm") == "spectral"
            else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_projections()
        init.xavier_blocks_(self.cell_proj, 2)
        nn.init.zeros_(self.cell_bias)
        if self.fixed:
            init.orthogonal_(self.recurrent)
            nn.init.constant_(self.scale_logit, SCALE_LOGIT)
        else:
            init.xavier_(self.recurrent, self.settings.number("recurrent_gain"))
        if self.norm is not None:
            self.norm.reset(self.recurrent)

    def begin_step(self) -> None:
        """Advance the power iteration with the weight of this optimizer step."""
        if self.norm is not None:
            self.norm.advance(self.recurrent)

    def recurrent_matrix(self) -> Tensor:
        """Return the matrix that the recurrence uses."""
        if self.fixed:
            return self.recurrent * self.scale_logit.sigmoid()
        return self.recurrent if self.norm is None else self.norm(self.recurrent)

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        carried: State = {}
        u_bti = self.convolve(functional.linear(x_btd, self.in_proj), state, carried)
        if self.conv is not None:
            u_bti = functional.silu(u_bti)
        cell_bti = functional.linear(u_bti, self.cell_proj, self.cell_bias)
        a_bti, gate_bti = cell_bti.chunk(2, dim=-1)
        h_bti, carried["h"] = elman(
            a_bti,
            self.recurrent_matrix(),
            self.first(state.get("h"), u_bti),
            linear=False,
            backend=self.backend_for(x_btd),
        )
        return self.project_out((h_bti * functional.silu(gate_bti)).to(u_bti.dtype)), carried
