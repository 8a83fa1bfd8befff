"""Layer Gated DeltaNet: parameters and computation of flash-linear-attention's GatedDeltaNet.

Shape legend: b batch, t time, d model width, h heads, k key width of a head, v value width of a
head, a channels of a projection, e channels of several; qkv are three sequences of channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.backends import calls_package
from elman.models.blocks import init
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.gated_delta.fla_gdn import CELL, heads_of
from elman.models.state import State
from elman.ops.causal_conv.op import Layout, split_conv
from elman.ops.common.checks import Shape, is_empty
from elman.ops.common.gates import softplus_decay
from elman.ops.common.precision import wide_dtype
from elman.ops.gated_delta import package
from elman.ops.gated_delta.op import gated_delta_rule
from elman.ops.linear import joined, linear


class HeadNorm(nn.Module):
    """RMSNorm of each head's read, the gain shared by the heads."""

    def __init__(self, width: int, epsilon: float, **to: Any) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width, **to))

    def forward(self, y_bthv: Tensor) -> Tensor:
        """Return the normed reads in fp32 or wider."""
        wide = wide_dtype(y_bthv.dtype)
        gain = self.weight.to(wide)
        return functional.rms_norm(y_bthv.to(wide), gain.shape, gain, self.epsilon)


class GatedDeltaNet(Mixer):
    """S' = c S + w (v - c S k) k^T, y = S' q, out = W_o (norm(y) silu(W_g x)), per head.

    q, k and v pass a causal convolution and silu, q and k are normalized; the decay c and the
    strength w are numbers per head and step (Yang, Kautz and Hatamizadeh 2025; lm-and-training
    specification 5.2). Names, shapes, order and initial values of the parameters are those of
    ``fla.layers.GatedDeltaNet`` 0.6.0, so that its state dict fits. State: ``S`` [B, H, v, k] in
    fp32 or wider and, with ``use_conv``, ``conv`` [B, d_conv - 1, channels of q, k and v].
    """

    cell = CELL

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        given = self.settings
        self.count_heads()
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        # Modules draw their weights when they are made, so the order is that of the package.
        self.q_proj = nn.Linear(self.dim, keys, bias=False, **to)
        self.k_proj = nn.Linear(self.dim, keys, bias=False, **to)
        self.v_proj = nn.Linear(self.dim, values, bias=False, **to)
        self.a_proj = nn.Linear(self.dim, self.heads, bias=False, **to)
        self.b_proj = nn.Linear(self.dim, self.heads, bias=False, **to)
        self.A_log = init.no_decay(torch.empty(self.heads, **to))
        self.dt_bias = init.no_decay(torch.empty(self.heads, **to))
        init.mamba_decay_(self.A_log, self.dt_bias)
        if given.flag("use_conv"):
            self.q_conv1d = self._conv(keys, to)
            self.k_conv1d = self._conv(keys, to)
            self.v_conv1d = self._conv(values, to)
        if given.flag("use_gate"):
            self.g_proj = nn.Linear(self.dim, values, bias=False, **to)
        self.o_norm = HeadNorm(self.value_width, given.number("norm_eps"), **to)
        self.o_proj = nn.Linear(values, self.dim, bias=False, **to)

    def count_heads(self) -> None:
        """Set how many heads there are, and their widths."""
        given = self.settings
        self.heads = heads_of(self.dim, given.count("n_heads"))
        self.key_width = given.count("head_dim") or self.dim // self.heads
        self.value_width = int(self.key_width * given.number("expansion"))

    def _conv(self, channels: int, to: dict[str, Any]) -> nn.Conv1d:
        taps, bias = self.settings.count("d_conv"), self.settings.flag("conv_bias")
        conv = nn.Conv1d(
            channels, channels, taps, groups=channels, padding=taps - 1, bias=bias, **to
        )
        conv.weight.no_weight_decay = True  # type: ignore[attr-defined]
        return conv

    def reset_parameters(self) -> None:
        """Draw every weight anew, in the order of the package's layer."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.a_proj, self.b_proj):
            projection.reset_parameters()
        init.mamba_decay_(self.A_log, self.dt_bias)
        for conv in self._convs():
            conv.reset_parameters()
        if self.settings.flag("use_gate"):
            self.g_proj.reset_parameters()
        nn.init.ones_(self.o_norm.weight)
        self.o_proj.reset_parameters()

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of S and of the convolutions' history."""
        shapes: dict[str, Shape] = {"S": (self.heads, self.value_width, self.key_width)}
        if self.settings.flag("use_conv"):
            channels = self.heads * (2 * self.key_width + self.value_width)
            shapes["conv"] = (self.settings.count("d_conv") - 1, channels)
        return shapes

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.q_proj.weight

    def forward(  # type: ignore[override]  # its cell says why it takes no resets
        self, x_btd: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        # The package cannot launch kernels for zero steps.
        backend = "reference" if is_empty(x_btd) else self.backend_for(x_btd)
        carried: State = {}
        beside = (self.a_proj, self.b_proj)
        qkv, (decay_bth, write_bth) = self._projected(x_btd, beside, state, carried, backend)
        q_bthk, k_bthk, v_bthv = (part.unflatten(-1, (self.heads, -1)) for part in qkv)
        y_bthv, carried["S"] = gated_delta_rule(
            q_bthk,
            k_bthk,
            v_bthv,
            decay_bth,
            write_bth,
            a_log_h=self.A_log,
            dt_bias_h=self.dt_bias,
            write_scale=2.0 if self.settings.flag("allow_neg_eigval") else 1.0,
            state_bhvk=state.get("S"),
            backend=backend,
        )
        y_bta = self._gated(y_bthv, x_btd, backend).flatten(-2)
        return linear(y_bta.to(decay_bth.dtype), self.o_proj.weight), carried

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor | None:
        """Return each head's decay [B, T, heads]."""
        return softplus_decay(linear(x_btd, self.a_proj.weight), self.A_log, self.dt_bias)

    def _projected(
        self,
        x_btd: Tensor,
        beside: tuple[nn.Linear, ...],
        state: State,
        carried: State,
        backend: str,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return q, k and v after convolution and silu, and what other projections give.

        One product computes them all. The convolution's inputs are carried.
        """
        projections = (self.q_proj, self.k_proj, self.v_proj, *beside)
        weights = [projection.weight for projection in projections]
        projected_bte = linear(x_btd, joined(weights))
        widths = [weight.shape[0] for weight in weights]
        after = (*widths[3:], projected_bte.shape[-1] - sum(widths))
        if not (convs := self._convs()):
            split = projected_bte.split([*widths[:3], *after], dim=-1)
            return [functional.silu(one) for one in split[:3]], list(split[3:-1])
        biases = [conv.bias for conv in convs if conv.bias is not None]
        pieces, carried["conv"] = split_conv(
            projected_bte,
            torch.cat([conv.weight.squeeze(1) for conv in convs]),
            torch.cat(biases) if biases else None,
            state.get("conv"),
            Layout((), (widths[0], widths[1], widths[2]), after),
            silu=True,
            backend=self.kernels_beside(backend, x_btd),
        )
        return pieces[:3], pieces[3:-1]

    def _convs(self) -> list[nn.Conv1d]:
        """Return the convolutions of q, k and v, if there are any."""
        if not self.settings.flag("use_conv"):
            return []
        return [self.q_conv1d, self.k_conv1d, self.v_conv1d]

    def _gated(self, y_bthv: Tensor, x_btd: Tensor, backend: str) -> Tensor:
        """Return the normed reads, times the output gate if there is one."""
        norm = self.o_norm
        if not self.settings.flag("use_gate"):
            normed_bthv: Tensor = norm(y_bthv)
            return normed_bthv
        gate_bthv = linear(x_btd, self.g_proj.weight).unflatten(-1, (self.heads, -1))
        activation = self.settings.word("gate_activation")
        if calls_package(backend):
            return package.gated_norm(y_bthv, gate_bthv, norm.weight, activation, norm.epsilon)
        normed_bthv = norm(y_bthv)
        activate = functional.silu if activation == "silu" else torch.sigmoid
        return normed_bthv * activate(gate_bthv.to(normed_bthv.dtype))
