"""Layer SLSTM: the scalar cell of xLSTM in heads, between two projections.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state, j = i /
n_heads channels of a head, p = 4 i rows of the gates' matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.common.skeleton import Skeleton
from elman.models.cells.dense.slstm import CELL
from elman.models.state import State, first_state
from elman.ops.column_sum.op import bias_of_parts, gained
from elman.ops.common.checks import Shape
from elman.ops.common.precision import wide_dtype
from elman.ops.dense.decays import decays
from elman.ops.dense.op import dense_recurrence
from elman.ops.linear import linear, narrow

NORM_EPS = 1e-5
"""Added to the variance of a head's channels."""
_PARTS = ("h", "c", "n", "m")


class SLSTM(Skeleton):
    """The sLSTM of Beck et al. 2024 (arXiv 2405.04517), y = W_out LayerNorm_of_each_head(h).

    The gates' matrices W and R are block-diagonal: a head of the gates reads the same head of the
    input x = W_in input and of h. Input and forget gate read silu(conv(x)) in its place, as in the
    paper's block (figure 10). The forget gate is sigmoid: the paper allows sigmoid or exp, and its
    authors' package xlstm has sigmoid. W_in and W_out stand around the cell as around every cell
    here. The paper has neither, but a gated MLP of factor 4/3 behind the cell, which is what
    ``model.mlp_ratio`` adds.

    First values are those of xlstm: R is 0, W is N(0, 2 / (5 i)), and the biases of forget gates
    fall from 5 to -7 over the channels of a head, by a power that grows with the layer's place.
    W_in and W_out follow Xavier's rule.

    State: ``h``, ``c``, ``n`` and ``m``, [B, i] each, in fp32 or wider, and with use_conv ``conv``.
    n = 0 is the empty memory, in which m has no meaning.
    """

    cell = CELL

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the gates' matrices and biases, and the norm's gain."""
        i, self.heads = self.width, self.settings.count("n_heads")
        self.index, self.depth = 0, 1
        # Rows of both matrices and of the bias: head by head, in each z, o, i, f.
        self.cell_proj = nn.Parameter(torch.empty(4 * i, i // self.heads, **to))
        self.cell_bias = nn.Parameter(torch.empty(4 * i, **to))
        self.recurrent = nn.Parameter(torch.empty(4 * i, i // self.heads, **to))
        self.norm_weight = nn.Parameter(torch.empty(i, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_projections()
        init.normal_(self.cell_proj, math.sqrt(2 / (5 * self.width)))
        nn.init.zeros_(self.recurrent)
        nn.init.ones_(self.norm_weight)
        self._set_biases()

    def place(self, index: int, layers: Sequence[nn.Module]) -> None:
        """Take the place ``index`` among a model's layers, which sets forget gates' biases."""
        self.index, self.depth = index, len(layers)
        self._set_biases()

    @torch.no_grad()
    def _set_biases(self) -> None:
        """Set the biases, which are not random: ``powerlaw_blockdependent`` of the package."""
        if self.cell_bias.is_meta:
            return
        self.cell_bias.zero_()
        width = self.width // self.heads
        power = 0.3 + 1.3 * self.index / max(1, self.depth - 1)
        ramp_j = torch.linspace(0, 1, width, device=self.cell_bias.device)
        self.cell_bias.view(self.heads, 4, width)[:, 3] = 5 - 12 * ramp_j**power

    def cell_state(self) -> dict[str, Shape]:
        """Return the shapes of h, c, n and m."""
        return dict.fromkeys(_PARTS, (self.width,))

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state, backend = self.begin(x_btd, state), self.backend_for(x_btd)
        carried: State = {}
        gates_btp, recurrent, first = self._call(x_btd, state, carried, resets_bt)
        h_bti, final = dense_recurrence(
            "slstm", [gates_btp], [recurrent], first, backend=backend, resets_bt=resets_bt
        )
        carried |= dict(zip(_PARTS, final, strict=True))
        return self.project_out(self._normed(h_bti, backend).to(gates_btp.dtype)), carried

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return sigmoid of the forget gate's logit, of each head's channels [B, T, heads, j]."""
        state, backend = self.begin(x_btd, state), self.backend_for(x_btd)
        gates_btp, recurrent, first = self._call(x_btd, state, {}, resets_bt)
        decay_bti = decays(
            "slstm", [gates_btp], [recurrent], first, backend=backend, resets_bt=resets_bt
        )
        return None if decay_bti is None else decay_bti.unflatten(-1, (self.heads, -1))

    def _call(
        self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the part of the gates that reads the input, the recurrent matrix, first state."""
        p_bti = linear(x_btd, self.in_proj)
        u_bti = p_bti
        if self.conv is not None:
            u_bti = functional.silu(self.convolve(p_bti, state, carried, resets_bt))
        return (
            self._gates(p_bti, u_bti, self.backend_for(x_btd)),
            self.recurrent.unflatten(0, (self.heads, -1)),
            [first_state(state.get(part), p_bti, self.width) for part in _PARTS],
        )

    def _gates(self, p_bti: Tensor, u_bti: Tensor, backend: str) -> Tensor:
        """Return W x + b: z and o read the first input, i and f the second one."""
        weights_pj = narrow(self.cell_proj).chunk(2 * self.heads)
        read = zip(p_bti.chunk(self.heads, -1), u_bti.chunk(self.heads, -1), strict=True)
        halves = [half_btj for pair in read for half_btj in pair]

        def run(bias_p: Tensor) -> Tensor:
            parts = zip(halves, weights_pj, bias_p.chunk(2 * self.heads), strict=True)
            return torch.cat([linear(*part) for part in parts], dim=-1)

        return bias_of_parts(p_bti, self.cell_proj, self.cell_bias, run, backend=backend)

    def _normed(self, h_bti: Tensor, backend: str) -> Tensor:
        """Return the states with mean 0 and variance 1 in every head, times the gain."""
        wide = wide_dtype(h_bti.dtype)
        h_bthj = h_bti.to(wide).unflatten(-1, (self.heads, -1))
        o_bthj = functional.layer_norm(h_bthj, h_bthj.shape[-1:], eps=NORM_EPS)
        return gained(o_bthj.flatten(-2), self.norm_weight.to(wide), backend=backend)
