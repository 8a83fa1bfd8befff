"""Depthwise causal convolution over time in plain PyTorch, on any device.

Shape legend: b batch, t time, c channels, k taps, p = k - 1 past steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.checks import FLOATING, check, check_resets, empty_results, is_empty
from elman.ops.common.precision import wide_dtype
from elman.ops.common.transforms import backward_is_seen, transformed


def causal_conv(
    x_btc: Tensor,
    weight_ck: Tensor,
    bias_c: Tensor | None,
    history_bpc: Tensor | None,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve one part of a sequence: y_t = bias + sum_j w_j * x_{t-(k-1)+j}.

    Args:
        x_btc: Input.
        weight_ck: Taps; the last one multiplies the current step.
        bias_c: Bias, or None.
        history_bpc: The k - 1 inputs before it; None is zeros.
        resets_bt: True where a row starts anew: the inputs before such a step count as zeros for
            this step and all later ones. None is nowhere.

    Returns:
        The output, and the history for the next part.
    """
    channels, taps = weight_ck.shape
    y_btc: Tensor
    padded = _with_past(x_btc, history_bpc, taps)
    # A copy: a view would keep the whole padded input alive between calls.
    history = padded[:, x_btc.shape[1] :].clone()
    if is_empty(x_btc):
        read = (x_btc, weight_ck, bias_c)
        return empty_results(x_btc.shape, x_btc.dtype, [], read)[0], history
    if resets_bt is not None:
        check_resets("the convolution", resets_bt, x_btc)
        history = history.masked_fill(_before_a_reset(resets_bt, taps - 1).unsqueeze(-1), 0)
        y_btc = _cut_sum(padded, weight_ck, resets_bt)
        return (y_btc if bias_c is None else y_btc + bias_c.to(y_btc.dtype)), history
    if padded.device.type == "cpu" and padded.dtype == weight_ck.dtype:
        y_btc = _shifted_sum(padded, weight_ck)
        return (y_btc if bias_c is None else y_btc + bias_c), history
    y_bct = functional.conv1d(padded.mT, weight_ck.unsqueeze(1), bias_c, groups=channels)
    return y_bct.mT, history


def _shifted_sum(padded: Tensor, weight_ck: Tensor) -> Tensor:
    """Return y_t = sum_j w_j * padded_{t+j}, with channels adjacent in memory."""
    if transformed():
        return _plain_sum(padded, weight_ck, None)
    y_btc: Tensor = _ShiftedSum.apply(padded, weight_ck)  # type: ignore[no-untyped-call]
    return y_btc


def _cut_sum(padded: Tensor, weight_ck: Tensor, resets_bt: Tensor) -> Tensor:
    """Return the same without what lies before a reset, summed in fp32 or wider."""
    if transformed():
        return _plain_sum(padded, weight_ck, resets_bt)
    y_btc: Tensor = _CutSum.apply(padded, weight_ck, resets_bt)  # type: ignore[no-untyped-call]
    return y_btc


def _plain_sum(padded: Tensor, weight_ck: Tensor, resets_bt: Tensor | None) -> Tensor:
    """Return either sum by PyTorch's operators alone, which every transform knows."""
    wide = wide_dtype(padded.dtype)
    reads = _reads(padded, weight_ck.shape[1], resets_bt)
    products = [
        read_btc * tap_c.to(wide)
        for (read_btc, _), tap_c in zip(reads, weight_ck.unbind(1), strict=True)
    ]
    return torch.stack(products).sum(0).to(padded.dtype)


def _plain_gradients(
    dy_btc: Tensor, padded: Tensor, weight_ck: Tensor, resets_bt: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`_plain_sum`, which can be differentiated again."""
    taps, wide = weight_ck.shape[1], wide_dtype(padded.dtype)
    dpadded, dtaps = [], []
    for j, (read_btc, cut_bt1) in enumerate(_reads(padded, taps, resets_bt)):
        kept_btc = (dy_btc if cut_bt1 is None else dy_btc.masked_fill(cut_bt1, 0)).to(wide)
        product_btc = kept_btc * weight_ck[:, j].to(wide)
        dpadded.append(functional.pad(product_btc, (0, 0, j, taps - 1 - j)))
        dtaps.append((kept_btc * read_btc).sum((0, 1)))
    found = torch.stack(dpadded).sum(0), torch.stack(dtaps, 1)
    return found[0].to(padded.dtype), found[1].to(weight_ck.dtype)


def _reads(
    padded: Tensor, taps: int, resets_bt: Tensor | None
) -> list[tuple[Tensor, Tensor | None]]:
    """Return what each tap reads, zero where a reset lies behind it, and where that is."""
    steps = padded.shape[1] - taps + 1
    reads = [padded[:, j : j + steps] for j in range(taps)]
    if resets_bt is None:
        return [(read_btc, None) for read_btc in reads]
    cuts = _cuts(resets_bt, taps)
    return [(r_btc.masked_fill(c_bt1, 0), c_bt1) for r_btc, c_bt1 in zip(reads, cuts, strict=True)]


class _ShiftedSum(torch.autograd.Function):
    """The convolution as a sum of shifted products, with channels adjacent in memory.

    On a CPU, forward and backward take half the time of PyTorch's convolution, whose backward pass
    first transposes the tensors.
    """

    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight_ck: Tensor) -> Tensor:
        """Return y_t = sum_j w_j * padded_{t+j}."""
        ctx.save_for_backward(padded, weight_ck)
        steps = padded.shape[1] - weight_ck.shape[1] + 1
        taps = weight_ck.unbind(1)
        y_btc = padded[:, :steps] * taps[0]
        for j, tap_c in enumerate(taps[1:], 1):
            y_btc.addcmul_(padded[:, j : j + steps], tap_c)
        return y_btc

    @staticmethod
    def backward(ctx: Any, dy_btc: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the padded input and of the taps."""
        padded, weight_ck = ctx.saved_tensors
        if backward_is_seen():
            return _plain_gradients(dy_btc, padded, weight_ck, None)
        steps, dpadded, dtaps = dy_btc.shape[1], torch.zeros_like(padded), []
        product_btc = torch.empty_like(dy_btc)  # one for all taps stays in the cache
        for j, tap_c in enumerate(weight_ck.unbind(1)):
            dpadded[:, j : j + steps].addcmul_(dy_btc, tap_c)
            torch.mul(dy_btc, padded[:, j : j + steps], out=product_btc)
            dtaps.append(product_btc.sum((0, 1)))
        return dpadded, torch.stack(dtaps, 1)


def _before_a_reset(resets_bt: Tensor, past: int) -> Tensor:
    """Return which of the last ``past`` padded inputs have a reset behind them, [b, p]."""
    last_bp = functional.pad(resets_bt, (past, 0))[:, resets_bt.shape[1] :]
    later_bp = last_bp.flip(1).cumsum(1).flip(1) - last_bp.long()
    return later_bp > 0


def _cuts(resets_bt: Tensor, taps: int) -> list[Tensor]:
    """Return for every tap, the first one first, which steps have a reset behind what it reads."""
    steps = resets_bt.shape[1]
    cut_bt = torch.zeros_like(resets_bt)
    cuts = [cut_bt]
    for lag in range(taps - 1):
        cut_bt = cut_bt | functional.pad(resets_bt, (lag, 0))[:, :steps]
        cuts.append(cut_bt)
    return [cut_bt.unsqueeze(-1) for cut_bt in reversed(cuts)]


class _CutSum(torch.autograd.Function):
    """The convolution as a sum of shifted products that do not look across a reset.

    The sum is in fp32 or wider, as that of PyTorch's convolution.
    """

    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight_ck: Tensor, resets_bt: Tensor) -> Tensor:
        """Return y_t = sum_j w_j * padded_{t+j}, without what lies before a reset."""
        ctx.save_for_backward(padded, weight_ck, resets_bt)
        steps, wide = resets_bt.shape[1], wide_dtype(padded.dtype)
        y_btc = padded.new_zeros(*resets_bt.shape, padded.shape[2], dtype=wide)
        cuts = _cuts(resets_bt, weight_ck.shape[1])
        for j, (tap_c, cut_bt1) in enumerate(zip(weight_ck.unbind(1), cuts, strict=True)):
            y_btc += padded[:, j : j + steps].masked_fill(cut_bt1, 0) * tap_c.to(wide)
        return y_btc.to(padded.dtype)

    @staticmethod
    def backward(ctx: Any, dy_btc: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of the padded input and of the taps."""
        padded, weight_ck, resets_bt = ctx.saved_tensors
        if backward_is_seen():
            return *_plain_gradients(dy_btc, padded, weight_ck, resets_bt), None
        steps, wide = resets_bt.shape[1], wide_dtype(padded.dtype)
        dpadded, dtaps = torch.zeros_like(padded, dtype=wide), []
        cuts = _cuts(resets_bt, weight_ck.shape[1])
        for j, (tap_c, cut_bt1) in enumerate(zip(weight_ck.unbind(1), cuts, strict=True)):
            kept_btc = dy_btc.masked_fill(cut_bt1, 0).to(wide)
            dpadded[:, j : j + steps] += kept_btc * tap_c.to(wide)
            # A product with 0 would keep what is not finite before a reset.
            read_btc = padded[:, j : j + steps].masked_fill(cut_bt1, 0)
            dtaps.append((kept_btc * read_btc).sum((0, 1)))
        return dpadded.to(padded.dtype), torch.stack(dtaps, 1).to(weight_ck.dtype), None


def next_history(
    x_btc: Tensor, history_bpc: Tensor | None, taps: int, resets_bt: Tensor | None = None
) -> Tensor:
    """Return the history for the next part when other code convolves this part."""
    steps = x_btc.shape[1]
    if steps < taps - 1:
        history = _with_past(x_btc, history_bpc, taps)[:, steps:]
    else:
        history = x_btc[:, steps - (taps - 1) :].clone()
    if resets_bt is None:
        return history
    return history.masked_fill(_before_a_reset(resets_bt, taps - 1).unsqueeze(-1), 0)


def _with_past(x_btc: Tensor, history_bpc: Tensor | None, taps: int) -> Tensor:
    if history_bpc is None:
        history_bpc = x_btc.new_zeros(x_btc.shape[0], taps - 1, x_btc.shape[2])
    shape = (x_btc.shape[0], taps - 1, x_btc.shape[2])
    check("history of the convolution", history_bpc, shape, x_btc.device, FLOATING)
    return torch.cat([history_bpc.to(x_btc.dtype), x_btc], dim=1)
