"""The skeleton of most layers: a projection in, a convolution, a cell, a projection out.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of each branch of the
first projection, c channels that the last projection reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.blocks.conv import CausalConv
from elman.models.blocks.dropout import Dropout
from elman.models.cells.common.mixer import Mixer
from elman.models.state import State
from elman.ops.common.checks import Shape
from elman.ops.linear import linear
from elman.ops.silu_gate.op import split


class Skeleton(Mixer):
    """W_in, an optional depthwise convolution, a cell, dropout, W_out.

    See vector-state specification 2.2 and scaffold A of matrix-state specification 2. A cell adds
    its parameters (:meth:`add_cell`), draws them (``reset_parameters``) and computes (``forward``).
    With use_conv the state has ``conv``, the last d_conv - 1 inputs of the convolution.

    Attributes:
        branches: Row blocks of W_in: the cell's input and, with two, a gate.
        width: Rows of each, int(dim * expansion).
    """

    branches: ClassVar[int] = 1
    in_proj: nn.Parameter
    conv: CausalConv | None

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        self.width = int(self.dim * self.settings.number("expansion"))
        self.add_input(to)
        self.add_cell(to)
        self.out_proj = nn.Parameter(torch.empty(self.dim, self.output_channels(), **to))
        self.dropout = Dropout(self.settings.number("dropout"))
        self.reset_parameters()

    def add_input(self, to: Mapping[str, Any]) -> None:
        """Register the modules before the cell; ``to`` has device and dtype."""
        self.in_proj = nn.Parameter(torch.empty(self.branches * self.width, self.dim, **to))
        given = self.settings
        convolved = "use_conv" in self.cell.options and given.flag("use_conv")
        self.conv = (
            CausalConv(self.width, given.count("d_conv"), bias=True, **to) if convolved else None
        )

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the cell's parameters; ``to`` has device and dtype."""
        raise NotImplementedError

    def output_channels(self) -> int:
        """Return how many channels the last projection reads."""
        return self.width

    def reset_projections(self) -> None:
        """Draw both outer projections, then the convolution."""
        self.reset_projection(self.in_proj)
        self.reset_projection(self.out_proj)
        if self.conv is not None:
            self.conv.reset_parameters()

    def reset_input(self) -> None:
        """Draw the first projection and the convolution, for cells that are drawn before W_out."""
        self.reset_projection(self.in_proj)
        if self.conv is not None:
            self.conv.reset_parameters()

    def reset_projection(self, weight: Tensor) -> None:
        """Draw a matrix outside the recurrence: Xavier, or N(0, 0.02^2) under mamba2_init."""
        if self.settings.values.get("mamba2_init", "none") == "none":
            init.xavier_(weight)
        else:
            init.normal_(weight)

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the cell's parts and of the convolution's history."""
        if self.conv is None:
            return self.cell_state()
        channels, taps = self.conv.weight.shape
        return {**self.cell_state(), "conv": (taps - 1, channels)}

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.out_proj

    def cell_state(self) -> dict[str, Shape]:
        """Return the shapes of the cell's state."""
        return {"h": (self.width,)}

    def project_in(
        self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return the branches of the first projection; the first branch is convolved."""
        projected_bti = linear(x_btd, self.in_proj)
        if self.branches == 1:  # a split into one part would still copy in its backward pass
            return (self.convolve(projected_bti, state, carried, resets_bt),)
        u_bti, *gates_bti = projected_bti.chunk(self.branches, dim=-1)
        return self.convolve(u_bti, state, carried, resets_bt), *gates_bti

    def project_in_silu(
        self,
        x_btd: Tensor,
        state: State,
        carried: State,
        resets_bt: Tensor | None,
        backend: str,
    ) -> tuple[Tensor, ...]:
        """Return the branches of the first projection, with silu behind the first one."""
        if self.branches == 2 and self.conv is None:
            return split(linear(x_btd, self.in_proj), backend=backend)
        p_bti, *gates_bti = self.project_in(x_btd, state, carried, resets_bt)
        return functional.silu(p_bti), *gates_bti

    def convolve(
        self, u_btc: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> Tensor:
        """Apply the convolution, if there is one, and carry its history."""
        if self.conv is None:
            return u_btc
        backend = self.backend_for(u_btc)
        u_btc, carried["conv"] = self.conv(u_btc, state.get("conv"), resets_bt, backend=backend)
        return u_btc

    def project_out(self, o_btc: Tensor) -> Tensor:
        """Return the layer's output, with dropout before the last projection."""
        return linear(self.dropout(o_btc), self.out_proj)
