"""Base of the gated dense layers: one input branch, blocks of gates, a product with the state.

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

from elman.models.blocks import init
from elman.models.cells.dense.base_layer import DenseLayer
from elman.models.state import State, first_state
from elman.ops.common.precision import wide_dtype
from elman.ops.dense.decays import decays
from elman.ops.dense.op import dense_recurrence
from elman.ops.linear import linear


@dataclass(frozen=True)
class Recurrence:
    """A step of the dense engine, and the initial values of what it takes.

    Args:
        step: Name in :data:`elman.ops.dense.steps.STEPS`.
        biases: Initial bias of each block.
        products: Gain of the orthogonal recurrent matrix of each block that reads the state; of a
            low-rank product, the gain of both its factors.
        rank: Rank of the recurrent product; None keeps it dense.
        tied: Whether the recurrent matrix, drawn from the Xavier bound, is the input matrix too.
        alpha: Initial value of the step's learned size exp(log_alpha); None has none.
    """

    step: str
    biases: tuple[float, ...]
    products: tuple[float, ...]
    rank: int | None = None
    tied: bool = False
    alpha: float | None = None


class GatedDense(DenseLayer):
    """u = silu(W_in x), h' = step(W u + b, R h), y = W_out (h' silu(h')).

    Vector-state specification 2.2, 3.12 and 4. State: ``h`` [B, i] in fp32 or wider, and with
    use_conv ``conv``. A cell is its :meth:`choose_recurrence`.
    """

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the parameters of the recurrence."""
        width = self.width
        self.recurrence = chosen = self.choose_recurrence()
        blocks, products = len(chosen.biases), len(chosen.products)
        # Rows: one block of i after another; the blocks that read the state come first.
        self.input = None if chosen.tied else nn.Parameter(torch.empty(blocks * width, width, **to))
        self.bias = nn.Parameter(torch.empty(blocks * width, **to))
        inner = width if chosen.rank is None else chosen.rank
        self.recurrent = nn.Parameter(torch.empty(products * width, inner, **to))
        self.recurrent_down = (
            None if chosen.rank is None else nn.Parameter(torch.empty(chosen.rank, width, **to))
        )
        self.log_alpha = None if chosen.alpha is None else nn.Parameter(torch.empty(1, **to))

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence for the options; ``self.width`` is already set."""
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
        chosen = self.recurrence
        if chosen.tied:
            init.xavier_(self.recurrent)
        else:
            for block, gain in zip(self._blocks(self.recurrent), chosen.products, strict=True):
                init.orthogonal_(block, gain)
        if self.recurrent_down is not None:
            init.orthogonal_(self.recurrent_down, *chosen.products)
        if self.log_alpha is not None:
            assert chosen.alpha is not None
            nn.init.constant_(self.log_alpha, math.log(chosen.alpha))

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows.detach(), self.width)

    def step_with_one_matrix(self) -> str | None:
        """See :class:`~elman.models.cells.dense.base_layer.DenseLayer`."""
        return self.recurrence.step if self.recurrence.rank is None else None

    def recur(
        self, u_bti: Tensor, h_bi: Tensor, backend: str, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider."""
        step, inputs, recurrent, parameters = self._call(u_bti)
        h_bti, (final_bi,) = dense_recurrence(
            step,
            inputs,
            recurrent,
            [h_bi],
            parameters=parameters,
            backend=backend,
            resets_bt=resets_bt,
        )
        return h_bti, final_bi

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the decay of each channel [B, T, 1, i]; None without one."""
        backend, state = self.backend_for(x_btd), self.begin(x_btd, state)
        u_bti, *_ = self.project_in_silu(x_btd, state, {}, resets_bt, backend)
        step, inputs, recurrent, parameters = self._call(u_bti)
        first = [first_state(state.get("h"), u_bti, self.width)]
        decay_bti = decays(
            step, inputs, recurrent, first, parameters, backend=backend, resets_bt=resets_bt
        )
        return None if decay_bti is None else decay_bti.unsqueeze(2)

    def _call(self, u_bti: Tensor) -> tuple[str, list[Tensor], list[Tensor], list[Tensor]]:
        """Return step, inputs, recurrent matrix and parameters: what the engine is called with."""
        inputs_btk = linear(u_bti, self.recurrent if self.input is None else self.input)
        wide = wide_dtype(inputs_btk.dtype)
        # Gates saturate, so their biases are added and they are applied in fp32 or wider.
        inputs_btk = inputs_btk.to(wide) + self.bias
        down = self.recurrent_down
        return (
            self.recurrence.step,
            self._inputs(inputs_btk),
            [self.recurrent] if down is None else [self.recurrent, down],
            [] if self.log_alpha is None else [self.log_alpha.to(wide).exp()],
        )

    def _inputs(self, inputs_btk: Tensor) -> list[Tensor]:
        """Return the blocks that read the state as one input, and every other block."""
        blocks, products = len(self.recurrence.biases), len(self.recurrence.products)
        if blocks == products:  # a split into one part would still copy in its backward pass
            return [inputs_btk]
        sizes = [products * self.width, *[self.width] * (blocks - products)]
        return list(inputs_btk.split(sizes, dim=-1))
