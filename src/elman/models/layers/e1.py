"""Layer E1: Elman recurrence, gated by the second half of the input projection.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.layers.dense import DenseMixer
from elman.models.registry.e1 import CELL
from elman.models.registry.spec import Value
from elman.models.state import State
from elman.ops.dense.op import elman

ORTHOGONAL_GAIN = 0.999


class E1(DenseMixer):
    """[p; z] = W_in x, u = silu(p), h' = tanh(W_x u + W_h h + b), y = W_out (h' silu(z)).

    Vector-state specification 3.2. State: ``h`` [B, i] in fp32 or wider, and with use_conv
    ``conv``, the last d_conv - 1 inputs of the convolution of p.
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
        super().__init__(dim, branches=2, backend=backend, device=device, dtype=dtype, **options)
        self.input = nn.Parameter(torch.empty(self.width, self.width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_shared(ORTHOGONAL_GAIN)
        self.reset_projection(self.input)

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        carried: State = {}
        p_bti, z_bti = functional.linear(x_btd, self.in_proj).chunk(2, dim=-1)
        u_bti = functional.silu(self.convolve(p_bti, state, carried))
        h_bti, carried["h"] = elman(
            functional.linear(u_bti, self.input, self.bias),
            self.recurrent_matrix(),
            self.hidden(state.get("h"), u_bti),
            linear=False,
            backend=self.backend_for(x_btd),
        )
        gated_bti = (h_bti * functional.silu(z_bti)).to(z_bti.dtype)
        return functional.linear(self.dropout(gated_bti), self.out_proj), carried
