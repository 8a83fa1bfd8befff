"""Matrix-state layers: initial values, and options that do not combine."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError

D = 10
Options = dict[str, Any]


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
    (
        "E74",
        {"gate": "retain", "update": "ema"},
        "model.gate=retain with model.update=ema: this gate needs",
    ),
    (
        "E74",
        {"gate": "state", "update": "ntm"},
        "model.gate=state with model.update=ntm: this gate needs",
    ),
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
    (
        "E74BlockDiagonal",
        {"n_state": 20, "block_size": 6},
        "model.n_state=20: does not divide into blocks of 6; use model.n_state=18 or 24, or a",
    ),
    ("E74BlockDiagonal", {"block_size": 0}, "model.block_size=0: must be at least 1"),
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
