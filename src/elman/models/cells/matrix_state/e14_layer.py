"""Layer E14: a matrix of gated outer products, read by a query and gated by a second branch.

Shape legend: b batch, t time, d model width, i = int(d * expansion) rows of the state, h = 1 head,
n columns of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.common.skeleton import Skeleton
from elman.models.cells.matrix_state.e14 import CELL
from elman.models.state import State
from elman.ops.common.checks import Shape
from elman.ops.common.slices import Slice, row_blocks
from elman.ops.linear import linear
from elman.ops.matrix_state.decays import decays
from elman.ops.matrix_state.op import run
from elman.ops.matrix_state.plan import Plan


class E14(Skeleton):
    """[x; z] = W_in x, c = silu(x), S' = decay > S + tanh(key) (x) val, out = (S' query) silu(z).

    key, decay = sigmoid(logit) over the rows and val, query over the columns are W c + b each
    (matrix-state specification 3). State: ``S`` [B, 1, i, n] in fp32 or wider.
    """

    cell = CELL
    branches = 2

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the cell's matrix and biases."""
        self.columns = self.settings.count("n_state") or self.width
        # Row blocks of the cell's matrix and bias: key, decay, val, query.
        self.blocks = [self.width, self.width, self.columns, self.columns]
        places = row_blocks(dict(zip(("v", "g0", "k", "q"), self.blocks, strict=True)))
        self.plan = Plan(
            "forgetting",
            1,
            self.width,
            self.columns,
            (*places.items(), ("gate", Slice(1, 0))),
            "linear",
            v_act="tanh",
            gate_act="silu",
        )
        self.cell_proj = nn.Parameter(torch.empty(sum(self.blocks), self.width, **to))
        self.cell_bias = nn.Parameter(torch.empty(sum(self.blocks), **to))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every weight anew; at first the decay does not depend on the input."""
        self.reset_projections()
        for block in torch.split(self.cell_proj, self.blocks):
            init.xavier_(block)
        nn.init.zeros_(self.cell_bias)
        nn.init.zeros_(torch.split(self.cell_proj, self.blocks)[1])
        nn.init.constant_(
            torch.split(self.cell_bias, self.blocks)[1], self.settings.number("decay_init")
        )

    def cell_state(self) -> dict[str, Shape]:
        """Return the shape of S."""
        return {"S": (1, self.width, self.columns)}

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        sources = self._sources(x_btd)
        backend, first_bhin = self.backend_for(x_btd), state.get("S")
        out_bt1i, end_bhin = run(
            self.plan, sources, {}, first_bhin, backend=backend, resets_bt=resets_bt
        )
        return self.project_out(out_bt1i.flatten(-2).to(sources[0].dtype)), {"S": end_bhin}

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the decay of each row [B, T, 1, i]."""
        return decays(self.plan, self._sources(x_btd), {}, None, backend=self.backend_for(x_btd))

    def _sources(self, x_btd: Tensor) -> list[Tensor]:
        """Return what the plan reads: the cell's projection and the gate."""
        x_bti, z_bti = self.project_in(x_btd, {}, {}, None)
        return [linear(functional.silu(x_bti), self.cell_proj, self.cell_bias), z_bti]
