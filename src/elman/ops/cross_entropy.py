"""Cross entropy of a large vocabulary, without the logits of the whole batch.

The logits of a batch are positions times vocabulary: 32 x 512 positions and 50,281 tokens are 824
million numbers, and their softmax and its gradient are as many again in fp32. Here the positions
pass through the head chunk by chunk. Each chunk adds its gradients at once, so that nothing is
computed twice and one chunk's logits are in memory.

The loss and the gradient of a position come from the operations that whole logits take, and the
mean is summed in the same order. They have the same bits where a product rounds a row alike for
every number of rows. PyTorch does not promise that, so the last bits may differ. The gradient of
the head is a sum over chunks in fp32 (fp64 for fp64). On a GPU the product of each chunk is in
fp32, too. On a CPU in half precision each product is rounded before it is added.

Shape legend: n positions, c positions of a chunk, d model width, v vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from elman.base.errors import UserError
from elman.ops.common.padding import filled_weight, is_padded
from elman.ops.common.precision import compute_dtype, no_autocast, wide_dtype
from elman.ops.common.transforms import backward_is_seen

MOST_LOGITS = 1 << 25
"""Logits of a chunk: about 0.4 GB with their softmax and its gradient."""
_BYTES = 256
_ALIGNED = 128
"""A chunk's positions are a multiple of this, the rows of a tile of a GPU's products."""


def chunk_of(positions: int, vocabulary: int) -> int | None:
    """Return how many positions pass through the head at a time; None is all of them.

    The logits of bytes and of tasks are always whole.

    Args:
        positions: Predicted positions of a pass.
        vocabulary: Number of tokens.
    """
    if vocabulary <= _BYTES or positions * vocabulary <= MOST_LOGITS:
        return None
    rows = max(1, MOST_LOGITS // vocabulary)
    return rows - rows % _ALIGNED if rows > _ALIGNED else rows


def path(positions: int, vocabulary: int) -> str:
    """Return how a loss passes through the head, and why, for people.

    Args:
        positions: As of :func:`chunk_of`.
        vocabulary: As of :func:`chunk_of`.
    """
    over = f"cross entropy over {vocabulary:,} tokens"
    if chunk := chunk_of(positions, vocabulary):
        why = f"{positions * vocabulary:,} logits are more than {MOST_LOGITS:,}"
        return f"{over} in chunks of {chunk:,} of {positions:,} positions: {why}"
    few = "bytes have few" if vocabulary <= _BYTES else f"at most {MOST_LOGITS:,}"
    return f"{over} from whole logits: {few}"


def mean_in_chunks(x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, chunk: int) -> Tensor:
    """Return the mean cross entropy of the logits x W^T in nats, a scalar in fp32 (fp64 for fp64).

    The gradients of what requires them are computed with the loss, where gradients are recorded.
    There is no second derivative.

    Args:
        x_nd: Hidden states.
        weight_vd: W.
        targets_n: Tokens, int64.
        chunk: Positions at a time.
    """
    loss: Tensor
    if not torch.is_grad_enabled():
        loss = _mean(nats_in_chunks(x_nd, weight_vd, targets_n, chunk))
    else:
        loss = _InChunks.apply(x_nd, weight_vd, targets_n, chunk)  # type: ignore[no-untyped-call]
    return loss


def nats_in_chunks(x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, chunk: int) -> Tensor:
    """Return the cross entropy of each position in nats, [n], as a constant.

    The dtype and the arguments are those of :func:`mean_in_chunks`.
    """
    return _pass(x_nd, weight_vd, targets_n, chunk, of_x=False, of_weight=False).nats_n


class _Passed(NamedTuple):
    """The nats of each position, and the gradients of their mean but for a factor.

    Attributes:
        scale: The factor. In fp16 it is 1 / n: the gradients of most logits would vanish with it.
    """

    nats_n: Tensor
    dx_nd: Tensor
    dweight_vd: Tensor
    scale: float


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, chunk: int) -> Tensor:
        of_x, of_weight = ctx.needs_input_grad[:2]
        passed = _pass(x_nd, weight_vd, targets_n, chunk, of_x=of_x, of_weight=of_weight)
        ctx.save_for_backward(passed.dx_nd, passed.dweight_vd)
        ctx.dtypes, ctx.scale = (x_nd.dtype, weight_vd.dtype), passed.scale
        return _mean(passed.nats_n)

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if backward_is_seen():
            raise UserError(
                "the loss of many tokens: computed in chunks, without a second derivative; "
                "take torch.nn.functional.cross_entropy of the model's logits"
            )
        dx_nd, dweight_vd = (
            _scaled(saved, dloss * ctx.scale, dtype) if needed else None
            for saved, dtype, needed in zip(
                ctx.saved_tensors, ctx.dtypes, ctx.needs_input_grad[:2], strict=True
            )
        )
        return dx_nd, dweight_vd, None, None


def _scaled(gradient: Tensor, dloss: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a gradient times that of the loss, which half precision would round.

    A wide gradient is scaled in its place. A second pass through the same graph would find it
    scaled: autograd refuses that.
    """
    return gradient.to(wide_dtype(gradient.dtype)).mul_(dloss).to(dtype)


def _pass(
    x_nd: Tensor, weight_vd: Tensor, targets_n: Tensor, chunk: int, *, of_x: bool, of_weight: bool
) -> _Passed:
    """Return the nats and the gradients; those that nobody wants are empty."""
    dtype = compute_dtype(x_nd, x_nd.dtype)
    padded = is_padded(x_nd, weight_vd)
    with torch.no_grad(), no_autocast(x_nd):
        copy_vd = filled_weight(weight_vd, dtype) if padded else weight_vd.to(dtype)
        x_nd = x_nd.to(dtype)
        if fill := copy_vd.shape[1] - x_nd.shape[1]:
            x_nd = functional.pad(x_nd, (0, fill))
        wide, size = wide_dtype(dtype), len(weight_vd)
        share, scale = 1 / len(x_nd), 1.0
        if dtype == torch.float16:
            share, scale = scale, share
        nats_n = x_nd.new_empty(len(x_nd), dtype=wide)
        dx_nd = torch.empty_like(x_nd if of_x else x_nd[:0])
        dweight_vd = torch.zeros_like(copy_vd if of_weight else copy_vd[:0], dtype=wide)
        for first in range(0, len(x_nd), chunk):
            own = slice(first, first + chunk)
            targets_c1 = targets_n[own, None]
            logits_cv = functional.linear(x_nd[own], copy_vd)
            scores_cv = functional.log_softmax(logits_cv[:, :size].to(wide), dim=-1)
            nats_n[own] = -scores_cv.gather(1, targets_c1).squeeze(1)
            if of_x or of_weight:
                _into_gradient(scores_cv, targets_c1, share, out=logits_cv)
            del scores_cv  # or the next chunk would be in memory beside this one
            if of_x:
                torch.mm(logits_cv, copy_vd, out=dx_nd[own])
            if of_weight:
                _add_product(dweight_vd, logits_cv.T, x_nd[own])
            del logits_cv
        dx_nd, dweight_vd = dx_nd[:, : weight_vd.shape[1]], _cut(dweight_vd, weight_vd)
        return _Passed(nats_n, dx_nd, dweight_vd, scale)


def _into_gradient(scores_cv: Tensor, targets_c1: Tensor, share: float, out: Tensor) -> None:
    """Write the gradient of the logits in their place; behind the vocabulary it stays zero.

    Args:
        scores_cv: Logarithms of the probabilities; overwritten.
        targets_c1: Tokens.
        share: What a position counts.
        out: The logits, perhaps with columns that fill them up.
    """
    gradient_cv = scores_cv.exp_().mul_(share)
    # Each position has one target, so that no two writes meet.
    gradient_cv.scatter_(1, targets_c1, gradient_cv.gather(1, targets_c1) - share)
    out[:, : scores_cv.shape[1]] = gradient_cv


def _add_product(sum_vd: Tensor, left_vc: Tensor, right_cd: Tensor) -> None:
    """Add a product to a sum that may be wider than its factors."""
    if left_vc.dtype == sum_vd.dtype:
        sum_vd.addmm_(left_vc, right_cd)
    elif left_vc.is_cuda:
        sum_vd += torch.mm(left_vc, right_cd, out_dtype=sum_vd.dtype)
    else:
        sum_vd += torch.mm(left_vc, right_cd)


def _mean(nats_n: Tensor) -> Tensor:
    """Return the mean, summed in the order of PyTorch's cross entropy."""
    zeros_n = torch.zeros(len(nats_n), dtype=torch.long, device=nats_n.device)
    return functional.nll_loss(-nats_n.unsqueeze(1), zeros_n)


def _cut(filled_vd: Tensor, like_vd: Tensor) -> Tensor:
    return filled_vd[: len(like_vd), : like_vd.shape[1]]
