"""What layers with a dense recurrent matrix share: projections, start, constraint, first state.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.conv import CausalConv
from elman.models.layers.gates import self_gate
from elman.models.layers.mixer import Mixer
from elman.models.registry.spec import Value
from elman.models.spectral_norm import SpectralNorm
from elman.models.state import State
from elman.ops.dense.op import elman
from elman.ops.precision import wide_dtype


class DenseSkeleton(Mixer):
    """A projection in, a recurrence of width i, a gate and a projection out.

    With one branch the output is gated by itself, h silu(h); with two the second half of the
    first projection gates it, h silu(z) (vector-state specification 2.2). State: ``h`` [B, i] in
    fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs of the convolution.

    Args:
        dim: Model width.
        backend: As ``kernels.backend``.
        device: Where the weights are made.
        dtype: Their dtype.
        options: The cell's options.
    """

    branches: ClassVar[int] = 1

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
        given = self.settings
        self.width = int(dim * given.number("expansion"))
        self.in_proj = nn.Parameter(torch.empty(self.branches * self.width, dim, **to))
        self.conv = (
            CausalConv(self.width, given.count("d_conv"), bias=True, **to)
            if "use_conv" in self.cell.options and given.flag("use_conv")
            else None
        )
        self.out_proj = nn.Parameter(torch.empty(dim, self.width, **to))
        self.dropout = nn.Dropout(given.number("dropout"))

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Continue the sequence; see :class:`~elman.models.layers.mixer.Mixer`."""
        state = state or {}
        carried: State = {}
        p_bti, *z_bti = functional.linear(x_btd, self.in_proj).chunk(self.branches, dim=-1)
        u_bti = functional.silu(self.convolve(p_bti, state, carried))
        h_bti, carried["h"] = self.recur(
            u_bti, self.first(state.get("h"), u_bti), self.backend_for(x_btd)
        )
        o_bti = h_bti * functional.silu(z_bti[0]) if z_bti else self_gate(h_bti)
        return self.project_out(o_bti.to(p_bti.dtype)), carried

    def recur(self, u_bti: Tensor, h_bi: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider.

        Args:
            u_bti: Inputs of the cell.
            h_bi: State before the first step.
            backend: Name of the implementation.
        """
        raise NotImplementedError

    def reset_projections(self) -> None:
        """Draw the projections and the convolution."""
        self.reset_projection(self.in_proj)
        self.reset_projection(self.out_proj)
        if self.conv is not None:
            self.conv.reset_parameters()

    def reset_projection(self, weight: Tensor) -> None:
        """Draw a matrix outside the recurrence: Xavier, or N(0, 0.02^2) under mamba2_init."""
        if self.settings.values.get("mamba2_init", "none") == "none":
            init.xavier_(weight)
        else:
            init.normal_(weight)

    def convolve(self, p_bti: Tensor, state: State, carried: State) -> Tensor:
        """Apply the convolution, if there is one, and carry its history."""
        if self.conv is None:
            return p_bti
        p_bti, carried["conv"] = self.conv(p_bti, state.get("conv"))
        return p_bti

    def first(self, part_bi: Tensor | None, u_bti: Tensor) -> Tensor:
        """Return the given part of the first state, or zeros in fp32 or wider."""
        if part_bi is not None:
            return part_bi
        return u_bti.new_zeros(u_bti.shape[0], self.width, dtype=wide_dtype(u_bti.dtype))

    def project_out(self, o_bti: Tensor) -> Tensor:
        """Return the layer's output."""
        return functional.linear(self.dropout(o_bti), self.out_proj)


class DenseMixer(DenseSkeleton):
    """h' = phi(drive + W h) with one square matrix W, free or held at a largest singular value.

    The class attributes say which cell it is: ``linear`` whether phi is the identity instead of
    tanh, ``drive`` what stands beside the recurrence (``matrix`` W_x u + b, ``tied`` W u + b,
    ``input`` u alone).
    """

    linear: ClassVar[bool] = False
    drive: ClassVar[Literal["matrix", "tied", "input"]] = "matrix"

    def __init__(
        self,
        dim: int,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Value,
    ) -> None:
        super().__init__(dim, backend=backend, device=device, dtype=dtype, **options)
        square = torch.Size((self.width, self.width))
        self.input = (
            nn.Parameter(torch.empty(square, device=device, dtype=dtype))
            if self.drive == "matrix"
            else None
        )
        self.recurrent = nn.Parameter(torch.empty(square, device=device, dtype=dtype))
        self.bias = (
            None
            if self.drive == "input"
            else nn.Parameter(torch.empty(self.width, device=device, dtype=dtype))
        )
        self.norm = (
            SpectralNorm(
                self.width, self.settings.number("spectral_radius"), device=device, dtype=dtype
            )
            if self.settings.word("recurrent_norm") == "spectral"
            else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        self.reset_projections()
        if self.input is not None:
            self.reset_projection(self.input)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        start = self.settings.word("mamba2_init")
        if start == "s4d":
            self.reset_slow()
        elif start == "normal":
            init.orthogonal_(self.recurrent, self.orthogonal_start())
        else:
            init.xavier_(self.recurrent, self.settings.number("recurrent_gain"))
        if self.norm is not None:
            self.norm.reset(self.recurrent)

    def reset_slow(self) -> None:
        """Draw the recurrent matrix of mamba2_init=s4d."""
        init.s4d_(self.recurrent)

    def orthogonal_start(self) -> float:
        """Return the singular values of the recurrent matrix under mamba2_init=normal."""
        return 0.999

    def begin_step(self) -> None:
        """Advance the power iteration with the weight of this optimizer step."""
        if self.norm is not None:
            self.norm.advance(self.recurrent)

    def recurrent_matrix(self) -> Tensor:
        """Return the matrix that the recurrence uses."""
        return self.recurrent if self.norm is None else self.norm(self.recurrent)

    def recur(self, u_bti: Tensor, h_bi: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Return the states of all steps and the last one, in fp32 or wider."""
        matrix = self.recurrent_matrix()
        driven_bti = u_bti
        if self.drive != "input":
            # A tied matrix is the constrained one in both of its uses.
            weight = matrix.to(u_bti.dtype) if self.input is None else self.input
            driven_bti = functional.linear(u_bti, weight, self.bias)
        return elman(driven_bti, matrix, h_bi, linear=self.linear, backend=backend)
