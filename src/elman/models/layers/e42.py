"""Layer E42: linear recurrence through one matrix for input and state, then a self gate.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from elman.models.layers.dense import DenseMixer
from elman.models.layers.gates import self_gate
from elman.models.registry.e42 import CELL
from elman.models.registry.spec import Value
from elman.models.state import State
from elman.ops.dense.op import elman


class E42(DenseMixer):
    """u = silu(W_in x), h' = W u + W h + b, y = W_out (h' silu(h')).

    Vector-state specification 3.10; the spectral norm holds for both uses of W. State: ``h``
    [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs of the
    convolution.
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
        super().__init__(dim, branches=1, backend=backend, device=device, dtype=dtype, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_shared(self.settings.number("spectral_radius"))

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        carried: State = {}
        p_bti = functional.linear(x_btd, self.in_proj)
        u_bti = functional.silu(self.convolve(p_bti, state, carried))
        matrix = self.recurrent_matrix()
        h_bti, carried["h"] = elman(
            functional.linear(u_bti, matrix.to(u_bti.dtype), self.bias),
            matrix,
            self.hidden(state.get("h"), u_bti),
            linear=True,
            backend=self.backend_for(x_btd),
        )
        gated_bti = self_gate(h_bti).to(u_bti.dtype)
        return functional.linear(self.dropout(gated_bti), self.out_proj), carried
