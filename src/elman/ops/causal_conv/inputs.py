"""What both passes of the convolution's kernels read, on a CPU and on an NVIDIA GPU.

Shape legend: b batch, t time, c channels, k taps, p = k - 1 past steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """What both passes read.

    Args:
        x_btc: Input; it may be a part of wider rows.
        weight_ck: Taps: on a GPU in fp32, on a CPU in the dtype of the input.
        bias_c: Bias in the dtype of the taps, or None.
        history_bpc: The inputs before it in its dtype, or None.
        resets_bt: Where rows start anew, or None.
        silu: Whether silu follows; only on a GPU.
    """

    x_btc: Tensor
    weight_ck: Tensor
    bias_c: Tensor | None
    history_bpc: Tensor | None
    resets_bt: Tensor | None
    silu: bool
