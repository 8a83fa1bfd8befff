"""Layer E56: Elman recurrence with one matrix over input and state, drawn as one.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.dense.base_layer import DenseLayer
from elman.models.cells.dense.e56 import CELL
from elman.ops.column_sum.op import biased_linear
from elman.ops.dense.op import elman


class E56(DenseLayer):
    """[p; z] = W_in x, u = silu(p), h' = tanh(W [u; h] + b), y = W_out (h' silu(z)).

    Vector-state specification 3.11. It is the same function as E1. It differs in the initial values
    (Xavier over the whole [i, 2 i] matrix), and it never has a constraint. The half of W for u is
    applied to all steps at once.
    """

    cell = CELL
    branches = 2

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the matrix and the bias."""
        i = self.width
        # Columns: those on u, then those on h.
        self.cell_proj = nn.Parameter(torch.empty(i, 2 * i, **to))
        self.bias = nn.Parameter(torch.empty(i, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_projections()
        self.reset_projection(self.cell_proj)
        if self.settings.word("mamba2_init") == "normal":
            init.orthogonal_(self.cell_proj[:, self.width :], 0.999)
        nn.init.zeros_(self.bias)

    def step_with_one_matrix(self) -> str:
        """See :class:`~elman.models.cells.dense.base_layer.DenseLayer`."""
        return "tanh"

    def recur(
        self, u_bti: Tensor, h_bi: Tensor, backend: str, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider."""
        input_ii, recurrent_ii = self.cell_proj.chunk(2, dim=1)
        a_bti = biased_linear(u_bti, input_ii, self.bias, backend=backend)
        return elman(a_bti, recurrent_ii, h_bi, linear=False, backend=backend, resets_bt=resets_bt)
