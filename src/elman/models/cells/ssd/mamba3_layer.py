"""Layer Mamba3: parameters and computation of mamba-ssm's Mamba3 with one input and output (SISO).

Shape legend: b batch, t time, d model width, h heads, p channels of a head, i = h p, g groups of
heads, n state columns, r pairs of columns that turn, e rows of the first projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.blocks import init
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.ssd.mamba3 import CELL, angles_of
from elman.models.state import State
from elman.ops.add_norm.reference import EPS, rms_norm
from elman.ops.common.checks import Shape, is_empty
from elman.ops.common.precision import wide_dtype
from elman.ops.linear import linear, padded_linear
from elman.ops.ssd import package
from elman.ops.ssd.mamba3 import Mamba3Inputs, mamba3_scan


class ColumnNorm(nn.Module):
    """RMSNorm of the columns B or C of a group, eps 1e-5."""

    def __init__(self, width: int, **to: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, **to))

    def forward(self, x_btgn: Tensor, backend: str) -> Tensor:
        """Return the normed columns in the dtype of the input."""
        if backend == "triton":
            return package.column_norm(x_btgn, self.weight, EPS)
        return rms_norm(x_btgn, self.weight).to(x_btgn.dtype)


class Mamba3(Mixer):
    """S' = a S + a dt (1 - l) x- B-^T + l dt x B^T, y = (S' C + D x) silu(z), W_out y, per head.

    z, x, B, C, the time step, the decay rate, l and the angles are one projection of the input; B
    and C are normed, biased and turned. Names, shapes, order and initial values of the parameters
    are those of ``mamba_ssm.modules.mamba3.Mamba3`` 2.3.2. Its form with several inputs (MIMO) and
    its norm before the last projection, both off by default, are not here. State, in fp32 or wider:
    ``angle`` [B, H, r], ``S`` [B, H, P, n_state], and the last ``k`` [B, H, n_state] and ``v``
    [B, H, P].
    """

    cell = CELL

    def add_parameters(self, to: dict[str, Any]) -> None:
        """Register all parameters; ``to`` has device and dtype."""
        given = self.settings
        self.rows, self.columns = given.count("head_dim"), given.count("n_state")
        self.width = int(self.dim * given.number("expansion"))
        self.heads, self.groups = self.width // self.rows, given.count("n_groups")
        self.pairs = angles_of(given.values)
        # Modules draw their weights when they are made, so the order is that of the package.
        self.in_proj = nn.Linear(self.dim, sum(self._widths()), bias=False, **to)
        self.dt_bias = init.no_decay(torch.empty(self.heads, **to))
        self._reset_time_steps()
        self.B_bias = nn.Parameter(torch.ones(self.heads, 1, self.columns, **to))
        self.C_bias = nn.Parameter(torch.ones(self.heads, 1, self.columns, **to))
        for bias in (self.B_bias, self.C_bias):
            bias.no_weight_decay = True  # type: ignore[attr-defined]  # 3 axes, but no matrix
        self.B_norm, self.C_norm = (ColumnNorm(self.columns, **to) for _ in range(2))
        self.D = init.no_decay(torch.ones(self.heads, **to))
        self.out_proj = nn.Linear(self.width, self.dim, bias=False, **to)

    def _widths(self) -> list[int]:
        """Return the rows of the first projection: z, x, B, C, dt, A, l, angles."""
        columns = self.groups * self.columns
        return [self.width, self.width, columns, columns, *[self.heads] * 3, self.pairs]

    def _reset_time_steps(self) -> None:
        given = self.settings
        low, high = given.number("dt_min"), given.number("dt_max")
        init.time_step_(self.dt_bias, low, high, given.number("dt_floor"))

    def reset_parameters(self) -> None:
        """Draw every weight anew, in the order of the package's layer."""
        self.in_proj.reset_parameters()
        self._reset_time_steps()
        for one in (self.B_bias, self.C_bias, self.B_norm.weight, self.C_norm.weight, self.D):
            nn.init.ones_(one)
        self.out_proj.reset_parameters()

    def state_shapes(self) -> dict[str, Shape]:
        """Return the shapes of the angles, of S, and of the last input's key and value."""
        lengths = {
            "angle": (self.pairs,),
            "S": (self.rows, self.columns),
            "k": (self.columns,),
            "v": (self.rows,),
        }
        return {name: (self.heads, *length) for name, length in lengths.items()}

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
        widths = self._widths()
        if zeros := projected_bte.shape[-1] - sum(widths):
            widths.append(zeros)
        z, x, b, c, dt, rate, trap, angle = projected_bte.split(widths, dim=-1)[:8]
        wide = wide_dtype(projected_bte.dtype)
        dt_bth = functional.softplus(dt.to(wide) + self.dt_bias.to(wide))
        rate_bth = self._rate(rate)
        inputs = Mamba3Inputs(
            x.unflatten(-1, (self.heads, -1)),
            z.unflatten(-1, (self.heads, -1)),
            self.B_norm(b.unflatten(-1, (self.groups, -1)), backend),
            self.C_norm(c.unflatten(-1, (self.groups, -1)), backend),
            -rate_bth * dt_bth,
            dt_bth,
            trap,
            angle,
            self.B_bias.squeeze(1),
            self.C_bias.squeeze(1),
            self.D,
        )
        y_bthp, carried = mamba3_scan(inputs, state, backend=backend)
        y_bti = y_bthp.flatten(-2).to(projected_bte.dtype)
        return linear(y_bti, self.out_proj.weight), carried

    def _rate(self, rate_bth: Tensor) -> Tensor:
        wide = wide_dtype(rate_bth.dtype)
        return functional.softplus(rate_bth.to(wide)).clamp(min=self.settings.number("a_floor"))

    def applied_decay(
        self, x_btd: Tensor, state: State | None = None, resets_bt: Tensor | None = None
    ) -> Tensor:
        """Return each head's decay [B, T, heads]."""
        weights = self.in_proj.weight.split(self._widths())
        dt_bth, rate_bth = (linear(x_btd, weight) for weight in weights[4:6])
        wide = wide_dtype(dt_bth.dtype)
        dt_bth = functional.softplus(dt_bth.to(wide) + self.dt_bias.to(wide))
        return torch.exp(-self._rate(rate_bth) * dt_bth)
