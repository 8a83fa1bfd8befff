"""Layers E75, E1 and E42 against plain rewritings of their specifications, in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from elman.layers import E1, E42, E75
from tests.models.cases import beginning

DIM = 6
SHARED: dict[str, dict[str, Any]] = {
    "free": {"recurrent_norm": "none"},
    "spectral": {"spectral_radius": 0.7},
    "conv": {"use_conv": True},
    "wider": {"expansion": 1.5},
    "narrower-three-taps": {"expansion": 0.5, "use_conv": True, "d_conv": 3},
}
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "e75": (E75, {"n_heads": 3, "n_state": 4}),
    "e75-one-head": (E75, {"n_heads": 1, "n_state": 5}),
    "e75-conv": (E75, {"n_heads": 2, "n_state": 3, "use_conv": True}),
    "e75-wider": (E75, {"n_heads": 2, "n_state": 3, "expansion": 2.0}),
    "e75-narrower": (E75, {"n_heads": 2, "n_state": 3, "expansion": 0.7, "use_conv": True}),
}
CASES |= {f"e1-{name}": (E1, options) for name, options in SHARED.items()}
CASES |= {f"e42-{name}": (E42, options) for name, options in SHARED.items()}


def build(layer_type: type, options: dict[str, Any]) -> torch.nn.Module:
    """Return an fp64 layer whose every parameter is random."""
    torch.manual_seed(5)
    layer = layer_type(DIM, **options, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    layer.begin_step()
    return layer


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def self_gate(y: Tensor) -> Tensor:
    return y * y * sigmoid(y)


def first_branch(named: dict[str, Tensor], p_ti: Tensor) -> Tensor:
    """Return silu of the projection, convolved from zeros if the layer has taps."""
    if "conv.weight" not in named:
        return silu(p_ti)
    weight, bias = named["conv.weight"], named["conv.bias"]
    taps = weight.shape[1]
    rows = []
    for t in range(len(p_ti)):
        row = bias
        for j in range(taps):
            if t - taps + 1 + j >= 0:
                row = row + weight[:, j] * p_ti[t - taps + 1 + j]
        rows.append(row)
    return silu(torch.stack(rows))


def matrix(layer: torch.nn.Module, named: dict[str, Tensor]) -> Tensor:
    """Return the recurrent matrix in force (vector-state specification 2.4)."""
    weight = named["recurrent"]
    if layer.norm is None:
        return weight
    sigma = (layer.norm.u @ weight @ layer.norm.v).abs()
    return weight * layer.norm.radius / (sigma + 1e-8)


def plain_e75(layer: E75, x_td: Tensor, s_hnn: Tensor) -> tuple[Tensor, Tensor]:
    named = dict(layer.named_parameters())
    c = first_branch(named, x_td @ named["in_proj"].T)
    heads, n = named["forget_bias"].shape
    w_k, w_v, w_q, w_beta = named["cell_proj"].split(heads * n)
    states, outputs = list(s_hnn), []
    for t in range(len(c)):
        reads = []
        for h in range(heads):
            rows = slice(h * n, (h + 1) * n)
            k, v, q, logit = (w[rows] @ c[t] for w in (w_k, w_v, w_q, w_beta))
            beta = sigmoid(logit + named["forget_bias"][h])
            k = k / (k.square().sum().sqrt() + 1e-6)
            delta = v - states[h] @ k
            states[h] = torch.tanh(beta[:, None] * states[h] + torch.outer(delta, k))
            reads.append(self_gate(states[h] @ q))
        outputs.append(named["out_proj"] @ torch.cat(reads))
    return torch.stack(outputs), torch.stack(states)


def plain_e1(layer: E1, x_td: Tensor, h_i: Tensor) -> tuple[Tensor, Tensor]:
    named = dict(layer.named_parameters())
    w_p, w_z = named["in_proj"].split(len(h_i))
    u, z, w_h = first_branch(named, x_td @ w_p.T), x_td @ w_z.T, matrix(layer, named)
    outputs = []
    for t in range(len(u)):
        h_i = torch.tanh(named["input"] @ u[t] + w_h @ h_i + named["bias"])
        outputs.append(named["out_proj"] @ (h_i * silu(z[t])))
    return torch.stack(outputs), h_i


def plain_e42(layer: E42, x_td: Tensor, h_i: Tensor) -> tuple[Tensor, Tensor]:
    named = dict(layer.named_parameters())
    u, w = first_branch(named, x_td @ named["in_proj"].T), matrix(layer, named)
    outputs = []
    for t in range(len(u)):
        h_i = w @ u[t] + w @ h_i + named["bias"]
        outputs.append(named["out_proj"] @ self_gate(h_i))
    return torch.stack(outputs), h_i


PLAIN = {E75: (plain_e75, "S"), E1: (plain_e1, "h"), E42: (plain_e42, "h")}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_state_and_gradients_equal_the_plain_rewriting(case) -> None:
    layer = build(*case)
    plain, name = PLAIN[type(layer)]
    x = torch.randn(3, 5, DIM, dtype=torch.float64, requires_grad=True)
    start = torch.randn_like(layer(x)[1][name]).requires_grad_()
    y, state = layer(x, beginning(layer, x, {name: start}))
    rows = [plain(layer, x[row], start[row]) for row in range(3)]
    wanted = [torch.stack(side) for side in zip(*rows, strict=True)]
    found = [y, state[name]]
    weights = [torch.randn_like(one) for one in found]
    leaves = [x, start, *layer.parameters()]
    gradients = [
        torch.autograd.grad(
            sum((w * one).sum() for w, one in zip(weights, side, strict=True)), leaves
        )
        for side in (found, wanted)
    ]
    for one, other in [*zip(found, wanted, strict=True), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("heads", "after"), [(1, False), (2, True)], ids=["single-head", "multi-head"]
)
def test_e75_dropout_stands_before_or_after_the_output_projection(heads, after) -> None:
    torch.manual_seed(0)
    layer = E75(DIM, n_heads=heads, n_state=8, dropout=0.5)
    y, _ = layer(torch.randn(4, 50, DIM))
    zeros = (y == 0).double().mean().item()
    assert (0.4 < zeros < 0.6) if after else zeros < 0.01
    layer.eval()
    x = torch.randn(1, 3, DIM)
    torch.testing.assert_close(layer(x)[0], layer(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("layer_type", [E1, E42])
def test_the_constraint_reaches_every_use_of_the_matrix(layer_type) -> None:
    """A spectral norm makes the layer blind to the scale of its recurrent matrix."""
    torch.manual_seed(0)
    layer = layer_type(DIM, dtype=torch.float64)
    x = torch.randn(2, 6, DIM, dtype=torch.float64)
    before = layer(x)[0]
    with torch.no_grad():
        layer.recurrent.mul_(7)
    torch.testing.assert_close(layer(x)[0], before, rtol=1e-5, atol=1e-9)
    free = layer_type(DIM, recurrent_norm="none", dtype=torch.float64)
    free.load_state_dict(layer.state_dict(), strict=False)
    assert not torch.allclose(free(x)[0], before, rtol=1e-2)
