"""Initial values of weights, in place, from torch's global generator.

On the meta device every function does nothing. Bounds and distributions: vector-state specification
2.3, matrix-state specification 2 and 12.1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor, nn

_P = ParamSpec("_P")
_Fill = Callable[Concatenate[Tensor, _P], None]
_zeros = False


@contextmanager
def zeros() -> Iterator[None]:
    """Make weights zeros instead of drawing them: of models whose weights are loaded next."""
    global _zeros
    before, _zeros = _zeros, True
    try:
        yield
    finally:
        _zeros = before


def _not_on_meta(fill: _Fill[_P]) -> _Fill[_P]:
    """Make ``fill`` skip tensors without storage, and run without gradients otherwise.

    For such tensors PyTorch would run the operations anyway, slowly, and import Dynamo.
    """

    @functools.wraps(fill)
    def filled(weight: Tensor, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not weight.is_meta:
            with torch.no_grad():
                if _zeros:
                    weight.zero_()
                else:
                    fill(weight, *args, **kwargs)

    return filled


def no_decay(values: Tensor) -> nn.Parameter:
    """Return a parameter without weight decay: it has two axes, but is not a matrix."""
    parameter = nn.Parameter(values)
    parameter.no_weight_decay = True  # type: ignore[attr-defined]
    return parameter


@_not_on_meta
def xavier_(weight: Tensor, gain: float = 1.0) -> None:
    """Fill a matrix [out, in] from U(-l, l), l = gain * sqrt(6 / (in + out))."""
    nn.init.xavier_uniform_(weight, gain=gain)


def xavier_blocks_(weight: Tensor, blocks: int) -> None:
    """Fill ``blocks`` equal row blocks of a matrix, each with the Xavier bound of its own shape."""
    assert weight.shape[0] % blocks == 0
    for block in weight.chunk(blocks):
        xavier_(block)


def xavier_column_blocks_(weight: Tensor, blocks: int) -> None:
    """Fill ``blocks`` equal column blocks of a matrix, each with its own shape's Xavier bound."""
    assert weight.shape[1] % blocks == 0
    for block in weight.chunk(blocks, dim=1):
        xavier_(block)


@_not_on_meta
def normal_(weight: Tensor, std: float = 0.02) -> None:
    """Fill a tensor from N(0, std^2)."""
    nn.init.normal_(weight, std=std)


@_not_on_meta
def linear_default_(weight: Tensor) -> None:
    """Fill a matrix [out, in] as PyTorch's Linear does: U(-1/sqrt(in), 1/sqrt(in))."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)


@_not_on_meta
def orthogonal_(weight: Tensor, gain: float = 1.0) -> None:
    """Fill a matrix of any shape with an orthogonal one whose singular values are ``gain``."""
    weight.copy_(gain * _random_orthogonal(weight))


@_not_on_meta
def s4d_(weight: Tensor, low: float = 0.99, high: float = 0.9999) -> None:
    """Fill a square matrix with Q diag(l) Q^T, Q random orthogonal, l linear in [low, high].

    Symmetric with positive eigenvalues, hence no oscillating modes.
    """
    assert weight.shape[0] == weight.shape[1]
    q = _random_orthogonal(weight)
    eigenvalues = torch.linspace(low, high, weight.shape[0], dtype=q.dtype, device=q.device)
    weight.copy_((q * eigenvalues) @ q.T)


@_not_on_meta
def mamba_decay_(a_log: Tensor, dt_bias: Tensor) -> None:
    """Fill the parameters of decay = exp(-exp(a_log) * softplus(logit + dt_bias)).

    exp(a_log) is uniform in (0, 16); softplus(dt_bias) is log-uniform in [0.001, 0.1].
    """
    decay_rate_(a_log, 0.0, 16.0)
    time_step_(dt_bias, 0.001, 0.1)


@_not_on_meta
def decay_rate_(a_log: Tensor, low: float, high: float) -> None:
    """Fill with logarithms of draws from U(low, high)."""
    a_log.copy_(_positive_uniform(a_log, low, high).log())


@_not_on_meta
def time_step_(dt_bias: Tensor, low: float, high: float, floor: float = 1e-4) -> None:
    """Fill so that softplus(dt_bias) is log-uniform in [low, high], at least ``floor``."""
    unit = torch.rand(dt_bias.shape, dtype=torch.float32, device=dt_bias.device)
    dt = (unit * (math.log(high) - math.log(low)) + math.log(low)).exp().clamp(min=floor)
    dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))


def _positive_uniform(like: Tensor, low: float, high: float) -> Tensor:
    """Draw from U(low, high) without 0, whose logarithm would be -inf."""
    unit = torch.rand(like.shape, dtype=torch.float32, device=like.device)
    return unit.clamp(min=2.0**-24) * (high - low) + low


def _random_orthogonal(like: Tensor) -> Tensor:
    """Draw a matrix with orthonormal rows or columns, uniformly, in fp32 or wider."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    gaussian = torch.randn(like.shape, dtype=dtype, device=like.device)
    rows, columns = like.shape
    q: Tensor
    r: Tensor
    q, r = torch.linalg.qr(gaussian if rows >= columns else gaussian.T)
    # QR fixes the signs of R's diagonal; multiplying Q by them makes Q uniform.
    q = q * r.diagonal().sign()
    return q if rows >= columns else q.T
