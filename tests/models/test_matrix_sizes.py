"""Matrix-state layers: parameters, initial values, published sizes, options that do not combine."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.compose import compose_config
from elman.config import ModelConfig
from elman.errors import UserError
from elman.models.build import build_model

# D 10, d 15 (expansion 1.5), n 4; scaffold A is W_in, three matrices n x d, W_out
# (matrix-state specification 1 and 2).
D, INNER, N = 10, 15, 4
A = D * INNER + 3 * N * INNER + N * D
Options = dict[str, Any]
COUNTS: list[tuple[str, Options, int]] = [
    # 2Dd + 2(d^2 + d) + 2(dk + k) + dD
    ("E14", {"n_state": 0}, 2 * D * INNER + 4 * (INNER**2 + INNER) + INNER * D),
    ("E14", {}, 3 * D * INNER + 2 * (INNER**2 + INNER) + 2 * (INNER * N + N)),
    # Dd + 2d^2 + 2Nd + N^2 + 2N + ND
    ("E63m", {}, D * INNER + 2 * INNER**2 + 2 * N * INNER + N * N + 2 * N + N * D),
    ("E63m", {"n_state": 0}, D * INNER + 4 * INNER**2 + INNER**2 + 2 * INNER + INNER * D),
    (
        "E63m",
        {"variant": "rnn"},
        D * INNER + 2 * INNER**2 + 2 * N * INNER + 2 * N * N + 2 * N + N * D,
    ),
    (
        "E63m",
        {"variant": "lite", "n_state": 0},
        D * INNER + 2 * INNER**2 + 2 * 32 * INNER + 32**2 + 64 + 32 * INNER + INNER * D,
    ),
    ("E70", {}, A + 1),
    ("E70", {"projection_norm": "spectral", "linear_state": True}, A + 1),
    ("E71", {}, A + N * INNER + 2 * N),
    ("E72", {}, A + N * INNER + 3 * N),
    ("E72", {"variant": "inverse", "use_conv": True}, A + N * INNER + 3 * N + 5 * INNER),
    ("E73", {}, A + N * INNER + N),
    ("E73", {"variant": "full", "rule": "delta"}, A + N * INNER + N),
    ("E73cp", {"use_conv": True, "d_conv": 3}, A + N * INNER + N + 4 * INNER),
    ("E74", {}, A),
    ("E74", {"projection": "full"}, A + N * INNER + N),
    ("E74", {"projection": "tied_kq"}, A - N * INNER),
    ("E74", {"projection": "tied_kvq"}, A - 2 * N * INNER),
    ("E74", {"gate": "input"}, A + N * INNER + N),
    ("E74", {"gate": "retain"}, A + 2 * N),
    ("E74", {"gate": "state"}, A + 2 * N),
    ("E74", {"update": "residual"}, A + N),
    ("E74", {"update": "ntm"}, A + 2 * N * INNER + 2 * N),
    ("E74", {"update": "retrieved_gate", "error_gate": True}, A + N * INNER + N),
    ("E74", {"update": "ema", "gate": "input"}, A + 2 * (N * INNER + N)),
    ("E74", {"update": "simple"}, A + 1),
    ("E74LowRank", {"rank": 3}, A + 3 * N),
    ("E74BlockDiagonal", {"n_state": 16}, D * INNER + 3 * 16 * INNER + 16 * D),
    ("E74FixedDecay", {}, A),
    ("E74FixedDecay", {"learned_decay": True}, A + 1),
    ("E75", {"n_heads": 3, "linear_state": True}, D * INNER + 4 * 12 * INNER + 12 + 12 * D),
]


@pytest.mark.parametrize(
    ("name", "options", "count"),
    COUNTS,
    ids=["-".join((name, *map(str, options.values()))) for name, options, _ in COUNTS],
)
def test_count(name, options, count) -> None:
    given = {"n_state": N, "expansion": 1.5} | options
    layer = getattr(elman.layers, name)(D, **given, device="meta")
    assert sum(parameter.numel() for parameter in layer.parameters()) == count


def test_count_of_e75_with_the_convolution_behind_the_projection() -> None:
    """5 H n D + H n + 3 H n (4 + 1), matrix-state specification 1."""
    layer = elman.layers.E75(
        D, n_heads=3, n_state=N, use_conv=True, conv_mode="post", device="meta"
    )
    assert sum(p.numel() for p in layer.parameters()) == 5 * 12 * D + 12 + 3 * 12 * 5


# Published or hand-derived totals, V D + depth (layer + D) + D, a second time.
TOTALS = {
    "e14": 256 * 512 + 14 * (1_443_072 + 512) + 512,
    "e63m": 82_610_880,
    "e70": 98_612_116,
    "e70_linear": 98_612_116,
    "e71": 104_022_656,
    "e72": 104_024_576,
    "e72_inverse": 104_024_576,
    "e73": 104_020_736,
    "e73_tanh": 104_020_736,
    "e73_row": 104_020_736,
    "e73_full": 104_020_736,
    "e73cp": 104_020_736,
    "e74": 100_872_832,
    "e74_1536x20_e2": 101_678_592,
    "e74_residual": 100_872_832 + 20 * 32,
    "e74_ntm": 100_872_832 + 20 * 2 * (32 * 2176 + 32),
    "e74_retrieved_gate": 100_872_832 + 20 * (32 * 2176 + 32),
    "e74_ema": 100_872_832 + 20 * (32 * 2176 + 32),
    "e74_delta_input": 100_872_832 + 20 * (32 * 2176 + 32),
    "e74_ema_input": 100_872_832 + 20 * 2 * (32 * 2176 + 32),
    "e74_lowrank": 100_872_832 + 20 * 8 * 32,
    "e74_blockdiag": 100_872_832,
    "e74_fixed_decay": 100_872_832,
}


@pytest.mark.parametrize("name", TOTALS)
def test_a_published_model_has_its_published_count(name) -> None:
    config = compose_config([f"model={name}"]).model
    assert config.expected_params == TOTALS[name]
    assert build_model(config, device="meta").num_params() == TOTALS[name]


@pytest.mark.parametrize(
    ("n", "printed"),
    [
        (1, "95.0"),
        (2, "95.2"),
        (4, "95.7"),
        (8, "96.5"),
        (16, "98.2"),
        (32, "101.7"),
        (48, "105.1"),
        (64, "108.6"),
        (96, "115.4"),
    ],
)
def test_the_runs_over_n_state_have_their_printed_counts(n, printed) -> None:
    config = wide_e74()
    sized = config.model_copy(
        update={"options": config.options | {"n_state": n}, "expected_params": None}
    )
    assert f"{build_model(sized, device='meta').num_params() / 1e6:.1f}" == printed


@cache
def wide_e74() -> ModelConfig:
    return compose_config(["model=e74_1536x20_e2"]).model


def assert_uniform(weight: Tensor, bound: float) -> None:
    """Check U(-bound, bound) by its extremes and its standard deviation."""
    assert weight.numel() >= 90
    assert weight.abs().max() <= bound
    assert weight.abs().max() >= bound * (1 - 20 / weight.numel())
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.2)


def xavier(fan_out: int, fan_in: int) -> float:
    return math.sqrt(6 / (fan_in + fan_out))


def filled(value: float, length: int = 16) -> Tensor:
    return torch.full((length,), value)


WIDE: list[tuple[str, Options, dict[str, Tensor]]] = [
    ("E70", {}, {"decay": filled(0.9, 1)}),
    ("E71", {}, {"gate_bias": filled(2), "read_slope": filled(0.1)}),
    ("E72", {}, {"gate_bias": filled(2), "read_slope": filled(0.5), "read_bias": filled(0)}),
    ("E73", {}, {"z_bias": filled(2)}),
    ("E73", {"z_activation": "tanh"}, {"z_bias": filled(1)}),
    ("E73cp", {}, {"z_bias": filled(1)}),
    ("E74", {"projection": "full"}, {"z_bias": filled(1)}),
    ("E74", {"gate": "retain"}, {"energy_slope": filled(0.5), "energy_bias": filled(0)}),
    ("E74", {"gate": "input"}, {"out_bias": filled(0)}),
    ("E74", {"update": "residual"}, {"scale": filled(0.1)}),
    ("E74", {"update": "ntm"}, {"erase_bias": filled(0), "write_bias": filled(0)}),
    ("E74", {"update": "ema"}, {"keep_bias": filled(2)}),
    ("E74", {"update": "simple"}, {"decay_logit": filled(0, 1)}),
    ("E74FixedDecay", {"learned_decay": True}, {"decay_logit": filled(2.2, 1)}),
]


@pytest.mark.parametrize(
    ("name", "options", "constants"),
    WIDE,
    ids=["-".join((name, *map(str, options.values()))) for name, options, _ in WIDE],
)
def test_initial_values(name, options, constants) -> None:
    torch.manual_seed(11)
    layer = getattr(elman.layers, name)(96, n_state=16, expansion=1.5, use_conv=True, **options)
    assert_uniform(layer.in_proj, xavier(144, 96))
    assert_uniform(layer.out_proj, xavier(96, 16))
    assert_uniform(layer.conv.weight, 0.5)
    for block in layer.cell_proj.split(16):
        assert_uniform(block, xavier(16, 144))
    matrices = {"in_proj", "cell_proj", "out_proj", "conv.weight", "conv.bias"}
    named = {n: p for n, p in layer.named_parameters() if n not in matrices}
    assert set(named) == set(constants)
    for constant, wanted in constants.items():
        assert torch.equal(named[constant], wanted), constant


def test_initial_values_of_e14() -> None:
    torch.manual_seed(11)
    layer = elman.layers.E14(96, n_state=32, expansion=1.5)
    key, dec, val, qry = layer.cell_proj.split([144, 144, 32, 32])
    assert_uniform(layer.in_proj, xavier(288, 96))
    assert_uniform(key, xavier(144, 144))
    assert_uniform(val, xavier(32, 144))
    assert_uniform(qry, xavier(32, 144))
    assert not dec.any()
    wanted = torch.cat([torch.zeros(144), torch.full((144,), 3.0), torch.zeros(64)])
    assert torch.equal(layer.cell_bias, wanted)
    assert elman.layers.E14(8, decay_init=1.5).cell_bias[8:16].eq(1.5).all()


def test_initial_values_of_e63m() -> None:
    torch.manual_seed(11)
    layer = elman.layers.E63m(96, n_state=24, variant="rnn")
    for matrix, gain in ((layer.mix, 0.5), (layer.recurrent, 0.3)):
        singular = torch.linalg.svdvals(matrix)
        torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=0)
    assert torch.equal(layer.gate_bias, filled(2, 24))
    assert torch.equal(layer.value_bias, filled(0, 24))
    for block, rows in zip(layer.cell_proj.split([96, 96, 24, 24]), (96, 96, 24, 24), strict=True):
        assert_uniform(block, xavier(rows, 96))


def test_initial_values_of_the_reduced_states() -> None:
    torch.manual_seed(11)
    lowrank = elman.layers.E74LowRank(96, n_state=40, rank=10)
    assert_uniform(lowrank.write_proj, xavier(10, 40))
    assert lowrank.basis.std().item() == pytest.approx(0.01, rel=0.1)
    blocks = elman.layers.E74BlockDiagonal(96, n_state=16)
    for block in blocks.cell_proj.split(16):
        assert_uniform(block, xavier(16, 96))


@pytest.mark.parametrize("name", ["E70", "E71", "E72", "E73", "E73cp", "E74"])
def test_mamba2_init_draws_the_outer_projections_alone(name) -> None:
    torch.manual_seed(11)
    layer = getattr(elman.layers, name)(96, n_state=16, expansion=1.0, mamba2_init="normal")
    for weight in (layer.in_proj, layer.out_proj):
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    for block in layer.cell_proj.split(16):
        assert_uniform(block, xavier(16, 96))


def test_e75_behind_its_projection_is_drawn_as_one_matrix_each() -> None:
    torch.manual_seed(11)
    layer = elman.layers.E75(96, n_heads=4, n_state=8, use_conv=True, conv_mode="post")
    for block in layer.cell_proj.split(32):
        assert_uniform(block, xavier(32, 96))
    assert torch.equal(layer.forget_bias, torch.full((4, 8), 2.0))


WRONG = [
    ("E74", {"gate": "retain", "update": "ema"}, "model.gate=retain with model.update=ema: acts"),
    ("E74", {"gate": "state", "update": "ntm"}, "model.gate=state with model.update=ntm: acts"),
    (
        "E74",
        {"projection": "full", "update": "simple"},
        "model.projection=full with model.update=simple: only the delta rule reads z; ",
    ),
    ("E74", {"error_gate": True}, "model.error_gate=true: read only with model.update="),
    ("E74", {"state": "diagonal"}, "model.state: cell e74 does not read it"),
    ("E74LowRank", {"gate": "input"}, "model.gate: cell e74_lowrank does not read it"),
    ("E74LowRank", {"update": "ema"}, "model.update: cell e74_lowrank does not read it"),
    ("E74LowRank", {"nonlinearity": "rmsnorm"}, "model.nonlinearity=rmsnorm: expected one of tanh"),
    ("E74LowRank", {"projection": "full"}, "model.projection=full: expected one of no_z, "),
    (
        "E74BlockDiagonal",
        {"n_state": 20},
        "model.n_state=20: does not divide into blocks of 8; use",
    ),
    ("E74BlockDiagonal", {"n_state": 3}, "model.n_state=3: does not divide into blocks of 8; use"),
    ("E74FixedDecay", {"learned_decay": True, "decay": 0.5}, "model.decay=0.5: read only with"),
    ("E74FixedDecay", {"decay": 1.5}, "model.decay=1.5: must be at most 1"),
    ("E70", {"spectral_radius": 0.9}, "model.spectral_radius=0.9: read only with model.projection"),
    ("E72", {"variant": "invers"}, "model.variant=invers: expected one of standard, inverse (did"),
    ("E73cp", {"rule": "modulated"}, "model.rule: cell e73cp does not read it"),
    ("E75", {"conv_mode": "post"}, "model.conv_mode=post: read only with model.use_conv=true"),
    (
        "E75",
        {"use_conv": True, "conv_mode": "post", "expansion": 2.0},
        "model.expansion=2.0: read only with model.conv_mode=pre",
    ),
    ("E14", {"expansion": 0.01}, "model.expansion=0.01: leaves no channels of model.dim=10; use "),
    ("E63m", {"n_state": -1}, "model.n_state=-1: must be at least 0"),
]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    WRONG,
    ids=["-".join((name, *map(str, options.values()))) for name, options, _ in WRONG],
)
def test_what_does_not_combine_is_refused_in_one_line(name, options, message) -> None:
    with pytest.raises(UserError) as caught:
        getattr(elman.layers, name)(D, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
