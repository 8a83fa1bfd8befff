"""The gated dense layers against plain rewritings of their specifications, and their starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.models.cells.dense.gated_layer import GatedDense
from elman.ops.dense.op import dense_recurrence
from tests.models.cases import beginning

DIM = 6
CONV = {"use_conv": True, "expansion": 1.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "e60": ("E60", {"expansion": 1.5}),
    "e60-tied": ("E60", {"tied": True, "expansion": 0.7}),
    "e60-tied-conv": ("E60", {"tied": True, **CONV}),
    "e60b": ("E60b", {"expansion": 1.5}),
    "e60b-conv": ("E60b", CONV),
    "e60c": ("E60c", {"expansion": 1.5}),
    "e60c-conv": ("E60c", CONV),
    "e63": ("E63", {"expansion": 1.5}),
    "e63-conv": ("E63", {**CONV, "d_conv": 3}),
    "e63-independent": ("E63", {"variant": "independent", **CONV}),
    "e63-h-dependent": ("E63", {"variant": "h_dependent", **CONV}),
    "e63-residual": ("E63", {"variant": "residual", **CONV}),
    "e66": ("E66", {"expansion": 1.5}),
    "e66-rank-2": ("E66", {"rank": 2, **CONV}),
    "e67lr": ("E67lr", {"expansion": 1.5}),
    "e67lr-rank-3": ("E67lr", {"rank": 3, **CONV}),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def build(name: str, options: dict[str, Any]) -> GatedDense:
    """Return an fp64 layer whose every parameter is random."""
    torch.manual_seed(5)
    layer = getattr(elman.layers, name)(DIM, **options, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return layer


def sigma(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def rn(v: Tensor) -> Tensor:
    return v / torch.sqrt(v.square().mean() + 1e-6)


def branch(named: dict[str, Tensor], p_ti: Tensor) -> Tensor:
    """Return silu of the projection, convolved from zeros if the layer has taps."""
    if "conv.weight" in named:
        weight, bias = named["conv.weight"], named["conv.bias"]
        taps = weight.shape[1]
        padded = torch.cat([torch.zeros_like(p_ti[:1]).expand(taps - 1, -1), p_ti])
        rows = [
            bias + sum(weight[:, j] * padded[t + j] for j in range(taps)) for t in range(len(p_ti))
        ]
        p_ti = torch.stack(rows)
    return p_ti * sigma(p_ti)


Parts = tuple[Tensor, ...]
Rule = Callable[[Tensor, Parts, Parts, Parts, dict[str, Tensor]], Tensor]


def plain_e60(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    return rn(h + named["log_alpha"].exp() * torch.tanh(r[0] @ h + x[0] + b[0]))


def plain_e60b(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    return rn(h + sigma(x[1] + b[1]) * torch.tanh(r[0] @ h + x[0] + b[0]))


def plain_e60c(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    f = sigma(x[1] + r[1] @ h + b[1])
    return f * h + (1 - f) * torch.tanh(r[0] @ h + x[0] + b[0])


def plain_e63(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    al = sigma(x[1] + b[1])
    return al * h + (1 - al) * torch.tanh(r[0] @ h + x[0] + b[0])


def plain_independent(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    v = torch.tanh(r[0] @ h + x[0] + b[0])
    return sigma(x[1] + b[1]) * h + sigma(x[2] + b[2]) * v


def plain_h_dependent(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    v = torch.tanh(r[0] @ h + x[0] + b[0])
    return sigma(x[1] + r[1] @ h + b[1]) * h + sigma(x[2] + r[2] @ h + b[2]) * v


def plain_residual(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    return h + sigma(x[1] + b[1]) * torch.tanh(r[0] @ h + x[0] + b[0])


def plain_e66(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    al = sigma(x[1] + b[1])
    v = torch.tanh(r[0] @ (named["recurrent_down"] @ h) + x[0] + b[0])
    return al * h + (1 - al) * v


def plain_e67lr(h: Tensor, x: Parts, r: Parts, b: Parts, named: dict[str, Tensor]) -> Tensor:
    al = sigma(x[0] + r[0] @ (named["recurrent_down"] @ h) + b[0])
    return al * h + (1 - al) * torch.tanh(x[1] + b[1])


RULES: dict[str, Rule] = {
    "E60": plain_e60,
    "E60b": plain_e60b,
    "E60c": plain_e60c,
    "E63": plain_e63,
    "E63-independent": plain_independent,
    "E63-h_dependent": plain_h_dependent,
    "E63-residual": plain_residual,
    "E66": plain_e66,
    "E67lr": plain_e67lr,
}


def plain(
    layer: GatedDense, rule: Rule, x_td: Tensor, h_i: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, last state and all states of one row, step by step."""
    named = dict(layer.named_parameters())
    u = branch(named, x_td @ named["in_proj"].T)
    width = len(h_i)
    inputs = named.get("input", named["recurrent"]).split(width)
    recurrent, biases = named["recurrent"].split(width), named["bias"].split(width)
    outputs, states = [], []
    for t in range(len(u)):
        h_i = rule(h_i, tuple(matrix @ u[t] for matrix in inputs), recurrent, biases, named)
        outputs.append(named["out_proj"] @ (h_i * h_i * sigma(h_i)))
        states.append(h_i)
    return torch.stack(outputs), h_i, torch.stack(states)


@cases
def test_output_state_and_gradients_equal_the_plain_rewriting(case) -> None:
    name, options = case
    layer = build(name, options)
    rule = RULES["-".join(filter(None, (name, options.get("variant"))))]
    x = torch.randn(4, 3, DIM, dtype=torch.float64, requires_grad=True)
    start = torch.randn_like(layer(x)[1]["h"]).requires_grad_()
    y, state = layer(x, beginning(layer, x, {"h": start}))
    rows = [plain(layer, rule, x[row], start[row]) for row in range(4)]
    found = [y, state["h"]]
    wanted = [torch.stack(side) for side in list(zip(*rows, strict=True))[:2]]
    weights = [torch.randn_like(one) for one in found]
    leaves = [x, start, *layer.parameters()]
    gradients = [torch.autograd.grad(side, leaves, weights) for side in (found, wanted)]
    for one, other in [*zip(found, wanted, strict=True), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "dim", "expansion", "rank"),
    [
        ("E66", 640, 2.0, 320),
        ("E66", 100, 0.5, 16),
        ("E66", 67, 1.0, 16),
        ("E66", 68, 1.0, 17),
        ("E67lr", 640, 2.0, 160),
        ("E67lr", 60, 1.0, 8),
        ("E67lr", 72, 1.0, 9),
    ],
)
def test_rank_rule(name, dim, expansion, rank) -> None:
    layer = getattr(elman.layers, name)(dim, expansion=expansion, device="meta")
    assert layer.recurrent.shape == (int(dim * expansion), rank)
    assert layer.recurrent_down.shape == (rank, int(dim * expansion))


def assert_uniform(weight: Tensor, fan_out: int, fan_in: int) -> None:
    """Check Xavier's range and spread."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert bound * (1 - 20 / weight.numel()) <= weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def assert_orthogonal(weight: Tensor, gain: float) -> None:
    singular = torch.linalg.svdvals(weight)
    torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=0)
    assert weight.std() > 0
    if weight.shape[0] == weight.shape[1]:
        assert not torch.allclose(weight, weight.T, atol=1e-3)


STARTS: dict[str, tuple[str, dict[str, Any], list[float], list[float]]] = {
    "e60": ("E60", {}, [0.0], [0.5]),
    "e60b": ("E60b", {}, [0.0, 0.0], [0.5]),
    "e60c": ("E60c", {}, [0.0, 2.0], [0.5, 0.1]),
    "e63": ("E63", {}, [0.0, 2.0], [0.5]),
    "e63-independent": ("E63", {"variant": "independent"}, [0.0, 2.0, 0.0], [0.5]),
    "e63-h-dependent": ("E63", {"variant": "h_dependent"}, [0.0, 2.0, 0.0], [0.5, 0.1, 0.1]),
    "e63-residual": ("E63", {"variant": "residual"}, [0.0, 0.0], [0.3]),
    "e66": ("E66", {}, [0.0, 2.0], [0.5]),
    "e66-rank-200": ("E66", {"rank": 200}, [0.0, 2.0], [0.5]),
    "e67lr": ("E67lr", {}, [2.0, 0.0], [0.1]),
}


@pytest.mark.parametrize(("name", "options", "biases", "gains"), STARTS.values(), ids=list(STARTS))
def test_initial_values(name, options, biases, gains) -> None:
    torch.manual_seed(11)
    layer = getattr(elman.layers, name)(96, expansion=1.5, use_conv=True, **options)
    assert_uniform(layer.in_proj, 144, 96)
    assert_uniform(layer.out_proj, 96, 144)
    assert_uniform(layer.conv.weight, 6, 18)  # 1/sqrt(4) = sqrt(6 / 24)
    assert layer.bias.view(-1, 144).unique(dim=1).flatten().tolist() == biases
    blocks = layer.input.split(144)
    assert len(blocks) == len(biases)
    for block in blocks:
        assert_uniform(block, 144, 144)
    for block, gain in zip(layer.recurrent.split(144), gains, strict=True):
        assert_orthogonal(block, gain)
    if name in ("E66", "E67lr"):
        assert_orthogonal(layer.recurrent_down, *gains)
    if name == "E60":
        assert layer.log_alpha.exp().item() == pytest.approx(0.5)
    normal = getattr(elman.layers, name)(96, mamba2_init="normal", **options)
    for projection in (normal.in_proj, normal.out_proj):
        assert projection.std().item() == pytest.approx(0.02, rel=0.05)
    for block in normal.input.split(96):
        assert_uniform(block, 96, 96)


def test_the_tied_matrix_of_e60_starts_from_xavier_and_serves_both_sides() -> None:
    torch.manual_seed(11)
    layer = elman.layers.E60(96, tied=True)
    assert_uniform(layer.recurrent, 96, 96)
    assert {n for n, _ in layer.named_parameters()} == {
        "in_proj",
        "bias",
        "recurrent",
        "log_alpha",
        "out_proj",
    }


def test_alpha_of_e60_does_nothing_in_one_step_from_zero() -> None:
    """The scale invariance of vector-state 3.12: a gradient test of E60 needs T > 1 or a state."""
    torch.manual_seed(0)
    layer = elman.layers.E60(16, dtype=torch.float64)
    x = torch.randn(2, 3, 16, dtype=torch.float64)

    def alpha_gradient(x: Tensor, state: dict[str, Tensor] | None = None) -> float:
        (gradient,) = torch.autograd.grad(layer(x, state)[0].square().sum(), layer.log_alpha)
        return gradient.abs().item()

    one_step, more = alpha_gradient(x[:, :1]), alpha_gradient(x)
    carried = alpha_gradient(x[:, :1], layer(x)[1])
    assert one_step < 1e-3 * min(more, carried)
    assert min(more, carried) > 1e-3


@pytest.mark.parametrize("name", ["E63", "E66", "E67lr", "E60c"])
def test_a_convex_mix_keeps_the_state_within_one(name) -> None:
    layer = build(name, {})
    with torch.no_grad():
        layer.in_proj.mul_(100)
    _, state = layer(torch.randn(2, 50, DIM, dtype=torch.float64))
    assert state["h"].abs().max() <= 1


def test_the_independent_gates_of_e63_let_the_state_grow() -> None:
    layer = build("E63", {"variant": "independent"})
    with torch.no_grad():
        layer.bias.fill_(5)
    _, state = layer(torch.randn(2, 200, DIM, dtype=torch.float64))
    assert state["h"].abs().max() > 2


def test_retain_gates_stay_fp32_under_autocast() -> None:
    """In bf16 a retain logit of 10.03 is 10 and its gate 1: what leaks is 3% more, or nothing."""
    torch.manual_seed(0)
    layer = elman.layers.E63(8)
    with torch.no_grad():
        layer.bias[8:] = 10.03
        layer.input[8:] = 0
    x = torch.randn(1, 400, 8)
    wanted = layer(x)[1]["h"]
    with torch.autocast("cpu", torch.bfloat16):
        h = layer(x)[1]["h"]
    assert wanted.norm() > 1e-4
    assert (h - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "E63",
            {"variant": "residuals"},
            "model.variant=residuals: expected one of complementary, independent, h_dependent, "
            "residual (did you mean residual?)",
        ),
        (
            "E60b",
            {"tied": True},
            "model.tied: cell e60b does not read it; its options: expansion, use_conv, d_conv, "
            "mamba2_init, dropout",
        ),
        ("E66", {"rank": -1}, "model.rank=-1: must be at least 0"),
        ("E67lr", {"rank": 2.0}, "model.rank=2.0: expected a whole number"),
        (
            "E66",
            {"mamba2_init": "s4d"},
            "model.mamba2_init=s4d: expected one of none, normal",
        ),
        (
            "E60",
            {"expansion": 0.01},
            "model.expansion=0.01: leaves no channels of model.dim=6; "
            "use model.expansion=0.1667 or more",
        ),
        (
            "E60",
            {"recurrent_norm": "none"},
            "model.recurrent_norm: cell e60 does not read it",
        ),
        (
            "E60c",
            {"backend": "triton"},
            "kernels.backend=triton: cell e60c has only reference, cpu and cuda",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_options_are_refused_in_one_line(name, given, message) -> None:
    with pytest.raises(UserError) as caught:
        getattr(elman.layers, name)(DIM, **given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_step_of_the_wrong_size_is_an_error() -> None:
    a, square, h = torch.zeros(1, 1, 2), torch.zeros(2, 2), torch.zeros(1, 2)
    with pytest.raises(ValueError, match="zip"):
        dense_recurrence("mix", [a], [square], [h], backend="reference")
    with pytest.raises(AssertionError):
        dense_recurrence("mix_all", [torch.cat([a, a], -1)], [square], [h], backend="reference")
