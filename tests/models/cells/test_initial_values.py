"""Initial values: range and spread of every block (matrix-state 10-12, vector-state 2.3)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from elman.layers import E1, E42, E75, E88

DIM = 96


def assert_uniform(weight: Tensor, bound: float) -> None:
    """Check U(-bound, bound) by its extremes and its standard deviation."""
    assert weight.numel() >= 90
    assert weight.abs().max() <= bound
    assert weight.abs().max() >= bound * (1 - 20 / weight.numel())
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.2)


def xavier(fan_out: int, fan_in: int, gain: float = 1.0) -> float:
    return gain * math.sqrt(6 / (fan_in + fan_out))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make the draws the same every time."""
    torch.manual_seed(11)


@pytest.mark.parametrize(
    ("options", "separate"),
    [({}, False), ({"qkv_init": "separate"}, True), ({"tie_kv": True}, True)],
    ids=["fused", "separate", "tied"],
)
def test_e88_q_k_v(options, separate) -> None:
    layer = E88(DIM, n_heads=4, n_state=16, use_gate=True, use_write_gate=True, **options)
    qkv = layer._split(layer.in_proj, dim=0)["qkv"]
    for block in qkv.split(64):
        assert_uniform(block, xavier(64 if separate else qkv.shape[0], DIM))


def test_e88_other_projections() -> None:
    layer = E88(
        DIM,
        n_heads=8,
        n_state=16,
        use_gate=True,
        use_write_gate=True,
        use_conv=True,
        head_mix="input_weighted",
    )
    rows = layer._split(layer.in_proj, dim=0)
    assert_uniform(rows["gate"], xavier(128, DIM))
    assert_uniform(rows["decay"], xavier(8, DIM))
    assert_uniform(rows["mix"], xavier(8, DIM))
    assert_uniform(rows["write"], 1 / math.sqrt(DIM))
    assert_uniform(layer.conv.weight, 0.5)
    assert_uniform(layer.out_proj, xavier(DIM, 16))


def test_e88_output_projection_per_head_and_concatenated() -> None:
    for mix, fan_in in (("concat", 64), ("per_head", 16)):
        layer = E88(DIM, n_heads=4, n_state=16, head_mix=mix)
        for block in layer.out_proj.split(16, dim=1):
            assert_uniform(block, xavier(DIM, fan_in))


def test_e88_decays_gains_and_weights() -> None:
    layer = E88(DIM, n_heads=4000, n_state=1)
    rates = layer.decay.a_log.exp()
    assert rates.min() > 0
    assert rates.max() <= 16
    assert rates.mean().item() == pytest.approx(8, rel=0.05)
    steps = torch.nn.functional.softplus(layer.decay.dt_bias)
    assert 0.000999 < steps.min() < 0.0011
    assert 0.09 < steps.max() < 0.1001
    assert steps.log().mean().item() == pytest.approx(math.log(0.01), rel=0.05)
    constant = E88(DIM, n_heads=3, n_state=2, decay_mode="constant", head_mix="weighted_sum")
    assert torch.equal(constant.decay.logit, torch.full((3,), 4.0))
    torch.testing.assert_close(constant.head_weights.detach(), torch.full((3,), 1 / 3))
    gains = E88(
        DIM, n_heads=3, n_state=2, use_value_residual=True, use_output_norm=True, expansion=2.0
    )
    assert torch.equal(gains.value_residual, torch.ones(3, 4))
    assert torch.equal(gains.norm_gain, torch.ones(4))


@pytest.mark.parametrize("heads", [1, 4])
def test_e75_draws_each_head_by_itself(heads) -> None:
    layer = E75(DIM, n_heads=heads, n_state=16, expansion=1.5, use_conv=True)
    inner = 144
    assert_uniform(layer.in_proj, xavier(inner, DIM))
    assert_uniform(layer.out_proj, xavier(DIM, heads * 16))
    for block in layer.cell_proj.split(16):
        assert_uniform(block, xavier(16, inner))
    assert torch.equal(layer.forget_bias, torch.full((heads, 16), 2.0))
    assert_uniform(layer.conv.weight, 0.5)
    assert_uniform(layer.conv.bias, 0.5)


@pytest.mark.parametrize("layer_type", [E1, E42])
def test_dense_cells_start_from_xavier_with_a_small_recurrent_matrix(layer_type) -> None:
    layer = layer_type(DIM, expansion=1.5)
    assert_uniform(layer.in_proj, xavier(layer.in_proj.shape[0], DIM))
    assert_uniform(layer.out_proj, xavier(DIM, 144))
    assert_uniform(layer.recurrent, xavier(144, 144, 0.1))
    assert not layer.bias.any()
    if layer_type is E1:
        assert_uniform(layer.input, xavier(144, 144))
    assert_uniform(layer_type(DIM, recurrent_gain=1.0).recurrent, xavier(DIM, DIM))


@pytest.mark.parametrize(("layer_type", "gain"), [(E1, 0.999), (E42, 0.7)])
def test_mamba2_init_normal(layer_type, gain) -> None:
    layer = layer_type(DIM, mamba2_init="normal", spectral_radius=0.7)
    singular = torch.linalg.svdvals(layer.recurrent)
    torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=0)
    assert not torch.allclose(layer.recurrent, layer.recurrent.T)
    for weight in (layer.in_proj, layer.out_proj):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    if layer_type is E1:
        assert layer.input.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("layer_type", [E1, E42])
def test_mamba2_init_s4d(layer_type) -> None:
    layer = layer_type(DIM, mamba2_init="s4d")
    torch.testing.assert_close(layer.recurrent, layer.recurrent.T, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(layer.recurrent), torch.linspace(0.99, 0.9999, DIM), rtol=1e-4, atol=0
    )
    assert layer.in_proj.std().item() == pytest.approx(0.02, rel=0.05)
