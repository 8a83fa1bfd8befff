"""What the gated dense layers share: one input branch, blocks of gates, a product with the state.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state,
k = blocks * i channels of the pre-activations, p = products * i of them that read the state,
r rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.layers.gates import self_gate
from elman.models.layers.skeleton import Skeleton
from elman.models.state import State, first_state
from elman.ops.dense.gated_op import Step, gated
from elman.ops.precision import wide_dtype


@dataclass(frozen=True)
class Plan:
    """The recurrence of one cell, in the terms of :func:`elman.ops.dense.gated_op.gated`.

    Args:
        step: Name of the step.
        biases: Initial bias of each block.
        products: Gain of the orthogonal recurrent matrix of each block that reads the state; of a
            low-rank product, the gain of both its factors.
        rank: Rank of the recurrent product; None keeps it dense.
        tied: Whether the recurrent matrix, drawn from the Xavier bound, is the input matrix too.
        alpha: Initial value of the step's learned size exp(log_alpha); None has none.
    """

    step: Step
    biases: tuple[float, ...]
    products: tuple[float, ...]
    rank: int | None = None
    tied: bool = False
    alpha: float | None = None


class GatedDense(Skeleton):
    """u = silu(W_in x), h' = step(W u + b, R h), y = W_out (h' silu(h')).

    Vector-state specification 2.2, 3.12 and 4. State: ``h`` [B, i] in fp32 or wider, and with
    use_conv ``conv``. A cell is its :meth:`plan`.
    """

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register what the plan asks for."""
        width = self.width
        self.recurrence = plan = self.plan()
        blocks, products = len(plan.biases), len(plan.products)
        # Rows: one block of i after another; those that read the state stand first.
        self.input = None if plan.tied else nn.Parameter(torch.empty(blocks * width, width, **to))
        self.bias = nn.Parameter(torch.empty(blocks * width, **to))
        inner = width if plan.rank is None else plan.rank
        self.recurrent = nn.Parameter(torch.empty(products * width, inner, **to))
        self.recurrent_down = (
            None if plan.rank is None else nn.Parameter(torch.empty(plan.rank, width, **to))
        )
        self.log_alpha = None if plan.alpha is None else nn.Parameter(torch.empty(1, **to))

    def plan(self) -> Plan:
        """Return the recurrence that the options ask for; ``self.width`` is known by then."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_projections()
        for bias, start in zip(self._blocks(self.bias), self.recurrence.biases, strict=True):
            nn.init.constant_(bias, start)
        if self.input is not None:
            init.xavier_blocks_(self.input, len(self.recurrence.biases))
        self._reset_recurrence()

    def _reset_recurrence(self) -> None:
        plan = self.recurrence
        if plan.tied:
            init.xavier_(self.recurrent)
        else:
            for block, gain in zip(self._blocks(self.recurrent), plan.products, strict=True):
                init.orthogonal_(block, gain)
        if self.recurrent_down is not None:
            init.orthogonal_(self.recurrent_down, *plan.products)
        if self.log_alpha is not None:
            assert plan.alpha is not None
            nn.init.constant_(self.log_alpha, math.log(plan.alpha))

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows.detach(), self.width)

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        carried: State = {}
        (p_bti,) = self.project_in(x_btd, state, carried)
        u_bti = functional.silu(p_bti)
        inputs_btk = functional.linear(u_bti, self.recurrent if self.input is None else self.input)
        wide = wide_dtype(inputs_btk.dtype)
        h_bti, carried["h"] = gated(
            self.recurrence.step,
            # Gates saturate: their biases are added, and they are applied, in fp32 or wider.
            inputs_btk.to(wide) + self.bias,
            self._recurrent_factors(),
            [] if self.log_alpha is None else [self.log_alpha.to(wide).exp()],
            first_state(state.get("h"), u_bti, self.width),
            backend=self.backend_for(x_btd),
        )
        return self.project_out(self_gate(h_bti).to(u_bti.dtype)), carried

    def _recurrent_factors(self) -> list[Tensor]:
        down = self.recurrent_down
        return [self.recurrent] if down is None else [self.recurrent, down]
