"""Depthwise causal convolution over time whose history is carried between calls.

Shape legend: b batch, t time, c channels, k taps, p = k - 1 past steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from elman.models.blocks.init import no_decay
from elman.ops.causal_conv import op


class CausalConv(nn.Module):
    """y_t = bias + sum_j w_j * x_{t-(k-1)+j}: the last tap multiplies the current step.

    Initial values U(-1/sqrt(k), 1/sqrt(k)), PyTorch's own for a depthwise convolution
    (matrix-state specification 2, vector-state specification 2.2).
    """

    def __init__(
        self,
        channels: int,
        taps: int,
        *,
        bias: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = no_decay(torch.empty(channels, taps, device=device, dtype=dtype))
        self.bias = (
            nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the taps and the bias."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self,
        x_btc: Tensor,
        history_bpc: Tensor | None,
        resets_bt: Tensor | None = None,
        *,
        backend: str = "reference",
    ) -> tuple[Tensor, Tensor]:
        """Convolve one part of a sequence.

        Args:
            x_btc: Input.
            history_bpc: The k - 1 inputs before it; None is zeros.
            resets_bt: True where a row starts anew: the inputs before such a step count as zeros
                for this step and all later ones. None is nowhere.
            backend: Name of the layer's backend; ``cpu`` and ``cuda`` compute in a kernel.

        Returns:
            The output, and the history for the next part.
        """
        weights = (self.weight, self.bias)
        return op.causal_conv(x_btc, *weights, history_bpc, resets_bt, backend=backend)

    def of_projection(
        self,
        projected_bte: Tensor,
        history_bpc: Tensor | None,
        resets_bt: Tensor | None = None,
        *,
        backend: str,
    ) -> tuple[list[Tensor], Tensor]:
        """Convolve the first channels of a projection.

        In a kernel the gradients of all channels are written into one tensor.

        Args:
            projected_bte: The projection.
            history_bpc: As for :meth:`forward`, and so are the others.
            resets_bt: As there.
            backend: As there.

        Returns:
            The output and the other channels, and the history for the next part.
        """
        channels = self.weight.shape[0]
        layout = op.Layout((), (channels,), (projected_bte.shape[-1] - channels,))
        tensors = (projected_bte, self.weight, self.bias, history_bpc)
        return op.split_conv(*tensors, layout, resets_bt, backend=backend)

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        channels, taps = self.weight.shape
        return f"{channels}, taps={taps}, bias={self.bias is not None}"
