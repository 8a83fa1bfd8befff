"""The norms of the language model and of the cells' outputs.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.kernels.uncompiled import traced_as_constant
from elman.models.backends import check_name, norm_backend
from elman.ops.add_norm import backends, op
from elman.ops.add_norm.reference import EPS
from elman.ops.common.precision import compute_dtype, wide_dtype


class RMSNorm(nn.Module):
    """Residual add, then RMSNorm with a gain (lm-and-training specification 1.2).

    Args:
        dim: Model width.
        backend: As ``kernels.backend``.
        device: Device of the gain.
        dtype: Its dtype.

    Raises:
        UserError: there is no such backend.
    """

    def __init__(
        self,
        dim: int,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.backend = check_name(backend)
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set the gain to 1."""
        nn.init.ones_(self.weight)

    def forward(
        self, stream_btd: Tensor, branch_btd: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Add a layer's output to the residual stream and normalize the sum.

        Args:
            stream_btd: Residual stream, fp32 or wider.
            branch_btd: The layer's output, in any dtype; None adds nothing.

        Returns:
            The sum, in the stream's dtype, and its norm in the mixers' compute dtype.
        """
        dtype = compute_dtype(stream_btd, self.weight.dtype)
        backend = self._backend_on(stream_btd.device.type)
        # A named backend must compute it; otherwise PyTorch computes what no kernel can.
        if backend != self.backend and not backends.supported(
            backend, stream_btd, branch_btd, dtype
        ):
            backend = "reference"
        return op.add_rms_norm(stream_btd, branch_btd, self.weight, dtype, backend=backend)

    @traced_as_constant
    def _backend_on(self, device_type: str) -> str:
        return norm_backend(self.backend, device_type)


class LayerNorm(nn.LayerNorm):
    """LayerNorm with gain and bias, eps 1e-5, statistics in fp32 (wrapper before 2026-01-11)."""

    def __init__(
        self,
        dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, eps=EPS, device=device, dtype=dtype)

    def forward(self, x_btd: Tensor) -> Tensor:
        """Normalize the residual stream; the result has the mixers' compute dtype."""
        wide = wide_dtype(x_btd.dtype)
        y_btd = functional.layer_norm(
            x_btd.to(wide),
            self.normalized_shape,
            self.weight.to(wide),
            self.bias.to(wide),
            self.eps,
        )
        return y_btd.to(compute_dtype(x_btd, self.weight.dtype))
