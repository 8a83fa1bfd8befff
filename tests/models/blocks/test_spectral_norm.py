"""Spectral norm: value, gradient, and when its power iteration advances."""

from __future__ import annotations

import pytest
import torch

from elman.layers import E1, E42
from elman.models.blocks.spectral_norm import SpectralNorm
from elman.models.language_model import LanguageModel


def build(size: int = 6, radius: float = 0.9) -> tuple[SpectralNorm, torch.Tensor]:
    """Return a norm and a matrix, fp64, not symmetric."""
    torch.manual_seed(4)
    weight = torch.randn(size, size, dtype=torch.float64, requires_grad=True)
    norm = SpectralNorm(size, radius, dtype=torch.float64)
    norm.reset(weight)
    return norm, weight


def test_it_converges_to_the_largest_singular_value() -> None:
    norm, weight = build()
    for _ in range(200):
        norm.advance(weight)
    assert torch.linalg.matrix_norm(norm(weight), 2).item() == pytest.approx(0.9, rel=1e-6)


def test_one_advance_is_three_power_iterations() -> None:
    norm, weight = build()
    u, w = norm.u.clone(), weight.detach()
    norm.advance(weight)
    for _ in range(3):
        v = w.T @ u / ((w.T @ u).norm() + 1e-8)
        u = w @ v / ((w @ v).norm() + 1e-8)
    torch.testing.assert_close(norm.u, u, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norm.v, v, rtol=1e-12, atol=1e-12)


def test_the_gradient_is_the_specified_one() -> None:
    """Vector-state specification 2.4: k (G - <G, W> / (sigma + 1e-8) u v^T)."""
    norm, weight = build()
    gradient = torch.randn_like(weight)
    norm(weight).backward(gradient)
    w, u, v = weight.detach(), norm.u, norm.v
    sigma = u @ w @ v + 1e-8
    wanted = 0.9 / sigma * (gradient - (gradient * w).sum() / sigma * torch.outer(u, v))
    torch.testing.assert_close(weight.grad, wanted, rtol=1e-12, atol=1e-12)


def test_gradcheck() -> None:
    norm, weight = build()
    assert torch.autograd.gradcheck(norm, (weight,))


def test_it_stays_fp32_under_autocast() -> None:
    norm = SpectralNorm(16, 0.9)
    weight = torch.randn(16, 16)
    norm.reset(weight)
    wanted = norm(weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = norm(weight)
        before = norm.u.clone()
        norm.advance(weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    reference = SpectralNorm(16, 0.9)
    reference.u.copy_(before)
    reference.advance(weight)
    torch.testing.assert_close(norm.u, reference.u, rtol=0, atol=0)


def vectors(model: LanguageModel) -> list[torch.Tensor]:
    """Return copies of the iteration's vectors of all layers."""
    return [buffer.clone() for _, buffer in model.named_buffers()]


@pytest.mark.parametrize("layer", [E1, E42])
def test_only_begin_step_advances_it(layer) -> None:
    torch.manual_seed(0)
    model = LanguageModel(8, [layer(8), layer(8)])
    assert len(vectors(model)) == 4
    tokens = torch.randint(0, 256, (2, 6))
    before = vectors(model)
    model.activation_checkpointing = True
    model.loss(tokens)[0].backward()
    model.eval()
    with torch.no_grad():
        model.loss(tokens)
    for one, other in zip(before, vectors(model), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    model.begin_step()
    for one, other in zip(before, vectors(model), strict=True):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("layer", [E1, E42])
def test_a_new_layer_is_normalized_before_any_step(layer) -> None:
    torch.manual_seed(0)
    made = layer(32)
    radius = layer.cell.options["spectral_radius"].default
    top = torch.linalg.matrix_norm(made.recurrent_matrix(), 2).item()
    # The estimate approaches from below, so the true value is somewhat above the radius.
    assert radius * 0.999 < top < radius * 1.3


def test_its_vectors_are_saved_and_loaded() -> None:
    one, two = E42(8), E42(8)
    assert {"norm.u", "norm.v"} <= set(one.state_dict())
    two.load_state_dict(one.state_dict())
    x = torch.randn(1, 3, 8)
    torch.testing.assert_close(one(x)[0], two(x)[0], rtol=0, atol=0)
