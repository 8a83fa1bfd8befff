"""Layer E14: a matrix of gated outer products, read by a query and gated by a second branch.

Shape legend: b batch, t time, d model width, i = int(d * expansion) rows of the state, h = 1 head,
n columns of the state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.layers.mixer import Mixer
from elman.models.registry.e14 import CELL
from elman.models.registry.spec import Value
from elman.models.state import State
from elman.ops.matrix_state.op import recurrence
from elman.ops.precision import wide_dtype


class E14(Mixer):
    """[x; z] = W_in x, c = silu(x), S' = decay > S + tanh(key) (x) val, out = (S' query) silu(z).

    key, decay = sigmoid(logit) over the rows and val, query over the columns are W c + b each
    (matrix-state specification 3). State: ``S`` [B, 1, i, n] in fp32 or wider.
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
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.rows = int(dim * self.settings.number("expansion"))
        self.columns = self.settings.count("n_state") or self.rows
        # Row blocks of the cell's matrix and bias: key, decay, val, query.
        self.blocks = [self.rows, self.rows, self.columns, self.columns]
        self.in_proj = nn.Parameter(torch.empty(2 * self.rows, dim, **to))
        self.cell_proj = nn.Parameter(torch.empty(sum(self.blocks), self.rows, **to))
        self.cell_bias = nn.Parameter(torch.empty(sum(self.blocks), **to))
        self.out_proj = nn.Parameter(torch.empty(dim, self.rows, **to))
        self.dropout = nn.Dropout(self.settings.number("dropout"))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every weight anew; at first the decay does not depend on the input."""
        for weight in (self.in_proj, self.out_proj, *torch.split(self.cell_proj, self.blocks)):
            init.xavier_(weight)
        nn.init.zeros_(self.cell_bias)
        nn.init.zeros_(torch.split(self.cell_proj, self.blocks)[1])
        nn.init.constant_(
            torch.split(self.cell_bias, self.blocks)[1], self.settings.number("decay_init")
        )

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        x_bti, z_bti = functional.linear(x_btd, self.in_proj).chunk(2, dim=-1)
        cell_btc = functional.linear(functional.silu(x_bti), self.cell_proj, self.cell_bias)
        cell_bt1c = cell_btc.to(wide_dtype(cell_btc.dtype)).unsqueeze(-2)
        key, logit, val, query = torch.split(cell_bt1c, self.blocks, dim=-1)
        start_bhin = (state or {}).get("S")
        if start_bhin is None:
            start_bhin = key.new_zeros(key.shape[0], 1, self.rows, self.columns)
        y_bt1i, end_bhin = recurrence(
            "outer",
            {"k": val, "v": torch.tanh(key), "q": query, "row": torch.sigmoid(logit)},
            {},
            start_bhin,
            nonlinearity="linear",
            backend=self.backend_for(x_btd),
        )
        gated_bti = (y_bt1i.squeeze(-2) * functional.silu(z_bti)).to(z_bti.dtype)
        return functional.linear(self.dropout(gated_bti), self.out_proj), {"S": end_bhin}
