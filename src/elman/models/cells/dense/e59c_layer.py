"""Layer E59c: as E59, with a small dense term of the state.

Shape legend: b batch, t time, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.dense.base_layer import DenseLayer
from elman.models.cells.dense.e59c import CELL
from elman.ops.common.precision import wide_dtype
from elman.ops.dense.op import dense_recurrence
from elman.ops.linear import linear

LOG_ALPHA = math.log(0.1)
"""Logarithm of the input's weight at the start."""
BETA_LOGIT = math.log(0.01)
"""Initial logit of beta, which is 0.1 sigmoid of it: 0.00099."""
MIX_GAIN = 0.01
"""Singular values of W' at the start."""


class E59c(DenseLayer):
    """h' = rn(h + alpha (W u + b) + beta (W' h)), alpha = exp(log_alpha).

    rn(v) = v / sqrt(mean(v^2) + 1e-6) and beta = 0.1 sigmoid(beta_logit) (vector-state
    specification 3.12). The recurrent matrix is beta W'.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the parameters of the recurrence: W and W' [i, i], a bias and two scalars."""
        width = self.width
        self.cell_proj = nn.Parameter(torch.empty(width, width, **to))
        self.value_bias = nn.Parameter(torch.empty(width, **to))
        self.log_alpha = nn.Parameter(torch.empty(1, **to))
        self.beta_logit = nn.Parameter(torch.empty(1, **to))
        self.mix = nn.Parameter(torch.empty(width, width, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_input()
        init.xavier_(self.cell_proj)
        nn.init.zeros_(self.value_bias)
        nn.init.constant_(self.log_alpha, LOG_ALPHA)
        nn.init.constant_(self.beta_logit, BETA_LOGIT)
        self.reset_projection(self.out_proj)
        init.orthogonal_(self.mix, MIX_GAIN)

    def step_with_one_matrix(self) -> str:
        """See :class:`~elman.models.cells.dense.base_layer.DenseLayer`."""
        return "normalized_sum"

    def recur(
        self, u_bti: Tensor, h_bi: Tensor, backend: str, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider."""
        value_bti = linear(u_bti, self.cell_proj)
        wide = wide_dtype(value_bti.dtype)
        alpha = self.log_alpha.to(wide).exp()
        beta = 0.1 * torch.sigmoid(self.beta_logit.to(wide))
        h_bti, (final_bi,) = dense_recurrence(
            "normalized_sum",
            [alpha * (value_bti.to(wide) + self.value_bias)],
            [beta * self.mix],
            [h_bi],
            backend=backend,
            resets_bt=resets_bt,
        )
        return h_bti, final_bi
