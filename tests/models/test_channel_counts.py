"""Parameters, initial values and published sizes of the channel cells."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import elman.layers
from elman.compose import compose_config
from elman.models.build import build_model

# d 10, D 10 or, at expansion 1.55, 15 (truncated); n 4. Vector-state specification 1, 3 and 4,
# matrix-state specification 9: every count is spelled out from there.
D = 10
N = 4
SQUARE, WIDE = 2 * D * D, 2 * D * 15
E74 = D * D + 3 * N * D + N * D
COUNTS: list[tuple[str, dict[str, Any], int]] = [
    ("E34", {}, SQUARE + D * D + 2 * D),
    ("E34", {"expansion": 1.55}, WIDE + 15 * 15 + 2 * 15),
    ("E34", {"use_conv": True}, SQUARE + D * D + 2 * D + 5 * D),
    ("E59", {}, SQUARE + D * D + D + 1),
    ("E59b", {}, SQUARE + 2 * D * D + 2 * D),
    ("E59c", {}, SQUARE + 2 * D * D + D + 2),
    ("E61", {}, SQUARE + 2 * D * D + 2 * D),
    ("E61", {"use_tanh": True}, SQUARE + 2 * D * D + 2 * D),
    ("E61", {"variant": "additive"}, SQUARE + 2 * D * D + 2 * D),
    ("E61", {"variant": "tied"}, SQUARE + D * D + D),
    ("E61", {"expansion": 1.55, "use_conv": True, "d_conv": 2}, WIDE + 2 * 225 + 30 + 15 * 3),
    ("E62", {}, SQUARE + 2 * D * D + 2 * D),
    ("E62", {"variant": "decay"}, SQUARE + 3 * D * D + 3 * D),
    ("E62", {"variant": "tied"}, SQUARE + D * D + D),
    ("E64", {}, SQUARE + 2 * D * D + 2 * D),
    ("E65", {}, SQUARE + 2 * D * D + 3 * D),
    ("E67", {"expansion": 1.55}, WIDE + 2 * 225 + 3 * 15),
    ("E68", {}, SQUARE + 2 * D * D + 4 * D),
    ("E68", {"variant": "inverse"}, SQUARE + 2 * D * D + 4 * D),
    ("MinGRU", {}, 2 * D * D),
    ("MinGRU", {"expansion": 1.55}, 3 * D * 15),
    ("MinGRU", {"expansion": 1.05}, 3 * D * D),
    ("MinLSTM", {}, 3 * D * D),
    ("MinLSTM", {"expansion": 1.55, "form": "sequential"}, 4 * D * 15),
    ("E74Diagonal", {}, E74),
    ("E74Diagonal", {"expansion": 1.55, "use_conv": True}, 15 * D + 12 * 15 + 15 * 5 + N * D),
    ("E74Diagonal", {"projection": "tied_kq"}, E74 - N * D),
    ("E74Diagonal", {"projection": "tied_kvq"}, E74 - 2 * N * D),
    ("E74Diagonal", {"update": "simple"}, E74 + N),
    ("E74Diagonal", {"update": "ema"}, E74 + N * D + N),
    ("E74Diagonal", {"gate": "retain"}, E74 + 2 * N),
    ("E74Diagonal", {"gate": "state", "nonlinearity": "linear"}, E74 + 2 * N),
]


@pytest.mark.parametrize(
    ("name", "options", "count"),
    COUNTS,
    ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options, _ in COUNTS],
)
def test_count(name, options, count) -> None:
    if name == "E74Diagonal":
        options = options | {"n_state": N}
    layer = getattr(elman.layers, name)(D, **options, device="meta")
    assert sum(parameter.numel() for parameter in layer.parameters()) == count


BARE = {
    "e34": ("e34", 768, 94_646_016),
    "e59": ("e59", 768, 94_615_316),
    "e59b": ("e59b", 640, 98_532_480),
    "e59c": ("e59c", 640, 98_506_920),
    "e61": ("e61", 640, 98_532_480),
    "e62": ("e62", 640, 98_532_480),
    "e64": ("e64", 640, 98_532_480),
    "e65": ("e65", 640, 98_558_080),
    "e67": ("e67", 640, 98_558_080),
    "e68": ("e68", 640, 98_583_680),
    "mingru": ("mingru", 896, 96_586_112),
    "minlstm": ("minlstm", 768, 94_584_576),
    "e74_diagonal": ("e74_diagonal", 2176, 100_872_832),
    "mingru_1024x16_e2_legacy": ("mingru", 1024, 100_960_256),
    "minlstm_1024x12_e2_legacy": ("minlstm", 1024, 100_952_064),
}


@pytest.mark.parametrize("name", BARE)
def test_named_models_build_with_their_expected_count(name) -> None:
    cell, dim, count = BARE[name]
    config = compose_config([f"model={name}"]).model
    assert (config.cell, config.dim, config.expected_params) == (cell, dim, count)
    assert config.depth == (20 if "x" not in name else int(name.split("_")[1].split("x")[1]))
    assert (config.wrapper == "legacy_ln") == name.endswith("_legacy")
    assert build_model(config, device="meta").num_params() == count


# Counts printed in logs (vector-state specification 8), at sizes without a file of their own.
PUBLISHED = [
    ("e34", 1280, 6, 1.0, "rms", 29_843_200),
    ("e59", 768, 32, 1.5, "rms", 99_349_280),
    ("mingru", 1984, 6, 1.0, "legacy_ln", 47_770_752),
    ("mingru", 2752, 24, 1.0, "legacy_ln", 364_370_304),
    ("minlstm", 1280, 6, 1.0, "legacy_ln", 29_836_800),
    ("minlstm", 1984, 6, 1.0, "legacy_ln", 71_388_288),
    ("minlstm", 2304, 24, 1.0, "legacy_ln", 382_910_976),
]


@pytest.mark.parametrize(("name", "dim", "depth", "expansion", "wrapper", "count"), PUBLISHED)
def test_published_counts(name, dim, depth, expansion, wrapper, count) -> None:
    size = [f"model.dim={dim}", f"model.depth={depth}", f"model.expansion={expansion}"]
    size += [f"model.wrapper={wrapper}", "model.allow_unaligned=true"]
    config = compose_config([f"model={name}", *size]).model
    assert build_model(config, device="meta").num_params() == count


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
