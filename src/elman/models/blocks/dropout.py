"""Dropout of the layers."""

from __future__ import annotations

from torch import Tensor, nn


class Dropout(nn.Dropout):
    """``torch.nn.Dropout``, but for a call of PyTorch where nothing is dropped: 4 us a layer."""

    def forward(self, x_btc: Tensor) -> Tensor:
        """Zero numbers of the input at random in training, and scale the rest; any shape."""
        return super().forward(x_btc) if self.p else x_btc
