"""Layer E4: Elman recurrence through a product of two thin matrices.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.dense.base_layer import NormedLayer
from elman.models.cells.dense.e4 import CELL, rank_of
from elman.ops.column_sum.op import biased_linear
from elman.ops.dense.op import dense_recurrence

FACTOR_GAIN = 0.3
"""Singular values of both factors at the start: 0.09 for their product, before any constraint."""


class E4(NormedLayer):
    """[p; z] = W_in x, u = silu(p), h' = tanh(W_x u + U V h + b), y = W_out (h' silu(z)).

    Vector-state specification 3.3. The spectral norm is that of the product U V; both factors
    are scaled by the root of its scale, and the product is never formed.
    """

    cell = CELL
    branches = 2

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register W_x, both factors, the bias and the constraint."""
        given, i = self.settings, self.width
        self.rank = rank_of(self.dim, given.number("expansion"), given.count("rank"))
        self.input = nn.Parameter(torch.empty(i, i, **to))
        self.left = nn.Parameter(torch.empty(i, self.rank, **to))
        self.right = nn.Parameter(torch.empty(self.rank, i, **to))
        self.bias = nn.Parameter(torch.empty(i, **to))
        self.add_norm(to)

    def normed(self) -> tuple[Tensor, ...]:
        """Return U and V."""
        return self.left, self.right

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_projections()
        self.reset_projection(self.input)
        for factor in (self.left, self.right):
            init.orthogonal_(factor, FACTOR_GAIN)
        nn.init.zeros_(self.bias)
        self.reset_norm()

    def recurrent_factors(self) -> tuple[Tensor, Tensor]:
        """Return U and V as the recurrence uses them."""
        if self.norm is None:
            return self.left, self.right
        return self.norm.factors(self.left, self.right)

    def recur(
        self, u_bti: Tensor, h_bi: Tensor, backend: str, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider."""
        a_bti = biased_linear(u_bti, self.input, self.bias, backend=backend)
        h_bti, (final_bi,) = dense_recurrence(
            "tanh", [a_bti], self.recurrent_factors(), [h_bi], backend=backend, resets_bt=resets_bt
        )
        return h_bti, final_bi
