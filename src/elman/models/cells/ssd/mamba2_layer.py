"""Layer Mamba2: parameters and computation of mamba-ssm's Mamba2.

Shape legend: b batch, t time, d model width, h heads, p channels of a head, i = h p, g groups of
heads, n state columns, c = i + 2 g n convolved channels, k taps, e = i + c + h rows of the first
projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.ssd.mamba2 import CELL
from elman.models.state import State
from elman.ops.add_norm.reference import EPS, rms_norm
from elman.ops.causal_conv.op import Layout, split_conv
from elman.ops.common.checks import Shape, is_empty
from elman.ops.common.gates import softplus_decay
from elman.ops.common.precision import wide_dtype
from elman.ops.linear import linear, padded_linear
from elman.ops.ssd import package
from elman.ops.ssd.op import selective_scan


class GroupedNorm(nn.Module):
    """RMSNorm of y silu(z), one mean square per group of channels, eps 1e-5."""

    def __init__(self, width: int, groups: int, **to: Any) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(width, **to))

    def forward(self, y_bti: Tensor, z_bti: Tensor) -> Tensor:
        """Return the normed product in fp32 or wider."""
        wide = wide_dtype(y_bti.dtype)
        gated_bti = y_bti.to(wide) * functional.silu(z_bti.to(wide))
        if self.groups == 1:
            return rms_norm(gated_bti, self.weight)
        grouped = gated_bti.unflatten(-1, (self.groups, -1))
        normed = functional.rms_norm(grouped, grouped.shape[-1:], None, EPS)
        return normed.flatten(-2) * self.weight.to(wide)


class Mamba2(Mixer):
    """S' = exp(-dt A) S + dt x B^T, y = S' C + D x, out = W_out norm(y silu(z)).

    z, x, B, C and dt are one projection of the input; x, B and C pass a causal convolution and
    silu (Dao and Gu 2024; lm-and-training specification 5.1). Names, shapes, order and initial
    values of the parameters are those of ``mamba_ssm.modules.mamba2.Mamba2`` 2.3.2, so that its
    state dict fits. State: ``S`` [B, H, P, n_state] in fp32 or wider, ``conv`` [B, d_conv - 1, c].
    """

    cell = CELL

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        given = self.settings
        self.width = int(self.dim * given.number("expansion"))
        self.heads = self.width // given.count("head_dim")
        self.groups, taps = given.count("n_groups"), given.count("d_conv")
        self.columns = self.groups * given.count("n_state")
        self.channels = self.width + 2 * self.columns
        # Modules draw their weights when they are made, so the order is that of the package.
        self.in_proj = nn.Linear(
            self.dim, self.width + self.channels + self.heads, bias=False, **to
        )
        self.conv1d = nn.Conv1d(
            self.channels, self.channels, taps, groups=self.channels, padding=taps - 1, **to
        )
        self.dt_bias = init.no_decay(torch.empty(self.heads, **to))
        self.A_log = init.no_decay(torch.empty(self.heads, **to))
        self._reset_decay()
        self.D = init.no_decay(torch.ones(self.heads, **to))
        self.norm = GroupedNorm(self.width, self.groups, **to)
        self.out_proj = nn.Linear(self.width, self.dim, bias=False, **to)
        self.conv1d.weight.no_weight_decay = True  # type: ignore[attr-defined]

    def reset_parameters(self) -> None:
        """Draw every weight anew, in the order of the package's layer."""
        self.in_proj.reset_parameters()
        self.conv1d.reset_parameters()
        self._reset_decay()
        nn.init.ones_(self.D)
        nn.init.ones_(self.norm.weight)
        self.out_proj.reset_parameters()

    def _reset_decay(self) -> None:
        given = self.settings
        low, high = given.number("dt_min"), given.number("dt_max")
        init.time_step_(self.dt_bias, low, high, given.number("dt_floor"))
        init.decay_rate_(self.A_log, given.number("a_min"), given.number("a_max"))

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the convolution's history and of S."""
        given = self.settings
        sizes = (given.count("head_dim"), given.count("n_state"))
        return {"conv": (given.count("d_conv") - 1, self.channels), "S": (self.heads, *sizes)}

    def projection(self) -> Tensor:
        """Return a weight that has the dtype of the projections."""
        return self.in_proj.weight

    def forward(  # type: ignore[override]  # its cell says why it takes no resets
        self, x_btd: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.cells.common.mixer.Mixer`."""
        state = self.begin(x_btd, state)
        # The package cannot launch kernels for zero steps.
        backend = "reference" if is_empty(x_btd) else self.backend_for(x_btd)
        projected_bte = padded_linear(x_btd, self.in_proj.weight)
        zeros = projected_bte.shape[-1] - len(self.in_proj.weight)
        after = (self.heads, zeros) if zeros else (self.heads,)
        pieces, history = split_conv(
            projected_bte,
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            state.get("conv"),
            Layout((self.width,), (self.width, self.columns, self.columns), after),
            silu=True,
            backend=self.kernels_beside(backend, x_btd),
        )
        z_bti, *scanned_bt, dt_bth = pieces[:5]
        y_bthp, scanned = self._scan(scanned_bt, dt_bth, state.get("S"), backend)
        y_bti = y_bthp.flatten(-2)
        if backend == "triton":
            gain_i = self.norm.weight
            y_bti = package.gated_norm(y_bti, z_bti, gain_i, self.groups, EPS)
        else:
            y_bti = self.norm(y_bti, z_bti)
        y_btd = linear(y_bti.to(projected_bte.dtype), self.out_proj.weight)
        return y_btd, {"conv": history, "S": scanned}

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor:
        """Return each head's decay [B, T, heads]."""
        weight = self.in_proj.weight[-self.heads :]
        return softplus_decay(linear(x_btd, weight), self.A_log, self.dt_bias)

    def _scan(
        self, conv_bt: list[Tensor], dt_bth: Tensor, state_bhpn: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence on x, B and C, the outputs of the convolution."""
        x_bti, b_btn, c_btn = conv_bt
        x_bthp = x_bti.unflatten(-1, (self.heads, -1))
        return selective_scan(
            x_bthp,
            dt_bth,
            b_btn.unflatten(-1, (self.groups, -1)),
            c_btn.unflatten(-1, (self.groups, -1)),
            a_log_h=self.A_log,
            dt_bias_h=self.dt_bias,
            skip_h=self.D,
            state_bhpn=state_bhpn,
            chunk=self.settings.count("chunk_size"),
            backend=backend,
        )
