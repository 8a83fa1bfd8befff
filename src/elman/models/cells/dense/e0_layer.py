"""Layer E0: the stock Elman recurrence with a gate learned from the cell's input.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.dense.base_layer import NormedLayer
from elman.models.cells.dense.e0 import CELL
from elman.models.state import State, first_state
from elman.ops.column_sum.op import biased_linear
from elman.ops.dense.op import elman
from elman.ops.silu_gate.op import gate

SCALE_LOGIT = -0.01
"""Initial logit of the scaled orthogonal matrix: a factor of 0.4975."""


class E0(NormedLayer):
    """h' = tanh(W_x u + W_h h + b), y = W_out (h' silu(W_g u + b_g)).

    u = silu(conv(W_in x)) with a convolution, but u = W_in x, without a silu, where use_conv is
    off (vector-state specification 3.1). Under recurrent_norm=scaled_orthogonal W_h is
    sigmoid(l) Q, Q a fixed orthogonal matrix (a buffer) and l its only parameter.
    """

    cell = CELL

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the cell's matrices, the factor and the constraint."""
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
        self.add_norm(to)

    def normed(self) -> tuple[Tensor, ...]:
        """Return W_h."""
        return (self.recurrent,)

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
        self.reset_norm()

    def recurrent_matrix(self, backend: str = "reference") -> Tensor:
        """Return the matrix that the recurrence uses."""
        if self.fixed:
            return self.recurrent * self.scale_logit.sigmoid()
        return self.recurrent if self.norm is None else self.norm(self.recurrent, backend)

    def step_with_one_matrix(self) -> str:
        """See :class:`~elman.models.cells.dense.base_layer.DenseLayer`."""
        return "tanh"

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        carried: State = {}
        (u_bti,) = self.project_in(x_btd, state, carried, resets_bt)
        if self.conv is not None:
            u_bti = functional.silu(u_bti)
        backend = self.backend_for(x_btd)
        cell_bti = biased_linear(u_bti, self.cell_proj, self.cell_bias, backend=backend)
        a_bti, gate_bti = cell_bti.chunk(2, dim=-1)
        h_bti, carried["h"] = elman(
            a_bti,
            self.recurrent_matrix(backend),
            first_state(state.get("h"), u_bti, self.width),
            linear=False,
            backend=backend,
            resets_bt=resets_bt,
        )
        return self.project_out(gate(h_bti, gate_bti, backend=backend)), carried
