"""The MLP behind every mixer that ``model.mlp_ratio`` asks for.

Shape legend: b batch, t time, d model width, m hidden channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.blocks.norm import RMSNorm
from elman.ops.linear import linear
from elman.ops.silu_gate.op import swiglu


class SwiGLU(nn.Module):
    """W_out (silu(W_1 u) o W_3 u), u = RMSNorm(x): Shazeer 2020, GLU variants (arXiv 2002.05202).

    Both input matrices are drawn by Xavier's rule, as that of the output.

    Args:
        dim: Model width.
        hidden: Hidden channels.
        backend: As ``kernels.backend``, for the norm.
        device: Where the weights are made.
        dtype: Their dtype.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = RMSNorm(dim, backend=backend, **to)
        # Rows: the gate W_1, the value W_3.
        self.in_proj = nn.Parameter(torch.empty(2 * hidden, dim, **to))
        self.out_proj = nn.Parameter(torch.empty(dim, hidden, **to))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the three matrices anew, and set the gain to 1."""
        self.norm.reset_parameters()
        init.xavier_blocks_(self.in_proj, 2)
        init.xavier_(self.out_proj)

    def forward(self, stream_btd: Tensor, branch_btd: Tensor) -> tuple[Tensor, Tensor]:
        """Add a mixer's output to the residual stream, and compute what is added next.

        Args:
            stream_btd: Residual stream, fp32 or wider.
            branch_btd: The mixer's output.

        Returns:
            The stream with the mixer's output, and the output of the MLP.
        """
        stream_btd, x_btd = self.norm(stream_btd, branch_btd)
        kernel = x_btd.is_cuda and self.norm.backend != "reference"
        hidden_btm = swiglu(linear(x_btd, self.in_proj), backend="cuda" if kernel else "reference")
        return stream_btd, linear(hidden_btm, self.out_proj)
