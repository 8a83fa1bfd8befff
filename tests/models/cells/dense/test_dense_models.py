"""Published models of the dense cells: initial values, the originals' defects, training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.config.compose import compose_config
from elman.models.language_model import LanguageModel
from elman.sections.model import ModelConfig

DIM = 96


def model(name: str, *overrides: str) -> ModelConfig:
    """Return the typed configuration of ``model=<name>`` with overrides."""
    return compose_config([f"model={name}", *overrides]).model


@pytest.mark.parametrize(
    ("dim", "expansion", "rank"),
    [
        (512, 1.5, 170),
        (512, 2.0, 128),
        (512, 3.0, 85),
        (512, 4.0, 64),
        (512, 1.0, 256),
        (40, 2.0, 16),
    ],
)
def test_the_rank_rule_of_e4(dim, expansion, rank) -> None:
    layer = elman.layers.E4(dim, expansion=expansion, device="meta")
    assert layer.left.shape == (int(dim * expansion), rank)
    assert layer.right.shape == (rank, int(dim * expansion))
    given = elman.layers.E4(dim, expansion=expansion, rank=7, device="meta")
    assert given.left.shape[1] == 7


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make the draws the same every time."""
    torch.manual_seed(11)


def assert_uniform(weight: Tensor, bound: float) -> None:
    """Check U(-bound, bound) by its extremes and its standard deviation."""
    assert weight.numel() >= 4000
    assert bound * 0.99 <= weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


def assert_normal(weight: Tensor, std: float = 0.02) -> None:
    assert weight.numel() >= 4000
    assert weight.std().item() == pytest.approx(std, rel=0.05)
    assert weight.abs().max() > 3 * std


def assert_singular_values(weight: Tensor, value: float) -> None:
    found = torch.linalg.svdvals(weight.double())
    torch.testing.assert_close(found, torch.full_like(found, value), rtol=1e-4, atol=0)


def xavier(fan_out: int, fan_in: int, gain: float = 1.0) -> float:
    return gain * math.sqrt(6 / (fan_in + fan_out))


@pytest.mark.parametrize("name", ["E0", "E33", "E36", "E37", "E39"])
def test_square_recurrent_matrices_start_small(name) -> None:
    """Every published run overrode the constructors' gain of 1 by 0.1 (vector-state 2.5)."""
    layer_type = getattr(elman.layers, name)
    layer = layer_type(DIM, expansion=1.5)
    assert_uniform(layer.recurrent, xavier(144, 144, 0.1))
    assert_uniform(layer_type(DIM, recurrent_gain=1.0).recurrent, xavier(DIM, DIM))
    assert_uniform(layer.in_proj, xavier(144, DIM))
    assert_uniform(layer.out_proj, xavier(DIM, 144))
    if name in ("E33", "E36"):
        assert_uniform(layer.input, xavier(144, 144))
    if name == "E39":
        assert layer.bias is None
    elif name != "E0":
        assert not layer.bias.any()


def test_e0_starts_block_by_block_and_its_factor_below_one_half() -> None:
    layer = elman.layers.E0(DIM, expansion=1.5, recurrent_norm="scaled_orthogonal")
    for block in layer.cell_proj.split(144):
        assert_uniform(block, xavier(144, 144))
    assert not layer.cell_bias.any()
    assert layer.scale_logit.item() == pytest.approx(-0.01)
    assert_singular_values(layer.recurrent, 1.0)
    assert_singular_values(layer.recurrent_matrix().detach(), 0.4975)


def test_e4_starts_from_two_factors_of_0_3() -> None:
    layer = elman.layers.E4(DIM, expansion=2.0)
    assert_uniform(layer.in_proj, xavier(384, DIM))
    assert_uniform(layer.out_proj, xavier(DIM, 192))
    assert_uniform(layer.input, xavier(192, 192))
    assert layer.rank == 24
    for factor in (layer.left, layer.right):
        assert_singular_values(factor, 0.3)
    assert not layer.bias.any()
    assert layer.norm.radius == 0.95
    half = elman.layers.E4(DIM, dtype=torch.bfloat16)
    found = torch.linalg.svdvals(half.left.double())
    torch.testing.assert_close(found, torch.full_like(found, 0.3), rtol=1e-2, atol=0)


def test_e56_starts_from_one_xavier_matrix() -> None:
    layer = elman.layers.E56(DIM, expansion=1.5)
    assert_uniform(layer.in_proj, xavier(288, DIM))
    assert_uniform(layer.out_proj, xavier(DIM, 144))
    for half in layer.cell_proj.chunk(2, dim=1):
        assert_uniform(half, math.sqrt(2 / 144))
    assert not layer.bias.any()
    normal = elman.layers.E56(DIM, mamba2_init="normal")
    on_input, on_state = normal.cell_proj.detach().chunk(2, dim=1)
    assert_normal(on_input)
    assert_singular_values(on_state, 0.999)
    assert_normal(normal.in_proj)
    assert_normal(normal.out_proj)


@pytest.mark.parametrize(("name", "gates"), [("CudaGRU", 3), ("CudaLSTM", 4)])
def test_gru_and_lstm_start_as_the_identity_block(name, gates) -> None:
    layer = getattr(elman.layers, name)(DIM, expansion=1.5)
    assert not layer.out_proj.any()
    assert_normal(layer.in_proj)
    assert_normal(layer.cell_proj)
    assert layer.cell_proj.shape == (gates * 144, 144)
    blocks = list(layer.recurrent.split(144))
    blocks += layer.recurrent_gates.split(144) if name == "CudaGRU" else []
    assert len(blocks) == gates
    for block in blocks:
        assert_singular_values(block.detach(), 1.0)
    bias = torch.zeros(gates * 144)
    if name == "CudaLSTM":
        bias[:144] = 1.0
    assert torch.equal(layer.cell_bias.detach(), bias)
    assert not layer(torch.randn(2, 3, DIM))[0].any()


@pytest.mark.parametrize(
    ("name", "gain", "slow"),
    [
        ("E33", 0.999, (0.99, 0.9999)),
        ("E36", 0.95, (0.95, 0.99)),
        ("E37", 0.999, (0.99, 0.9999)),
        ("E39", 0.999, (0.99, 0.9999)),
    ],
)
def test_mamba2_init(name, gain, slow) -> None:
    normal = getattr(elman.layers, name)(DIM, mamba2_init="normal")
    assert_singular_values(normal.recurrent.detach(), gain)
    assert not torch.allclose(normal.recurrent, normal.recurrent.T)
    s4d = getattr(elman.layers, name)(DIM, mamba2_init="s4d")
    eigenvalues = torch.linalg.eigvalsh(s4d.recurrent.detach())
    torch.testing.assert_close(eigenvalues, torch.linspace(*slow, DIM), rtol=1e-4, atol=0)
    torch.testing.assert_close(s4d.recurrent, s4d.recurrent.T, rtol=0, atol=1e-5)
    for layer in (normal, s4d):
        assert_normal(layer.in_proj)
        assert_normal(layer.out_proj)
        assert layer.input is None or layer.input.std().item() == pytest.approx(0.02, rel=0.05)


RADII = {"e0": 0.99, "e4": 0.95, "e33": 0.99, "e36": 0.95, "e37": 0.99, "e37v2": 0.99, "e39": 0.99}


@pytest.mark.parametrize("name", RADII)
def test_published_models_are_normalized_at_their_radius(name) -> None:
    options = model(name).options
    assert options["recurrent_norm"] == "spectral"
    assert options["spectral_radius"] == RADII[name]


def test_e37_and_e37v2_are_one_function_under_two_names() -> None:
    one, two = model("e37"), model("e37v2")
    assert (one.name, two.name) == ("e37", "e37v2")
    assert (one.cell, one.dim, one.depth, one.options) == (
        two.cell,
        two.dim,
        two.depth,
        two.options,
    )


EVERY = ["E0", "E4", "E33", "E36", "E37", "E39", "E56", "CudaGRU", "CudaLSTM"]


def randomized(name: str, dtype: torch.dtype) -> Any:
    """Return a layer of random weights, the same bf16 numbers whatever the dtype."""
    torch.manual_seed(3)
    layer = getattr(elman.layers, name)(12, expansion=1.5, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((torch.randn_like(parameter) * 0.25).bfloat16())
    layer.begin_step()
    return layer.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_long_gradients_of_every_dtype_are_those_of_fp64(name, dtype) -> None:
    """The originals' GRU and LSTM had empty fp32 and fp16 backward passes."""
    gradients = []
    for wanted in (torch.float64, dtype):
        layer = randomized(name, wanted)
        x = torch.randn(2, 512, 12, generator=torch.Generator().manual_seed(1)).bfloat16()
        y, _ = layer(x.to(wanted))
        # A sum over all steps that does not average out.
        (y.double() * (1 + x.double())).mean(0).sum().backward()
        gradients.append({n: p.grad.double() for n, p in layer.named_parameters()})
    exact, found = gradients
    limit = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.06}[dtype]
    for parameter, gradient in exact.items():
        assert gradient.norm() > 0
        error = (found[parameter] - gradient).norm() / gradient.norm()
        assert error < limit, f"{parameter}: {error:.2g}"


@pytest.mark.parametrize("name", EVERY)
def test_gradients_reach_the_first_state_and_leave_the_last(name) -> None:
    """No kernel of the originals returned the one, and few took the other."""
    layer = randomized(name, torch.float64)
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    _, shapes = layer(x)
    start = {part: torch.randn_like(shapes[part]).requires_grad_() for part in shapes}
    y, final = layer(x, start)
    last = torch.stack([tensor.sum() for tensor in final.values()]).sum()
    for loss in (y.sum(), last):
        for gradient in torch.autograd.grad(loss, list(start.values()), retain_graph=True):
            assert gradient.abs().max() > 1e-4


def test_e0_has_a_silu_after_a_convolution_alone() -> None:
    """Without a convolution the cell is odd in its input but for the gate; with silu it is not."""
    layer = randomized("E0", torch.float64)
    with torch.no_grad():
        layer.cell_bias.zero_()
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    _, one = layer(x)
    _, other = layer(-x)
    torch.testing.assert_close(one["h"], -other["h"], rtol=1e-12, atol=1e-12)
    with_conv = elman.layers.E0(12, use_conv=True, dtype=torch.float64)
    with torch.no_grad():
        with_conv.conv.bias.zero_()
    assert not torch.allclose(with_conv(x)[1]["h"], -with_conv(-x)[1]["h"], rtol=1e-3)


SMOKE = {name: {} for name in EVERY}
SMOKE |= {"E0 orthogonal": {"recurrent_norm": "scaled_orthogonal"}, "E4 rank 2": {"rank": 2}}


@pytest.mark.parametrize("name", SMOKE)
def test_training_learns_what_only_a_state_can_know(name) -> None:
    """aabbaabb...: the next byte depends on the two before; alone the last one gives ln 2."""
    layer_type = getattr(elman.layers, name.split()[0])
    network = LanguageModel(16, [layer_type(16, **SMOKE[name])], vocab_size=2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02)
    pattern = torch.tensor([0, 0, 1, 1] * 6)
    tokens = torch.stack([pattern[phase : phase + 17] for phase in range(4)])
    losses = []
    for _ in range(50):
        network.begin_step()
        loss, _ = network.loss(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.6
    assert sum(losses[-5:]) / 5 < 0.35
