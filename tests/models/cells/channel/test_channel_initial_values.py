"""Initial values of the channel cells."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import elman.layers

D = 10
RETAIN = {"retain_bias": 2.0, "candidate_bias": 0.0}
GATES = {"gate_scale": 0.5, "gate_bias": 0.0}
CONSTANTS: list[tuple[str, dict[str, Any], dict[str, float]]] = [
    ("E34", {}, {"candidate_bias": 0.0}),
    ("E34", {"mamba2_init": "normal"}, {"candidate_bias": 0.0, "coefficient": 0.99}),
    ("E59", {}, {"value_bias": 0.0, "log_alpha": math.log(0.1)}),
    ("E59b", {}, {"value_bias": 0.0, "gate_bias": -2.0}),
    (
        "E59c",
        {},
        {"value_bias": 0.0, "log_alpha": math.log(0.1), "beta_logit": math.log(0.01)},
    ),
    ("E61", {}, RETAIN),
    ("E61", {"variant": "additive"}, RETAIN),
    ("E61", {"variant": "tied"}, {"candidate_bias": 0.0}),
    ("E62", {}, {"write_bias": -2.0, "candidate_bias": 0.0}),
    ("E62", {"variant": "decay"}, RETAIN | {"write_bias": -2.0}),
    ("E62", {"variant": "tied"}, {"candidate_bias": 0.0}),
    ("E64", {}, RETAIN),
    ("E65", {}, RETAIN | {"coefficient": 0.5}),
    ("E67", {}, RETAIN | {"coefficient": 0.1}),
    ("E68", {}, RETAIN | {"coefficient": 0.5, "self_bias": 0.0}),
    ("E68", {"variant": "inverse"}, RETAIN | {"coefficient": 0.5, "self_bias": 0.5}),
    ("MinGRU", {}, {}),
    ("MinLSTM", {}, {}),
    ("E74Diagonal", {}, {}),
    ("E74Diagonal", {"update": "simple"}, {"retain_logit": -0.1}),
    ("E74Diagonal", {"update": "ema"}, {"retain_bias": 2.0}),
    ("E74Diagonal", {"gate": "retain"}, GATES),
    ("E74Diagonal", {"gate": "state"}, GATES),
]


@pytest.mark.parametrize(
    ("name", "options", "constants"),
    CONSTANTS,
    ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options, _ in CONSTANTS],
)
def test_constants_at_the_start(name, options, constants) -> None:
    """Every parameter that is no matrix is named here, but E34's drawn coefficients."""
    layer = getattr(elman.layers, name)(D, **options, dtype=torch.float64)
    found = {n: p for n, p in layer.named_parameters() if p.ndim == 1}
    assert set(found) - {"coefficient"} == set(constants) - {"coefficient"}
    for key, value in constants.items():
        torch.testing.assert_close(found[key].detach(), torch.full_like(found[key], value))


WIDTH = 96


def near_bound(weight: torch.Tensor, bound: float) -> None:
    """Assert that a matrix is uniform within a bound."""
    assert weight.abs().max() <= bound * 1.000001
    assert weight.abs().max() > 0.99 * bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


@pytest.mark.parametrize("name", ["E34", "E59", "E59b", "E61", "E62", "E64", "E68"])
def test_matrices_are_xavier_block_by_block(name) -> None:
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(WIDTH, expansion=1.5)
    outer, square = math.sqrt(6 / (WIDTH + 144)), math.sqrt(6 / (2 * 144))
    near_bound(layer.in_proj, outer)
    near_bound(layer.out_proj, outer)
    for block in layer.cell_proj.split(144):
        near_bound(block, square)


def test_the_additive_write_starts_at_a_tenth() -> None:
    torch.manual_seed(0)
    gate, value = elman.layers.E61(WIDTH, variant="additive").cell_proj.chunk(2)
    near_bound(gate, math.sqrt(6 / (2 * WIDTH)))
    near_bound(value, 0.1 * math.sqrt(6 / (2 * WIDTH)))


def test_e74_matrices_have_the_bound_of_their_own_shape() -> None:
    torch.manual_seed(0)
    layer = elman.layers.E74Diagonal(WIDTH, n_state=32, update="ema")
    for block in layer.cell_proj.split(32):
        near_bound(block, math.sqrt(6 / (WIDTH + 32)))
    near_bound(layer.out_proj, math.sqrt(6 / (WIDTH + 32)))


@pytest.mark.parametrize(("name", "blocks"), [("MinGRU", 2), ("MinLSTM", 3)])
def test_minimal_matrices_have_the_bound_of_their_fused_shape(name, blocks) -> None:
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(WIDTH, expansion=1.5)
    near_bound(layer.cell_proj, math.sqrt(6 / (WIDTH + blocks * 144)))
    near_bound(layer.out_proj, math.sqrt(6 / (WIDTH + 144)))


def test_e34_coefficients_are_drawn_below_their_limit() -> None:
    torch.manual_seed(0)
    c = elman.layers.E34(1000).coefficient.detach()
    assert 0.9 <= c.min() < 0.901
    assert 0.989 < c.max() <= 0.99


def test_e59c_matrix_is_a_hundredth_of_an_orthogonal_one() -> None:
    values = torch.linalg.svdvals(elman.layers.E59c(12, dtype=torch.float64).mix.detach())
    torch.testing.assert_close(values, torch.full_like(values, 0.01))


@pytest.mark.parametrize("name", ["E34", "E61", "E74Diagonal"])
def test_normal_start(name) -> None:
    """Of the outer projections; E34 draws its own matrix so too."""
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(WIDTH, mamba2_init="normal")
    normal = [layer.in_proj, layer.out_proj] + ([layer.cell_proj] if name == "E34" else [])
    for weight in normal:
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    if name != "E34":
        near_bound(layer.cell_proj[:WIDTH], layer.cell_proj[:WIDTH].abs().max().item())
