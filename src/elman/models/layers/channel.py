"""What layers without a matrix in their recurrence share: projections, biases, first state.

Shape legend: b batch, t time, d model width, i = int(d * expansion) inner channels, c channels of
the state (i, but for E74).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.layers.gates import self_gate
from elman.models.layers.mixer import Mixer
from elman.models.layers.skeleton import Skeleton
from elman.models.registry.spec import Value
from elman.models.state import State, first_state
from elman.ops.channel.op import channel

RETAIN_BIAS = 2.0
"""Initial bias of every retain gate: 0.88 of the state is kept (vector-state specification 4)."""


@dataclass(frozen=True)
class Recurrence:
    """What a cell, with its options, asks of the channel engine.

    Args:
        step: Name of the step in :mod:`elman.ops.channel.reference`.
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
        """Register what the recurrence asks for."""
        self.channels = self.state_channels()
        self.recurrence = self.choose_recurrence()
        rows = len(self.recurrence.projections) * self.channels
        self.cell_proj = nn.Parameter(torch.empty(rows, self.width, **to))
        for name in self.recurrence.vectors:
            self.register_parameter(name, nn.Parameter(torch.empty(self.channels, **to)))
        for name in self.recurrence.scalars:
            self.register_parameter(name, nn.Parameter(torch.empty(1, **to)))

    def output_channels(self) -> int:
        """Return how many channels the last projection reads."""
        return self.channels

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        raise NotImplementedError

    def state_channels(self) -> int:
        """Return the width of the state."""
        return self.width

    def reset_parameters(self) -> None:
        """Draw every weight anew, the cell's matrix block by block."""
        self.reset_input()
        init.xavier_blocks_(self.cell_proj, len(self.recurrence.projections))
        for name, value in {**self.recurrence.vectors, **self.recurrence.scalars}.items():
            nn.init.constant_(self.get_parameter(name), value)
        self.reset_projection(self.out_proj)

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        carried: State = {}
        projected_btc = self.project(x_btd, state, carried)
        h_btc, carried["h"] = self.recur(projected_btc, state.get("h"))
        dtype = next(iter(projected_btc.values())).dtype
        return self.output(h_btc, dtype), carried

    def project(self, x_btd: Tensor, state: State, carried: State) -> dict[str, Tensor]:
        """Return the blocks of the cell's matrix times u, and carry the convolution's history."""
        (p_bti,) = self.project_in(x_btd, state, carried)
        names = self.recurrence.projections
        parts = functional.linear(self.activate(p_bti), self.cell_proj).chunk(len(names), -1)
        return dict(zip(names, parts, strict=True))

    def activate(self, p_bti: Tensor) -> Tensor:
        """Apply the first activation."""
        return functional.silu(p_bti)

    def recur(self, inputs_btc: dict[str, Tensor], h_bc: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run the recurrence from the given first state, or from zeros."""
        some = next(iter(inputs_btc.values()))
        return channel(
            self.recurrence.step,
            inputs_btc,
            self.step_parameters(),
            first_state(h_bc, some, self.channels),
            backend=self.backend_for(some),
        )

    def step_parameters(self) -> dict[str, Tensor]:
        """Return the step's parameters by name."""
        names = (*self.recurrence.vectors, *self.recurrence.scalars)
        return {name: self.get_parameter(name) for name in names}

    def output(self, y_btc: Tensor, dtype: torch.dtype) -> Tensor:
        """Apply the self gate, in the recurrence's dtype, and the output projection in its own."""
        return self.project_out(self_gate(y_btc).to(dtype))


class MinimalMixer(Mixer):
    """h' = step(W x, h), y = h', or W_out h' exactly when the expansion is not 1.

    Vector-state specification 5.0, 5.3 and 5.4: no gate, no nonlinearity after h. State: ``h``
    [B, i] in fp32 or wider, of any sign.

    Args:
        dim: Model width.
        backend: As ``kernels.backend``.
        device: Where the weights are made.
        dtype: Their dtype.
        options: The cell's options.

    Attributes:
        step: Name of the step in :mod:`elman.ops.channel.reference`.
        projections: Blocks of W, in row order.
    """

    step: ClassVar[str]
    projections: ClassVar[tuple[str, ...]]

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
        expansion = self.settings.number("expansion")
        inner = int(dim * expansion)
        rows = len(self.projections) * inner
        self.cell_proj = nn.Parameter(torch.empty(rows, dim, device=device, dtype=dtype))
        # Also where int(dim * expansion) == dim: published counts depend on it.
        self.out_proj = (
            nn.Parameter(torch.empty(dim, inner, device=device, dtype=dtype))
            if expansion != 1.0
            else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew, W with the Xavier bound of all its blocks together."""
        init.xavier_(self.cell_proj)
        if self.out_proj is not None:
            init.xavier_(self.out_proj)

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        projected_btc = functional.linear(x_btd, self.cell_proj)
        parts = projected_btc.chunk(len(self.projections), dim=-1)
        parallel = self.settings.word("form") == "parallel"
        h_bti, last_bi = channel(
            f"{self.step}_parallel" if parallel else self.step,
            dict(zip(self.projections, parts, strict=True)),
            {},
            first_state((state or {}).get("h"), parts[0], parts[0].shape[-1]),
            backend=self.backend_for(x_btd),
        )
        y_bti = h_bti.to(projected_btc.dtype)
        y_btd = y_bti if self.out_proj is None else functional.linear(y_bti, self.out_proj)
        return y_btd, {"h": last_bi}
