"""Spectral norm of a product of factors: the same as that of the matrix they make."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.models.blocks.spectral_norm import SpectralNorm
from tests.ops.dense import backward_dense as by_hand


def build() -> tuple[SpectralNorm, Tensor, Tensor]:
    """Return a norm and two fp64 factors of rank 3."""
    torch.manual_seed(4)
    left = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    right = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    norm = SpectralNorm(7, 0.95, dtype=torch.float64)
    norm.reset(left, right)
    return norm, left, right


def test_it_advances_as_with_the_product_formed() -> None:
    norm, left, right = build()
    whole = SpectralNorm(7, 0.95, dtype=torch.float64)
    whole.load_state_dict(norm.state_dict())
    norm.advance(left, right)
    whole.advance(left @ right)
    torch.testing.assert_close(norm.u, whole.u, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norm.v, whole.v, rtol=1e-12, atol=1e-12)


def test_its_factors_make_the_normalized_product() -> None:
    norm, left, right = build()
    scaled_left, scaled_right = norm.factors(left, right)
    torch.testing.assert_close(
        scaled_left @ scaled_right, norm(left @ right), rtol=1e-12, atol=1e-12
    )
    # Both by the same factor: neither may take the whole scale.
    torch.testing.assert_close(scaled_left / left, (scaled_right / right).T.mean().expand(7, 3))
    for _ in range(200):
        norm.advance(left, right)
    product = torch.linalg.multi_dot(norm.factors(left, right))
    assert torch.linalg.matrix_norm(product, 2).item() == pytest.approx(0.95, rel=1e-6)


def test_its_gradient_is_the_specified_one() -> None:
    """Vector-state specification 3.3, from the scaled factors back to the stored ones."""
    norm, left, right = build()
    upstream = [torch.randn_like(left), torch.randn_like(right)]
    torch.autograd.backward(norm.factors(left, right), upstream)
    wanted = by_hand.product_norm(
        *upstream, left.detach(), right.detach(), norm.u, norm.v, norm.radius
    )
    torch.testing.assert_close(left.grad, wanted[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(right.grad, wanted[1], rtol=1e-12, atol=1e-12)


def test_gradcheck() -> None:
    norm, left, right = build()
    assert torch.autograd.gradcheck(norm.factors, (left, right))


def test_it_stays_fp32_under_autocast() -> None:
    norm, left, right = build()
    norm, left, right = norm.float(), left.detach().float(), right.detach().float()
    wanted = norm.factors(left, right)
    with torch.autocast("cpu", torch.bfloat16):
        found = norm.factors(left, right)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0)
