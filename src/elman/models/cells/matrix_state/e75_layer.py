"""Layer E75: a delta rule per head whose value rows forget at gated rates, then a self gate.

Shape legend: b batch, t time, d model width, n rows and columns of a head's state, c channels of
any kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.blocks.conv import CausalConv
from elman.models.cells.common.mixer import TextLayer
from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e75 import CELL
from elman.models.state import State
from elman.ops.common.slices import Slice, row_blocks
from elman.ops.linear import linear
from elman.ops.matrix_state.plan import Plan

FORGET_BIAS = 2.0
"""Initial bias of the forget gate: beta = 0.88 for a zero input."""


class E75(MatrixMixer):
    """S' = tanh(beta > S + (v - S k) k^T), y = S' q, out = y silu(y), per head.

    beta > S scales the value rows of S; k is normalized, q is not; S is read before it forgets
    (matrix-state specification 10 and 11). One head is the single-head form, whose dropout stands
    before the output projection instead of after it. linear_state, without tanh, is the vector
    gate.

    conv_mode=post has no first projection and no first silu: k, v and q are silu(conv(W x)) and
    beta is sigmoid(W x + b), of the layer's own input.

    State: ``S`` [B, H, n, n] (value rows, key columns) in fp32 or wider, and with use_conv
    ``conv``, the last d_conv - 1 inputs of the convolution.
    """

    cell = CELL

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.settings.count("n_heads")

    def row_blocks(self) -> dict[str, int]:
        """Return k, v, q and beta's logits; in each, n rows for every head."""
        return dict.fromkeys(("k", "v", "q", "beta"), self.heads * self.size)

    def post(self) -> bool:
        """Return whether the convolution comes after the cell's projection."""
        return self.settings.word("conv_mode") == "post"

    def blocks_per_head(self) -> bool:
        """Return whether each head is drawn by itself; with conv_mode=post, all together."""
        return not self.post()

    def dropout_after(self) -> bool:
        """Return whether dropout comes after the output projection."""
        return self.heads > 1 or self.post()

    def cell_inputs(self) -> int:
        """Return how many channels the cell's projection reads."""
        return self.dim if self.post() else self.width

    def add_input(self, to: Mapping[str, Any]) -> None:
        """Register the first projection and the convolution, or only the convolution."""
        if self.post():
            channels = 3 * self.heads * self.size
            self.conv = CausalConv(channels, self.settings.count("d_conv"), bias=True, **to)
        else:
            super().add_input(to)

    def reset_input(self) -> None:
        """Draw what :meth:`add_input` registered."""
        if self.post():
            assert self.conv is not None
            self.conv.reset_parameters()
        else:
            super().reset_input()

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the projection and the bias of the forget gate."""
        super().add_cell(to)
        self.forget_bias = init.no_decay(torch.empty(self.heads, self.size, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        super().reset_parameters()
        nn.init.constant_(self.forget_bias, FORGET_BIAS)

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence."""
        nonlinearity = "linear" if self.settings.flag("linear_state") else "tanh"
        if not self.post():
            roles = {"k": "k", "v": "v", "q": "q", "g0": "beta"}
            return self.plan_of("row_gated_delta", roles, k_unit=True, nonlinearity=nonlinearity)
        # Two sources: the convolution's output, and the logits.
        places = row_blocks(dict.fromkeys(("k", "v", "q"), self.heads * self.size))
        return Plan(
            "row_gated_delta",
            self.heads,
            self.size,
            self.size,
            (*places.items(), ("g0", Slice(1, 0))),
            nonlinearity,
            q_act="silu",
            k_act="silu",
            v_act="silu",
            k_unit=True,
            self_gate=True,
        )

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the bias of the forget gate."""
        return {"p0": self.forget_bias}

    def text_layer(self) -> TextLayer | None:
        """See :class:`~elman.models.cells.common.mixer.Mixer`."""
        first, second = (self.cell_proj, None) if self.post() else (self.in_proj, self.cell_proj)
        parameters = self.plan_parameters()
        return TextLayer(self.plan, first, self.out_proj, parameters, self.conv, second)

    def project(
        self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> list[Tensor]:
        """Return k, v, q and the logits of beta, with conv_mode=post as two sources."""
        if not self.post():
            return super().project(x_btd, state, carried, resets_bt)
        cell_btc = linear(x_btd, self.cell_proj)
        kvq_btc, beta_btc = torch.split(
            cell_btc, [3 * self.heads * self.size, self.blocks["beta"]], dim=-1
        )
        return [self.convolve(kvq_btc, state, carried, resets_bt), beta_btc]
