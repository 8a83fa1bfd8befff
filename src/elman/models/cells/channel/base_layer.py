"""Base of the layers without a matrix in their recurrence: projections, biases, first state.

Shape legend: b batch, t time, d model width, i = int(d * expansion) inner channels, c channels of
the state (i, except in E74), s = n c for the n blocks of a projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.common.skeleton import Skeleton
from elman.models.state import State, first_state
from elman.ops.channel.decays import decays
from elman.ops.channel.op import run
from elman.ops.channel.plan import Plan
from elman.ops.common.checks import Shape
from elman.ops.common.slices import row_blocks
from elman.ops.linear import linear

RETAIN_BIAS = 2.0
"""Initial bias of every retain gate: 0.88 of the state is kept (vector-state specification 4)."""

Call = tuple[Plan, tuple[Tensor, ...], dict[str, Tensor], Tensor]
"""Plan, sources, parameters and first state: what the engine is called with."""


@dataclass(frozen=True)
class Recurrence:
    """The recurrence that a cell, with its options, needs from the channel engine.

    Args:
        step: Name of the step in :mod:`elman.ops.channel.steps`.
        projections: Blocks of the cell's matrix, in row order.
        vectors: Parameters of one number per channel, with their initial value.
        scalars: Parameters of one number, with their initial value.
    """

    step: str
    projections: tuple[str, ...]
    vectors: Mapping[str, float] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


class ChannelMixer(Skeleton):
    """u = silu(conv(W_in x)), h' = step(W u, h), y = W_out (h' silu(h')).

    Vector-state specification 2.2, skeleton S. State: ``h`` [B, c] in fp32 or wider, and with
    use_conv ``conv``.
    """

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the parameters of the recurrence."""
        self.channels = self.state_channels()
        self.recurrence = self.choose_recurrence()
        self.plan = self.choose_plan()
        rows = len(self.recurrence.projections) * self.channels
        self.cell_proj = nn.Parameter(torch.empty(rows, self.width, **to))
        for name in self.recurrence.vectors:
            self.register_parameter(name, nn.Parameter(torch.empty(self.channels, **to)))
        for name in self.recurrence.scalars:
            self.register_parameter(name, nn.Parameter(torch.empty(1, **to)))

    def output_channels(self) -> int:
        """Return the number of input channels of the last projection."""
        return self.channels

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence for the options."""
        raise NotImplementedError

    def choose_plan(self) -> Plan:
        """Return what one call of the engine computes from the cell's projection."""
        places = row_blocks(dict.fromkeys(self.recurrence.projections, self.channels))
        return Plan(self.recurrence.step, tuple(places.items()), self_gate=True)

    def state_channels(self) -> int:
        """Return the width of the state."""
        return self.width

    def cell_state(self) -> dict[str, Shape]:
        """Return the shape of h."""
        return {"h": (self.channels,)}

    def reset_parameters(self) -> None:
        """Draw every weight anew, the cell's matrix block by block."""
        self.reset_input()
        init.xavier_blocks_(self.cell_proj, len(self.recurrence.projections))
        for name, value in {**self.recurrence.vectors, **self.recurrence.scalars}.items():
            nn.init.constant_(self.get_parameter(name), value)
        self.reset_projection(self.out_proj)

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        carried: State = {}
        call = self._call(x_btd, state, carried, resets_bt)
        y_btc, carried["h"] = run(*call, backend=self.backend_for(x_btd), resets_bt=resets_bt)
        ((projected_bts,), _, _) = call[1:]
        # The self gate has the dtype of the recurrence; the output projection has its own dtype.
        return self.project_out(y_btc.to(projected_bts.dtype)), carried

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the decay of each channel [B or 1, T or 1, 1, c]; None without one."""
        call = self._call(x_btd, self.begin(x_btd, state), {}, resets_bt)
        decay_btc = decays(*call, backend=self.backend_for(x_btd), resets_bt=resets_bt)
        return None if decay_btc is None else decay_btc.unsqueeze(2)

    def _call(self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None) -> Call:
        """Return what the engine is called with."""
        (p_bti,) = self.project_in(x_btd, state, carried, resets_bt)
        projected_bts = linear(self.activate(p_bti), self.cell_proj)
        first_bc = first_state(state.get("h"), projected_bts, self.channels)
        return self.plan, (projected_bts,), self.step_parameters(), first_bc

    def activate(self, p_bti: Tensor) -> Tensor:
        """Apply the first activation."""
        return functional.silu(p_bti)

    def step_parameters(self) -> dict[str, Tensor]:
        """Return the step's parameters by name."""
        names = (*self.recurrence.vectors, *self.recurrence.scalars)
        # Not get_parameter: torch.func.functional_call puts plain tensors in their place.
        return {name: getattr(self, name) for name in names}


class MinimalMixer(Mixer):
    """h' = step(W x, h), y = h', or W_out h' exactly when the expansion is not 1.

    Vector-state specification 5.0, 5.3 and 5.4: no gate, no nonlinearity after h. State: ``h``
    [B, i] in fp32 or wider, of any sign.

    Attributes:
        step: Name of the step in :mod:`elman.ops.channel.steps`.
        projections: Blocks of W, in row order.
    """

    step: ClassVar[str]
    projections: ClassVar[tuple[str, ...]]

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        expansion = self.settings.number("expansion")
        inner = int(self.dim * expansion)
        rows = len(self.projections) * inner
        self.plan = self.choose_plan(inner)
        self.cell_proj = nn.Parameter(torch.empty(rows, self.dim, **to))
        # Even if int(dim * expansion) == dim: published counts depend on it.
        self.out_proj = (
            nn.Parameter(torch.empty(self.dim, inner, **to)) if expansion != 1.0 else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew, W with the Xavier bound of all its blocks together."""
        init.xavier_(self.cell_proj)
        if self.out_proj is not None:
            init.xavier_(self.out_proj)

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.cell_proj

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shape of h."""
        return {"h": (self.cell_proj.shape[0] // len(self.projections),)}

    def choose_plan(self, inner: int) -> Plan:
        """Return what one call of the engine computes from the projection."""
        parallel = self.settings.word("form") == "parallel"
        step = f"{self.step}_parallel" if parallel else self.step
        places = row_blocks(dict.fromkeys(self.projections, inner))
        return Plan(step, tuple(places.items()))

    def forward(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        call = self._call(x_btd, state)
        h_bti, last_bi = run(*call, backend=self.backend_for(x_btd), resets_bt=resets_bt)
        ((projected_bts,), _, _) = call[1:]
        y_bti = h_bti.to(projected_bts.dtype)
        y_btd = y_bti if self.out_proj is None else linear(y_bti, self.out_proj)
        return y_btd, {"h": last_bi}

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return the decay of each channel [B, T, 1, i]."""
        decay_bti = decays(*self._call(x_btd, state), backend=self.backend_for(x_btd))
        assert decay_bti is not None
        return decay_bti.unsqueeze(2)

    def _call(self, x_btd: Tensor, state: State | None) -> Call:
        """Return what the engine is called with."""
        state = self.begin(x_btd, state)
        projected_bts = linear(x_btd, self.cell_proj)
        inner = projected_bts.shape[-1] // len(self.projections)
        return self.plan, (projected_bts,), {}, first_state(state.get("h"), projected_bts, inner)
