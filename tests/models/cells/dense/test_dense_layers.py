"""Dense layers against plain rewritings of their specification, and their hand-derived gradients.

Shape legend: b batch, t time, d model width, i channels of the state.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from tests.models.cases import beginning
from tests.ops.dense import backward_dense as by_hand
from tests.ops.dense.backward_dense import outer, self_gate_slope, sigmoid, silu, silu_slope

DIM = 6
PLAIN_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "e0": ("E0", {"spectral_radius": 0.7}),
    "e0-free-wider": ("E0", {"recurrent_norm": "none", "expansion": 1.5}),
    "e0-orthogonal": ("E0", {"recurrent_norm": "scaled_orthogonal"}),
    "e4": ("E4", {"rank": 3}),
    "e4-rule-wider": ("E4", {"expansion": 1.5}),
    "e4-free": ("E4", {"rank": 2, "recurrent_norm": "none", "expansion": 2.0}),
    "e33": ("E33", {}),
    "e33-free-narrower": ("E33", {"recurrent_norm": "none", "expansion": 0.5}),
    "e36": ("E36", {}),
    "e36-free-wider": ("E36", {"recurrent_norm": "none", "expansion": 1.5}),
    "e37": ("E37", {}),
    "e37-free-wider": ("E37", {"recurrent_norm": "none", "expansion": 1.5}),
    "e39": ("E39", {}),
    "e39-free-wider": ("E39", {"recurrent_norm": "none", "expansion": 1.5}),
    "e56": ("E56", {}),
    "e56-wider": ("E56", {"expansion": 1.5}),
    "cudagru": ("CudaGRU", {}),
    "cudagru-wider": ("CudaGRU", {"expansion": 1.5}),
    "cudalstm": ("CudaLSTM", {}),
    "cudalstm-wider": ("CudaLSTM", {"expansion": 1.5}),
}
CONV_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name.lower()}-conv": (name, {"use_conv": True, "d_conv": 3, "expansion": 1.5})
    for name in ("E0", "E33", "E36", "E37", "E39")
}
CASES = PLAIN_CASES | CONV_CASES


def build(case: tuple[str, dict[str, Any]]) -> Any:
    """Return an fp64 layer whose every parameter is random."""
    name, options = case
    torch.manual_seed(5)
    layer = getattr(elman.layers, name)(DIM, **options, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    layer.begin_step()
    return layer


def first_branch(layer: Any, named: dict[str, Tensor], p_ti: Tensor) -> Tensor:
    """Return the cell's input: a convolution from zeros if there are taps, then silu."""
    if "conv.weight" in named:
        weight, rows = named["conv.weight"], []
        taps = weight.shape[1]
        for t in range(len(p_ti)):
            past = [(j, t - taps + 1 + j) for j in range(taps) if t - taps + 1 + j >= 0]
            rows.append(named["conv.bias"] + sum(weight[:, j] * p_ti[s] for j, s in past))
        return silu(torch.stack(rows))
    return p_ti if layer.cell.name == "e0" else silu(p_ti)


def matrix(layer: Any, named: dict[str, Tensor]) -> Tensor:
    """Return the recurrent matrix in force (2.4, 3.1, 3.3, 3.11)."""
    if layer.cell.name == "e56":
        return named["cell_proj"][:, layer.width :]
    if "scale_logit" in named:
        return sigmoid(named["scale_logit"]) * layer.recurrent
    weight = named["left"] @ named["right"] if "left" in named else named["recurrent"]
    if layer.norm is None:
        return weight
    sigma = (layer.norm.u @ weight @ layer.norm.v).abs()
    return weight * layer.norm.radius / (sigma + 1e-8)


def one_step(layer: Any, named: dict[str, Tensor], w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    """Return the next state of a cell with one recurrent matrix (section 3)."""
    match layer.cell.name:
        case "e0":
            i = layer.width
            return torch.tanh(named["cell_proj"][:i] @ u + w @ h + named["cell_bias"][:i])
        case "e4" | "e33":
            return torch.tanh(named["input"] @ u + w @ h + named["bias"])
        case "e36":
            return named["input"] @ u + w @ h + named["bias"]
        case "e37":
            return torch.tanh(w @ (u + h) + named["bias"])
        case "e39":
            return torch.tanh(u + w @ h)
        case name:
            assert name == "e56"
            return torch.tanh(named["cell_proj"] @ torch.cat([u, h]) + named["bias"])


def plain_dense(layer: Any, x_td: Tensor, start: list[Tensor]) -> dict[str, Tensor]:
    """Run one row of a cell with one recurrent matrix, step by step."""
    named, i = dict(layer.named_parameters()), layer.width
    p = x_td @ named["in_proj"][:i].T
    u, w = first_branch(layer, named, p), matrix(layer, named)
    h, states, outputs = start[0], [start[0]], []
    for t in range(len(x_td)):
        h = one_step(layer, named, w, u[t], h)
        gate = h
        if layer.cell.name == "e0":
            gate = named["cell_proj"][i:] @ u[t] + named["cell_bias"][i:]
        elif layer.branches == 2:
            gate = named["in_proj"][i:] @ x_td[t]
        states.append(h)
        outputs.append(named["out_proj"] @ (h * silu(gate)))
    return {"y": torch.stack(outputs), "h": torch.stack(states), "p": p, "u": u, "w": w}


def plain_gru(layer: Any, x_td: Tensor, start: list[Tensor]) -> dict[str, Tensor]:
    """Run one row of the GRU (5.1)."""
    named = dict(layer.named_parameters())
    x = x_td @ named["in_proj"].T
    w_z, w_r, w_n = named["cell_proj"].chunk(3)
    b_z, b_r, b_n = named["cell_bias"].chunk(3)
    u_z, u_r = named["recurrent_gates"].chunk(2)
    h = start[0]
    kept: dict[str, list[Tensor]] = {"h": [h], "z": [], "r": [], "n": [], "y": []}
    for t in range(len(x)):
        z = sigmoid(w_z @ x[t] + u_z @ h + b_z)
        r = sigmoid(w_r @ x[t] + u_r @ h + b_r)
        n = torch.tanh(w_n @ x[t] + named["recurrent"] @ (r * h) + b_n)
        h = (1 - z) * h + z * n
        values = (h, z, r, n, named["out_proj"] @ h)
        for name, value in zip(kept, values, strict=True):
            kept[name].append(value)
    return {name: torch.stack(values) for name, values in kept.items()} | {"p": x}


def plain_lstm(layer: Any, x_td: Tensor, start: list[Tensor]) -> dict[str, Tensor]:
    """Run one row of the LSTM (5.2)."""
    named = dict(layer.named_parameters())
    x = x_td @ named["in_proj"].T
    w, b, u = (named[name].chunk(4) for name in ("cell_proj", "cell_bias", "recurrent"))
    h, c = start
    kept: dict[str, list[Tensor]] = {
        "h": [h],
        "c": [c],
        "f": [],
        "i": [],
        "o": [],
        "q": [],
        "y": [],
    }
    for t in range(len(x)):
        f, i, o = (sigmoid(w[k] @ x[t] + u[k] @ h + b[k]) for k in range(3))
        q = torch.tanh(w[3] @ x[t] + u[3] @ h + b[3])
        c = f * c + i * q
        h = o * torch.tanh(c)
        values = (h, c, f, i, o, q, named["out_proj"] @ h)
        for name, value in zip(kept, values, strict=True):
            kept[name].append(value)
    return {name: torch.stack(values) for name, values in kept.items()} | {"p": x}


def plain(layer: Any, x_btd: Tensor, start: list[Tensor]) -> dict[str, Tensor]:
    """Run every row by itself; states carry the first one."""
    run = {"cudagru": plain_gru, "cudalstm": plain_lstm}.get(layer.cell.name, plain_dense)
    rows = [run(layer, x_btd[b], [part[b] for part in start]) for b in range(len(x_btd))]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def parts(layer: Any) -> list[str]:
    """Return the names of the recurrent state's parts."""
    return ["h", "c"] if layer.cell.name == "cudalstm" else ["h"]


def draw(layer: Any, rows: int = 3, steps: int = 5) -> tuple[Tensor, list[Tensor]]:
    """Return an input and a first state."""
    x = torch.randn(rows, steps, DIM, dtype=torch.float64, requires_grad=True)
    start = [torch.randn(rows, layer.width, dtype=torch.float64) for _ in parts(layer)]
    return x, [part.requires_grad_() for part in start]


@pytest.mark.parametrize("size", [(3, 5), (1, 1), (4, 2)], ids=["plain", "one", "rows-over-steps"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_state_and_gradients_equal_the_plain_rewriting(case, size) -> None:
    layer = build(case)
    x, start = draw(layer, *size)
    y, state = layer(x, beginning(layer, x, dict(zip(parts(layer), start, strict=True))))
    rewritten = plain(layer, x, start)
    found = [y, *(state[name] for name in parts(layer))]
    wanted = [rewritten["y"], *(rewritten[name][:, -1] for name in parts(layer))]
    upstream = [torch.randn_like(one) for one in found]
    leaves = [x, *start, *layer.parameters()]
    gradients = [torch.autograd.grad(side, leaves, upstream) for side in (found, wanted)]
    for one, other in [*zip(found, wanted, strict=True), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def gradients_by_hand(
    layer: Any, x: Tensor, start: list[Tensor], dy: Tensor, dfinal: list[Tensor]
) -> dict[str, Tensor]:
    """Return every gradient of a layer without a convolution, by the written formulas alone."""
    with torch.no_grad():
        kept = plain(layer, x, start)
        named = {name: p.detach() for name, p in layer.named_parameters()}
        dense = layer.cell.name not in ("cudagru", "cudalstm")
        backward = dense_backward if dense else gated_backward
        return backward(layer, named, kept, x, dy, dfinal)


def gated_backward(
    layer: Any,
    named: dict[str, Tensor],
    kept: dict[str, Tensor],
    x: Tensor,
    dy: Tensor,
    dfinal: list[Tensor],
) -> dict[str, Tensor]:
    """Gradients of the GRU and the LSTM (5.1, 5.2)."""
    h, dh = kept["h"], dy @ named["out_proj"]
    before, found = h[:, :-1], {}
    if layer.cell.name == "cudagru":
        weights = (*named["recurrent_gates"].chunk(2), named["recurrent"])
        gates = (kept["z"], kept["r"], kept["n"])
        dz, dr, dn, found["start h"] = by_hand.gru(h, gates, weights, dh, dfinal[0])
        found["recurrent_gates"] = torch.cat([outer(dz, before), outer(dr, before)])
        found["recurrent"] = outer(dn, kept["r"] * before)
        stacked = torch.cat([dz, dr, dn], dim=-1)
    else:
        gates = (kept["f"], kept["i"], kept["o"], kept["q"])
        stacked, found["start h"], found["start c"] = by_hand.lstm(
            kept["c"], gates, named["recurrent"], dh, (dfinal[0], dfinal[1])
        )
        found["recurrent"] = outer(stacked, before)
    dp = stacked @ named["cell_proj"]
    return found | {
        "cell_proj": outer(stacked, kept["p"]),
        "cell_bias": stacked.sum((0, 1)),
        "out_proj": outer(dy, h[:, 1:]),
        "in_proj": outer(dp, x),
        "x": dp @ named["in_proj"],
    }


def dense_backward(
    layer: Any,
    named: dict[str, Tensor],
    kept: dict[str, Tensor],
    x: Tensor,
    dy: Tensor,
    dfinal: list[Tensor],
) -> dict[str, Tensor]:
    """Gradients of a cell with one recurrent matrix (2.7 and 3.1 to 3.11)."""
    name, i, found = layer.cell.name, layer.width, {}
    states, u, w = kept["h"], kept["u"], kept["w"][0]
    h, before, g = states[:, 1:], states[:, :-1], dy @ named["out_proj"]
    gate = h
    if name == "e0":
        gate = u @ named["cell_proj"][i:].T + named["cell_bias"][i:]
    elif layer.branches == 2:
        gate = x @ named["in_proj"][i:].T
    found["out_proj"] = outer(dy, h * silu(gate))
    slope = self_gate_slope(h) if gate is h else silu(gate)
    dgate = None if gate is h else g * h * silu_slope(gate)
    if name == "e4":
        factors = scaled_factors(layer, named)
        delta, found["start h"], du_factor, dv_factor = by_hand.low_rank(
            states, *factors, g * slope, dfinal[0]
        )
        found |= factor_gradients(layer, named, du_factor, dv_factor)
    else:
        delta, found["start h"] = by_hand.one_matrix(states, w, g * slope, dfinal[0], name == "e36")
    du = input_gradients(layer, named, found, delta, dgate, u, before, w)
    # E0 without a convolution has no silu.
    dp = du if name == "e0" else du * silu_slope(kept["p"])
    if layer.branches == 2:
        dp = torch.cat([dp, dgate], dim=-1)
    return found | {"in_proj": outer(dp, x), "x": dp @ named["in_proj"]}


def input_gradients(
    layer: Any,
    named: dict[str, Tensor],
    found: dict[str, Tensor],
    delta: Tensor,
    dgate: Tensor | None,
    u: Tensor,
    before: Tensor,
    w: Tensor,
) -> Tensor:
    """Add the gradients of the cell's own weights to ``found``; return that of its input."""
    name = layer.cell.name
    if name == "e0":
        stacked = torch.cat([delta, dgate], dim=-1)
        found |= {"cell_proj": outer(stacked, u), "cell_bias": stacked.sum((0, 1))}
        du = stacked @ named["cell_proj"]
    elif name == "e56":
        found["cell_proj"] = outer(delta, torch.cat([u, before], dim=-1))
        du = delta @ named["cell_proj"][:, : layer.width]
    elif name == "e37":
        du = delta @ w
    elif name == "e39":
        du = delta
    else:
        found["input"] = outer(delta, u)
        du = delta @ named["input"]
    if "bias" in named:
        found["bias"] = delta.sum((0, 1))
    if "recurrent" in named:
        effective = outer(delta, u + before if name == "e37" else before)
        found["recurrent"] = pulled_back(layer, effective)
    if "scale_logit" in named:
        s = sigmoid(named["scale_logit"])
        found["scale_logit"] = (outer(delta, before) * layer.recurrent).sum() * s * (1 - s)
    return du


def pulled_back(layer: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of the stored matrix from that of the matrix in force (2.4)."""
    if layer.norm is None:
        return gradient
    weight, norm = layer.recurrent.detach(), layer.norm
    return by_hand.spectral_norm(gradient, weight, norm.u, norm.v, norm.radius)


def scaled_factors(layer: Any, named: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return sqrt(c) U and sqrt(c) V (3.3)."""
    if layer.norm is None:
        return named["left"], named["right"]
    sigma = (layer.norm.u @ named["left"] @ named["right"] @ layer.norm.v).abs()
    root = (layer.norm.radius / (sigma + 1e-8)).sqrt()
    return named["left"] * root, named["right"] * root


def factor_gradients(
    layer: Any, named: dict[str, Tensor], du: Tensor, dv: Tensor
) -> dict[str, Tensor]:
    """Return the gradients of the stored factors (3.3)."""
    if layer.norm is not None:
        norm = layer.norm
        du, dv = by_hand.product_norm(
            du, dv, named["left"], named["right"], norm.u, norm.v, norm.radius
        )
    return {"left": du, "right": dv}


@pytest.mark.parametrize("size", [(3, 5), (4, 2)], ids=["plain", "rows-over-steps"])
@pytest.mark.parametrize("case", PLAIN_CASES.values(), ids=PLAIN_CASES)
def test_autograd_agrees_with_the_hand_derived_gradients(case, size) -> None:
    layer = build(case)
    x, start = draw(layer, *size)
    y, state = layer(x, beginning(layer, x, dict(zip(parts(layer), start, strict=True))))
    found = [y, *(state[name] for name in parts(layer))]
    upstream = [torch.randn_like(one) for one in found]
    torch.autograd.backward(found, upstream)
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    gradients |= {"x": x.grad}
    gradients |= {f"start {n}": s.grad for n, s in zip(parts(layer), start, strict=True)}
    wanted = gradients_by_hand(layer, x, start, upstream[0], upstream[1:])
    assert gradients.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-9, atol=1e-10, msg=name)
