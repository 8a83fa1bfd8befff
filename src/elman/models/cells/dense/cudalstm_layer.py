"""Layer CudaLSTM: an LSTM with one bias per gate, between two projections.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.common.skeleton import Skeleton
from elman.models.cells.dense.cudalstm import CELL
from elman.models.state import State, first_state
from elman.ops.column_sum.op import biased_linear
from elman.ops.common.checks import Shape
from elman.ops.dense.decays import decays
from elman.ops.dense.op import dense_recurrence
from elman.ops.linear import linear

FORGET_BIAS = 1.0


class CudaLSTM(Skeleton):
    """c' = f c + i q, q = tanh(W_q x + U_q h + b_q), h' = o tanh(c'), y = W_out h'.

    x = W_in input, [f; i; o] = sigmoid(W x + U h + b) (vector-state specification 5.2). W_out
    starts at zero: every block starts as the identity. State: ``h`` and ``c``, [B, i] each, in
    fp32 or wider.
    """

    cell = CELL

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the gates' matrices and biases."""
        i = self.width
        # Rows of every matrix: f, i, o, q.
        self.cell_proj = nn.Parameter(torch.empty(4 * i, i, **to))
        self.cell_bias = nn.Parameter(torch.empty(4 * i, **to))
        self.recurrent = nn.Parameter(torch.empty(4 * i, i, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew; the recurrent matrix gate by gate."""
        init.normal_(self.in_proj)
        nn.init.zeros_(self.out_proj)
        init.normal_(self.cell_proj)
        nn.init.zeros_(self.cell_bias)
        nn.init.constant_(self.cell_bias[: self.width], FORGET_BIAS)
        for gate in self.recurrent.chunk(4):
            init.orthogonal_(gate)

    def cell_state(self) -> dict[str, Shape]:
        """Return the shapes of h and c."""
        return {"h": (self.width,), "c": (self.width,)}

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        backend = self.backend_for(x_btd)
        input_btc, first = self._input(x_btd, state)
        h_bti, (final_bi, cell_bi) = dense_recurrence(
            "lstm", [input_btc], [self.recurrent], first, backend=backend, resets_bt=resets_bt
        )
        return self.project_out(h_bti.to(input_btc.dtype)), {"h": final_bi, "c": cell_bi}

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the forget gate of each channel [B, T, 1, i]."""
        backend = self.backend_for(x_btd)
        input_btc, first = self._input(x_btd, state)
        decay_bti = decays(
            "lstm", [input_btc], [self.recurrent], first, backend=backend, resets_bt=resets_bt
        )
        return None if decay_bti is None else decay_bti.unsqueeze(2)

    def _input(self, x_btd: Tensor, state: State | None) -> tuple[Tensor, list[Tensor]]:
        """Return the part of the gates that reads the input, and the first state."""
        state, backend = self.begin(x_btd, state), self.backend_for(x_btd)
        p_bti = linear(x_btd, self.in_proj)
        gates_btc = biased_linear(p_bti, self.cell_proj, self.cell_bias, backend=backend)
        return gates_btc, [first_state(state.get(part), p_bti, self.width) for part in ("h", "c")]
