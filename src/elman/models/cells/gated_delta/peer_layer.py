"""What the other layers of flash-linear-attention share with its Gated DeltaNet.

Shape legend: b batch, t time, d model width, h heads, v value width of a head, a channels of a
projection.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.cells.gated_delta.fla_gdn_layer import GatedDeltaNet, HeadNorm
from elman.models.state import State
from elman.ops.common.checks import Shape, is_empty
from elman.ops.gated_delta import package
from elman.ops.linear import linear


class DeltaPeer(GatedDeltaNet):
    """Convolved q, k and v, a recurrence, a gated norm for each head, a projection.

    A layer makes its parameters (:meth:`add_modules`), draws its decays (:meth:`reset_decays`)
    and runs its recurrence (:meth:`recur`). Convolutions and norm are those of Gated DeltaNet.

    Attributes:
        decays_after: The module behind which the package draws the decays.
    """

    decays_after: ClassVar[str]

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        self.count_heads()
        self.add_modules(to)

    def add_modules(self, to: dict[str, Any]) -> None:
        """Register everything in the order of the package; ``to`` has device and dtype."""
        raise NotImplementedError

    def reset_decays(self) -> None:
        """Draw the parameters of the decays."""
        raise NotImplementedError

    def recur(
        self, q_bta: Tensor, k_bta: Tensor, v_bta: Tensor, x_btd: Tensor, state: State, backend: str
    ) -> tuple[Tensor, Tensor]:
        """Return the reads [b, t, h, v] and the last state.

        Args:
            q_bta: Queries of all heads, behind their convolution.
            k_bta: Keys.
            v_bta: Values.
            x_btd: The layer's input.
            state: The state before the first step.
            backend: The implementation.
        """
        raise NotImplementedError

    def add_qkv(self, widths: tuple[int, int, int], to: dict[str, Any]) -> None:
        """Register the projections of q, k and v."""
        q, k, v = widths
        self.q_proj = nn.Linear(self.dim, q, bias=False, **to)
        self.k_proj = nn.Linear(self.dim, k, bias=False, **to)
        self.v_proj = nn.Linear(self.dim, v, bias=False, **to)

    def add_convs(self, to: dict[str, Any]) -> None:
        """Register the convolutions of q, k and v, if there are any."""
        if self.settings.flag("use_conv"):
            self.q_conv1d = self._conv(self.q_proj.out_features, to)
            self.k_conv1d = self._conv(self.k_proj.out_features, to)
            self.v_conv1d = self._conv(self.v_proj.out_features, to)

    def add_output(self, to: dict[str, Any]) -> None:
        """Register the norm of the reads and the last projection."""
        self.o_norm = HeadNorm(self.value_width, self.settings.number("norm_eps"), **to)
        self.o_proj = nn.Linear(self.heads * self.value_width, self.dim, bias=False, **to)

    def reset_parameters(self) -> None:
        """Draw every weight anew, in the order of the package's layer."""
        for name, child in self.named_children():
            for module in child.modules():
                if isinstance(module, HeadNorm):
                    nn.init.ones_(module.weight)
                elif isinstance(module, nn.Linear | nn.Conv1d):
                    module.reset_parameters()
            if name == self.decays_after:
                self.reset_decays()

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of S and of the convolutions' history."""
        shapes: dict[str, Shape] = {"S": (self.heads, self.value_width, self.key_width)}
        if convs := self._convs():
            channels = sum(conv.in_channels for conv in convs)
            shapes["conv"] = (self.settings.count("d_conv") - 1, channels)
        return shapes

    def forward(  # type: ignore[override]  # its cell says why it takes no resets
        self, x_btd: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        # The package cannot launch kernels for zero steps.
        backend = "reference" if is_empty(x_btd) else self.backend_for(x_btd)
        carried: State = {}
        (q_bta, k_bta, v_bta), _ = self._projected(x_btd, (), state, carried, backend)
        y_bthv, carried["S"] = self.recur(q_bta, k_bta, v_bta, x_btd, state, backend)
        y_bta = self._gated(y_bthv, x_btd, backend).flatten(-2)
        return linear(y_bta.to(q_bta.dtype), self.o_proj.weight), carried

    def gate(self, y_bthv: Tensor, gate_bta: Tensor, activation: str, backend: str) -> Tensor:
        """Return the normed reads times ``silu`` or ``sigmoid`` of the gate."""
        gate_bthv, norm = self.by_head(gate_bta), self.o_norm
        if backend == "triton":
            return package.gated_norm(y_bthv, gate_bthv, norm.weight, activation, norm.epsilon)
        normed_bthv: Tensor = norm(y_bthv)
        activate = functional.silu if activation == "silu" else torch.sigmoid
        return normed_bthv * activate(gate_bthv.to(normed_bthv.dtype))

    def by_head(self, one_bta: Tensor) -> Tensor:
        """Return channels as [b, t, h, channels of a head]."""
        split: Tensor = one_bta.unflatten(-1, (self.heads, -1))
        return split


class LowRankGate(DeltaPeer):
    """A peer whose output gate is the sigmoid of a product of two matrices, the rank v."""

    g_proj: nn.Sequential  # type: ignore[assignment]  # Gated DeltaNet has one matrix

    def low_rank(self, width: int, *, bias: bool, to: dict[str, Any]) -> nn.Sequential:
        """Return two projections in a row, by way of as many channels as a head has values."""
        return nn.Sequential(
            nn.Linear(self.dim, self.value_width, bias=False, **to),
            nn.Linear(self.value_width, width, bias=bias, **to),
        )

    def _gated(self, y_bthv: Tensor, x_btd: Tensor, backend: str) -> Tensor:
        """Return the normed reads times the output gate."""
        return self.gate(y_bthv, twice(x_btd, self.g_proj), "sigmoid", backend)


def twice(x_btd: Tensor, projections: nn.Sequential) -> Tensor:
    """Return what two projections in a row make of x."""
    first, second = projections
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    y_bta = linear(linear(x_btd, first.weight), second.weight)
    return y_bta if second.bias is None else y_bta + second.bias.to(y_bta.dtype)
