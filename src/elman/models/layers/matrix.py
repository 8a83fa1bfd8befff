"""What the cells E63m and E70 to E75 share: projections, state and output around a recurrence.

Shape legend: b batch, t time, d model width, i = int(d * expansion) inner channels, h heads,
n rows and columns of a head's state, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.conv import CausalConv
from elman.models.layers.gates import self_gate
from elman.models.layers.mixer import Mixer
from elman.models.registry.spec import Value
from elman.models.state import State
from elman.ops.precision import compute_dtype, wide_dtype

Parts = dict[str, Tensor]
"""What a cell reads at every step, by name, each [b, t, h, n] in fp32 or wider."""


class MatrixMixer(Mixer):
    """u = W_in x, [conv], c = silu(u), a cell on projections of c, y = W_out out.

    Scaffold A of matrix-state specification 2. A cell names its projections (:meth:`row_blocks`)
    and constants, and runs its recurrence (:meth:`recur`).

    State: ``S`` [B, H, value rows, key columns] in fp32 or wider, and with use_conv ``conv``, the
    last d_conv - 1 inputs of the convolution.
    """

    in_proj: nn.Parameter | None
    conv: CausalConv | None

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
        self.size = self.settings.count("n_state")
        self.heads = self.head_count()
        self.blocks = self.row_blocks()
        inner = self.add_input(to)
        self.cell_proj = nn.Parameter(torch.empty(sum(self.blocks.values()), inner, **to))
        for name, (length, _) in self.constants().items():
            self.register_parameter(name, nn.Parameter(torch.empty(length, **to)))
        self.add_parameters(inner, to)
        self.out_proj = nn.Parameter(torch.empty(dim, self.output_channels(), **to))
        self.dropout = nn.Dropout(self.settings.number("dropout"))
        self.reset_parameters()

    def head_count(self) -> int:
        """Return how many states stand side by side."""
        return 1

    def state_shape(self) -> tuple[int, int]:
        """Return rows and columns of a head's state."""
        return self.size, self.size

    def row_blocks(self) -> dict[str, int]:
        """Return the row blocks of the cell's projection and their heights, in order."""
        raise NotImplementedError

    def output_channels(self) -> int:
        """Return how many channels the output projection reads."""
        return self.heads * self.state_shape()[0]

    def blocks_per_head(self) -> bool:
        """Return whether Xavier's bound is of each head's own rows, not of a whole row block."""
        return False

    def dropout_after(self) -> bool:
        """Return whether dropout stands after the output projection instead of before it."""
        return False

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the parameters that start at one value: name, length and that value."""
        return {}

    def add_input(self, to: Mapping[str, Any]) -> int:
        """Register what stands before the cell's projection; return how many channels it yields."""
        given = self.settings
        inner = int(self.dim * given.number("expansion"))
        self.in_proj = nn.Parameter(torch.empty(inner, self.dim, **to))
        self.conv = (
            CausalConv(inner, given.count("d_conv"), bias=True, **to)
            if given.flag("use_conv")
            else None
        )
        return inner

    def add_parameters(self, inner: int, to: Mapping[str, Any]) -> None:
        """Register what else the cell has; :meth:`reset_parameters` fills it."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every weight anew, each block of the cell's projection by itself."""
        if self.in_proj is not None:
            self.reset_projection(self.in_proj)
        if self.conv is not None:
            self.conv.reset_parameters()
        for block in torch.split(self.cell_proj, list(self.blocks.values())):
            init.xavier_blocks_(block, self.heads if self.blocks_per_head() else 1)
        for name, (_, value) in self.constants().items():
            nn.init.constant_(self.get_parameter(name), value)
        self.reset_projection(self.out_proj)

    def reset_projection(self, weight: Tensor) -> None:
        """Draw the first or last projection: Xavier, or N(0, 0.02^2) under mamba2_init."""
        if self.settings.values.get("mamba2_init") == "normal":
            init.normal_(weight)
        else:
            init.xavier_(weight)

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        carried: State = {}
        parts = self.project(x_btd, state, carried)
        start_bhvn = state.get("S")
        if start_bhvn is None:
            k_bthn = parts["k"]
            start_bhvn = k_bthn.new_zeros(k_bthn.shape[0], self.heads, *self.state_shape())
        y_bthv, carried["S"] = self.recur(parts, start_bhvn, self.backend_for(x_btd))
        out_btc = self.gate(y_bthv, parts, state, carried).flatten(-2)
        return self.output(out_btc.to(compute_dtype(x_btd, self.out_proj.dtype))), carried

    def project(self, x_btd: Tensor, state: State, carried: State) -> Parts:
        """Return what the cell reads, for all steps at once."""
        assert self.in_proj is not None
        u_bti = functional.linear(x_btd, self.in_proj)
        if self.conv is not None:
            u_bti, carried["conv"] = self.conv(u_bti, state.get("conv"))
        c_bti = self.activate(u_bti)
        return self.split(functional.linear(c_bti, self.cell_matrix().to(c_bti.dtype)))

    def activate(self, u_bti: Tensor) -> Tensor:
        """Apply the first activation."""
        return functional.silu(u_bti)

    def cell_matrix(self) -> Tensor:
        """Return the matrix of the cell's projection as it is used."""
        return self.cell_proj

    def split(self, cell_btc: Tensor) -> Parts:
        """Return the row blocks of what the cell's projection yields, by name."""
        cell_btc = cell_btc.to(wide_dtype(cell_btc.dtype))
        parts = torch.split(cell_btc, list(self.blocks.values()), dim=-1)
        return {
            name: torch.unflatten(part_btc, -1, (self.heads, -1))
            for name, part_btc in zip(self.blocks, parts, strict=True)
        }

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence: reads y_bthv and the last state."""
        raise NotImplementedError

    def gate(self, y_bthv: Tensor, parts: Parts, state: State, carried: State) -> Tensor:
        """Gate the reads; most cells let each gate itself."""
        return self_gate(y_bthv)

    def output(self, out_btc: Tensor) -> Tensor:
        """Project the gated reads, with dropout."""
        if self.dropout_after():
            y_btd: Tensor = self.dropout(functional.linear(out_btc, self.out_proj))
            return y_btd
        return functional.linear(self.dropout(out_btc), self.out_proj)
