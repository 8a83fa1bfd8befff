"""Layer CudaGRU: a GRU whose reset gate acts before the matrix, between two projections.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.common.skeleton import Skeleton
from elman.models.cells.dense.cudagru import CELL
from elman.models.state import State, first_state
from elman.ops.dense.decays import decays
from elman.ops.dense.op import dense_recurrence
from elman.ops.linear import linear


class CudaGRU(Skeleton):
    """h' = (1 - z) h + z n, n = tanh(W_n x + U_n (r h) + b_n), y = W_out h'.

    x = W_in input, [z; r] = sigmoid(W x + U h + b) (vector-state specification 5.1). PyTorch's GRU
    resets after the matrix and swaps z and 1 - z. W_out starts at zero: every block starts as the
    identity. State: ``h`` [B, i] in fp32 or wider.
    """

    cell = CELL

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the gates' matrices and biases."""
        i = self.width
        # Rows of the cell's projection: z, r, n; of the gates' recurrent matrix: z, r.
        self.cell_proj = nn.Parameter(torch.empty(3 * i, i, **to))
        self.cell_bias = nn.Parameter(torch.empty(3 * i, **to))
        self.recurrent_gates = nn.Parameter(torch.empty(2 * i, i, **to))
        self.recurrent = nn.Parameter(torch.empty(i, i, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew; the recurrent matrices gate by gate."""
        init.normal_(self.in_proj)
        nn.init.zeros_(self.out_proj)
        init.normal_(self.cell_proj)
        nn.init.zeros_(self.cell_bias)
        for gate in (*self.recurrent_gates.chunk(2), self.recurrent):
            init.orthogonal_(gate)

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        inputs, first = self._inputs(x_btd, state)
        h_bti, (final_bi,) = dense_recurrence(
            "gru",
            inputs,
            [self.recurrent_gates],
            first,
            parameters=[self.recurrent],
            backend=self.backend_for(x_btd),
            resets_bt=resets_bt,
        )
        return self.project_out(h_bti.to(inputs[0].dtype)), {"h": final_bi}

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return 1 - z of each channel [B, T, 1, i]."""
        inputs, first = self._inputs(x_btd, state)
        decay_bti = decays(
            "gru",
            inputs,
            [self.recurrent_gates],
            first,
            [self.recurrent],
            backend=self.backend_for(x_btd),
            resets_bt=resets_bt,
        )
        return None if decay_bti is None else decay_bti.unsqueeze(2)

    def _inputs(self, x_btd: Tensor, state: State | None) -> tuple[list[Tensor], list[Tensor]]:
        """Return the parts of gates and candidate that read the input, and the first state."""
        state = self.begin(x_btd, state)
        p_bti = linear(x_btd, self.in_proj)
        cell_btc = linear(p_bti, self.cell_proj, self.cell_bias)
        inputs = torch.split(cell_btc, [2 * self.width, self.width], dim=-1)
        return list(inputs), [first_state(state.get("h"), p_bti, self.width)]
