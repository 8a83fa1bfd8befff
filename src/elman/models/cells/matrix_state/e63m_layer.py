"""Layer E63m: a matrix of slots whose values are computed from what is read.

Shape legend: b batch, t time, h = 1 head, i inner channels (columns of the state), n slots (its
rows), c channels that the output projection reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e63m import CELL
from elman.models.state import State, first_state
from elman.ops.common.checks import Shape
from elman.ops.common.precision import compute_dtype, wide_dtype
from elman.ops.dense.op import elman
from elman.ops.linear import linear
from elman.ops.matrix_state.slots.op import slot_recurrence

MIX_GAIN = 0.5
OUTPUT_GAIN = 0.3
LITE_SLOTS = 32
"""Smallest default number of slots of the lite variant."""


class E63m(MatrixMixer):
    """v = tanh(W_r tanh(S k) + W_x c + b), S' = a > S + (1 - a) > v k^T, out = tanh(S' q).

    a = sigmoid(W_a c + b_a) scales the slots (rows) of S; k is not normalized (matrix-state
    specification 4). rnn: out = tanh(S' q + R out_before). lite: out passes through one more
    projection.

    State: ``S`` [B, 1, n, i] and for rnn ``out`` [B, n], in fp32 or wider; with use_conv ``conv``.
    """

    cell = CELL
    gate_bias: nn.Parameter
    value_bias: nn.Parameter
    # The slots have kernels of their own, and no plan that says it.
    calls_at_once = Mixer.calls_at_once

    @property
    def variant(self) -> str:
        """Name of the variant."""
        return self.settings.word("variant")

    def state_shape(self) -> tuple[int, int]:
        """Return the number of slots and of inner channels."""
        lite = self.variant == "lite"
        default = max(LITE_SLOTS, math.isqrt(self.width)) if lite else self.width
        return self.settings.count("n_state") or default, self.width

    def output_channels(self) -> int:
        """Return how many channels the output projection reads."""
        slots, inner = self.state_shape()
        return inner if self.variant == "lite" else slots

    def cell_state(self) -> dict[str, Shape]:
        """Return the shapes of S and, of the variant rnn, of the output before."""
        slots = self.state_shape()[0]
        return super().cell_state() | ({"out": (slots,)} if self.variant == "rnn" else {})

    def row_blocks(self) -> dict[str, int]:
        """Return key, query, the value's input and the gate's logits."""
        slots, inner = self.state_shape()
        return {"k": inner, "q": inner, "input": slots, "row": slots}

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the biases of the gate (a = 0.88) and of the value."""
        slots = self.state_shape()[0]
        return {"gate_bias": (slots, 2.0), "value_bias": (slots, 0.0)}

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the projection, W_r and the matrices of the variants."""
        self.add_projection(to)
        slots = self.state_shape()[0]
        self.mix = nn.Parameter(torch.empty(slots, slots, **to))
        if self.variant == "rnn":
            self.recurrent = nn.Parameter(torch.empty(slots, slots, **to))
        if self.variant == "lite":
            self.slot_proj = nn.Parameter(torch.empty(self.width, slots, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        super().reset_parameters()
        init.orthogonal_(self.mix, MIX_GAIN)
        if self.variant == "rnn":
            init.orthogonal_(self.recurrent, OUTPUT_GAIN)
        if self.variant == "lite":
            init.xavier_(self.slot_proj)

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        carried: State = {}
        cell_btc = self.project_cell(x_btd, state, carried, resets_bt)
        backend = self.backend_for(x_btd)
        y_btn, carried["S"] = self._recur(cell_btc, state.get("S"), backend, resets_bt)
        out_btc = self._finish(y_btn, state, carried, resets_bt)
        return self.output(out_btc.to(compute_dtype(x_btd, self.out_proj.dtype))), carried

    def _recur(
        self,
        cell_btc: Tensor,
        start_bhni: Tensor | None,
        backend: str,
        resets_bt: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence: reads of the slots, and the last state."""
        parts = self._parts(cell_btc)
        start_bhni = first_state(start_bhni, cell_btc, 1, *self.state_shape())
        y_bthn, end_bhni = slot_recurrence(
            parts, self.mix, start_bhni, backend=backend, resets_bt=resets_bt
        )
        return y_bthn.squeeze(-2), end_bhni

    def _parts(self, cell_btc: Tensor) -> dict[str, Tensor]:
        """Return key, query, the value's input and the gate of the one head [b, t, 1, ...]."""
        cell_bthc = cell_btc.to(wide_dtype(cell_btc.dtype)).unsqueeze(-2)
        names = ("k", "q", "input", "row")
        parts = dict(zip(names, cell_bthc.split(list(self.blocks.values()), -1), strict=True))
        parts["input"] = parts["input"] + self.value_bias
        parts["row"] = torch.sigmoid(parts["row"] + self.gate_bias)
        return parts

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the decay of each slot [B, T, 1, n]."""
        cell_btc = self.project_cell(x_btd, self.begin(x_btd, state), {}, resets_bt)
        return self._parts(cell_btc)["row"]

    def _finish(
        self, y_btn: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> Tensor:
        """Apply tanh and what the variant adds."""
        if self.variant == "rnn":
            before_bn = first_state(state.get("out"), y_btn, y_btn.shape[-1])
            out_btn, carried["out"] = elman(
                y_btn,
                self.recurrent,
                before_bn,
                linear=False,
                backend=self.backend_for(y_btn),
                resets_bt=resets_bt,
            )
            return out_btn
        out_btc = torch.tanh(y_btn)
        if self.variant == "lite":
            narrow = compute_dtype(out_btc, self.slot_proj.dtype)
            out_btc = linear(out_btc.to(narrow), self.slot_proj)
        return out_btc
