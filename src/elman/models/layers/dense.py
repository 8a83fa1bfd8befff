"""What layers with a dense recurrent matrix share: its start, its constraint, its first state.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.models import init
from elman.models.conv import CausalConv
from elman.models.layers.mixer import Mixer
from elman.models.registry.spec import Value
from elman.models.spectral_norm import SpectralNorm
from elman.models.state import State
from elman.ops.precision import wide_dtype


class DenseMixer(Mixer):
    """A cell with one square recurrent matrix, free or held at a largest singular value.

    Args:
        dim: Model width.
        branches: Parts of width i that the first projection yields.
        backend: As ``kernels.backend``.
        device: Where the weights are made.
        dtype: Their dtype.
        options: The cell's options.
    """

    def __init__(
        self,
        dim: int,
        *,
        branches: int,
        backend: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        **options: Value,
    ) -> None:
        super().__init__(dim, backend=backend, **options)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        given = self.settings
        self.width = int(dim * given.number("expansion"))
        self.in_proj = nn.Parameter(torch.empty(branches * self.width, dim, **to))
        self.conv = (
            CausalConv(self.width, given.count("d_conv"), bias=True, **to)
            if given.flag("use_conv")
            else None
        )
        self.recurrent = nn.Parameter(torch.empty(self.width, self.width, **to))
        self.bias = nn.Parameter(torch.empty(self.width, **to))
        self.norm = (
            SpectralNorm(self.width, given.number("spectral_radius"), **to)
            if given.word("recurrent_norm") == "spectral"
            else None
        )
        self.out_proj = nn.Parameter(torch.empty(dim, self.width, **to))
        self.dropout = nn.Dropout(given.number("dropout"))

    def reset_shared(self, orthogonal_gain: float) -> None:
        """Draw every weight of this class anew.

        Args:
            orthogonal_gain: Singular value of the recurrent matrix under mamba2_init=normal.
        """
        self.reset_projection(self.in_proj)
        self.reset_projection(self.out_proj)
        if self.conv is not None:
            self.conv.reset_parameters()
        start = self.settings.word("mamba2_init")
        if start == "s4d":
            init.s4d_(self.recurrent)
        elif start == "normal":
            init.orthogonal_(self.recurrent, orthogonal_gain)
        else:
            init.xavier_(self.recurrent, self.settings.number("recurrent_gain"))
        nn.init.zeros_(self.bias)
        if self.norm is not None:
            self.norm.reset(self.recurrent)

    def reset_projection(self, weight: Tensor) -> None:
        """Draw a matrix outside the recurrence: Xavier, or N(0, 0.02^2) under mamba2_init."""
        if self.settings.word("mamba2_init") == "none":
            init.xavier_(weight)
        else:
            init.normal_(weight)

    def begin_step(self) -> None:
        """Advance the power iteration with the weight of this optimizer step."""
        if self.norm is not None:
            self.norm.advance(self.recurrent)

    def recurrent_matrix(self) -> Tensor:
        """Return the matrix that the recurrence uses."""
        return self.recurrent if self.norm is None else self.norm(self.recurrent)

    def convolve(self, p_bti: Tensor, state: State, carried: State) -> Tensor:
        """Apply the convolution, if there is one, and carry its history."""
        if self.conv is None:
            return p_bti
        p_bti, carried["conv"] = self.conv(p_bti, state.get("conv"))
        return p_bti

    def hidden(self, h_bi: Tensor | None, u_bti: Tensor) -> Tensor:
        """Return the given first state, or zeros in fp32 or wider."""
        if h_bi is not None:
            return h_bi
        return u_bti.new_zeros(u_bti.shape[0], self.width, dtype=wide_dtype(u_bti.dtype))
