"""Layer E88 against a plain rewriting of matrix-state specification 12.1, option by option."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.layers import E88
from tests.models.cases import beginning

DIM = 6
BASE: dict[str, Any] = {"n_heads": 3, "n_state": 4}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one-head": {"n_heads": 1},
    "wider-values": {"expansion": 1.5},
    "narrower-values": {"expansion": 0.5},
    "conv": {"use_conv": True},
    "conv-two-taps": {"use_conv": True, "d_conv": 2},
    "conv-tied": {"use_conv": True, "tie_kv": True},
    "no-silu": {"use_silu": False},
    "no-l2": {"use_l2_norm": False},
    "decay-simple": {"decay_mode": "simple"},
    "decay-constant": {"decay_mode": "constant"},
    "decay-none": {"decay_mode": "none"},
    "linear": {"linear_state": True},
    "write-gate": {"use_write_gate": True},
    "value-residual": {"use_value_residual": True},
    "value-residual-tied": {"use_value_residual": True, "tie_kv": True},
    "self-gate": {"use_self_gate": True},
    "output-norm": {"use_output_norm": True},
    "phantom": {"phantom_norm_gain": True},
    "gate-sigmoid": {"use_gate": True},
    "gate-silu": {"use_gate": True, "gate_activation": "silu"},
    "mix-weighted-sum": {"head_mix": "weighted_sum"},
    "mix-per-head": {"head_mix": "per_head"},
    "mix-input-weighted": {"head_mix": "input_weighted"},
    "mix-sum": {"head_mix": "sum"},
    "tied": {"tie_kv": True},
    "separate-init": {"qkv_init": "separate"},
    "first-version": {
        "expansion": 2.0,
        "use_conv": True,
        "use_gate": True,
        "use_output_norm": True,
        "use_self_gate": True,
        "qkv_init": "separate",
    },
    "everything": {
        "expansion": 1.5,
        "use_conv": True,
        "use_gate": True,
        "gate_activation": "silu",
        "use_output_norm": True,
        "use_write_gate": True,
        "use_value_residual": True,
        "head_mix": "input_weighted",
        "decay_mode": "simple",
    },
}
cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES)


def build(options: dict[str, Any], dim: int = DIM) -> E88:
    """Return an fp64 layer whose every parameter is random, gains and biases included."""
    torch.manual_seed(3)
    layer = E88(dim, **(BASE | options), dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return layer


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def conv(x_tc: Tensor, weight_ck: Tensor) -> Tensor:
    """Return the causal convolution of one sequence from zeros, tap by tap."""
    taps = weight_ck.shape[1]
    rows = []
    for t in range(len(x_tc)):
        past = [(weight_ck[:, j], t - taps + 1 + j) for j in range(taps)]
        rows.append(sum(w * x_tc[s] for w, s in past if s >= 0))
    return torch.stack(rows)


def plain(layer: E88, options: dict[str, Any], x_td: Tensor, states: list[Tensor]) -> Tensor:
    """Return the layer's output for one sequence; ``states`` holds each head's S [n, v]."""
    o = {name: option.default for name, option in E88.cell.options.items()} | BASE | options
    heads, n = o["n_heads"], o["n_state"]
    width = int(heads * n * o["expansion"])
    v = width // heads
    named = dict(layer.named_parameters())
    rows = iter(named["in_proj"])

    def take(count: int) -> Tensor:
        return torch.stack([next(rows) for _ in range(count)])

    channels = 2 * heads * n + (0 if o["tie_kv"] else width)
    qkv = x_td @ take(channels).T
    if o["decay_mode"] in ("mamba", "simple"):
        decay_logit = x_td @ take(heads).T
    write = sigmoid(x_td @ take(heads).T) if o["use_write_gate"] else torch.ones(len(x_td), heads)
    if o["head_mix"] == "input_weighted":
        mix = x_td @ take(heads).T
    gate = x_td @ take(width).T if o["use_gate"] else None
    assert next(rows, None) is None
    qkv = conv(qkv, named["conv.weight"]) if o["use_conv"] else qkv
    qkv = silu(qkv) if o["use_silu"] else qkv
    if o["decay_mode"] == "mamba":
        soft = torch.log1p(torch.exp(decay_logit + named["decay.dt_bias"]))
        decay = torch.exp(-torch.exp(named["decay.a_log"]) * soft)
    elif o["decay_mode"] == "simple":
        decay = sigmoid(decay_logit)
    elif o["decay_mode"] == "constant":
        decay = sigmoid(named["decay.logit"]).expand(len(x_td), heads)
    else:
        decay = torch.ones(len(x_td), heads)
    outputs = []
    for t in range(len(x_td)):
        reads = []
        for h in range(heads):
            q = qkv[t, h * n : (h + 1) * n]
            k = qkv[t, (heads + h) * n : (heads + h + 1) * n]
            start = 2 * heads * n + h * v
            value = k if o["tie_kv"] else qkv[t, start : start + v]
            if o["use_l2_norm"]:
                q, k = (y / (y.square().sum().sqrt() + 1e-6) for y in (q, k))
            delta = value - states[h].T @ k
            new = decay[t, h] * states[h] + write[t, h] * torch.outer(k, delta)
            states[h] = new if o["linear_state"] else torch.tanh(new)
            y = states[h].T @ q
            if o["use_value_residual"]:
                y = y + named["value_residual"][h] * value
            if o["use_self_gate"]:
                y = y * silu(y)
            if o["use_output_norm"]:
                y = y / (y.square().mean() + 1e-5).sqrt() * named["norm_gain"]
            if gate is not None:
                g = gate[t, h * v : (h + 1) * v]
                y = y * (silu(g) if o["gate_activation"] == "silu" else sigmoid(g))
            reads.append(y)
        if o["head_mix"] in ("concat", "per_head"):
            mixed = torch.cat(reads)
        else:
            weights = torch.ones(heads, dtype=x_td.dtype)
            if o["head_mix"] == "weighted_sum":
                weights = torch.softmax(named["head_weights"], 0)
            if o["head_mix"] == "input_weighted":
                weights = torch.softmax(mix[t], 0)
            mixed = sum(weight * y for weight, y in zip(weights, reads, strict=True))
        outputs.append(named["out_proj"] @ mixed)
    return torch.stack(outputs)


@cases
def test_output_state_and_gradients_equal_the_plain_rewriting(options) -> None:
    layer = build(options)
    x = torch.randn(2, 5, DIM, dtype=torch.float64, requires_grad=True)
    start = torch.randn(2, layer.heads, layer.value_width, layer.key_width, dtype=torch.float64)
    start.requires_grad_()
    y, state = layer(x, beginning(layer, x, {"S": start}))
    wanted_y, wanted_s = [], []
    for row in range(2):
        heads = [start[row, h].T for h in range(layer.heads)]
        wanted_y.append(plain(layer, options, x[row], heads))
        wanted_s.append(torch.stack([s.T for s in heads]))
    pairs = [(y, torch.stack(wanted_y)), (state["S"], torch.stack(wanted_s))]
    trained = [p for p in layer.parameters() if p.requires_grad]
    weights = [torch.randn_like(one) for one, _ in pairs]
    found, wanted = (
        torch.autograd.grad(
            sum((w * side).sum() for w, side in zip(weights, sides, strict=True)),
            [x, start, *trained],
        )
        for sides in zip(*pairs, strict=True)
    )
    for one, other in [*pairs, *zip(found, wanted, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@cases
def test_every_trained_parameter_gets_a_gradient(options) -> None:
    layer = build(options)
    layer(torch.randn(2, 5, DIM, dtype=torch.float64))[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_each_row_block_gets_a_gradient() -> None:
    layer = build(CASES["everything"])
    layer(torch.randn(2, 5, DIM, dtype=torch.float64))[0].square().sum().backward()
    for name, block in layer._split(layer.in_proj.grad, dim=0).items():
        assert (block != 0).all(), name


@pytest.mark.parametrize(
    ("options", "base"),
    [
        ({"linear_state": True}, {}),
        ({"use_silu": False}, {}),
        ({"use_l2_norm": False}, {}),
        ({"use_self_gate": True}, {}),
        ({"use_gate": True, "gate_activation": "silu"}, {"use_gate": True}),
        ({"head_mix": "weighted_sum"}, {"head_mix": "sum"}),
    ],
    ids=["linear", "no-silu", "no-l2", "self-gate", "gate-silu", "weighted-sum"],
)
def test_an_option_changes_the_result_at_equal_weights(options, base) -> None:
    base_layer, changed = build(base), build(options)
    changed.load_state_dict(base_layer.state_dict(), strict=False)
    x = torch.randn(1, 4, DIM, dtype=torch.float64)
    wanted = base_layer(x)[0]
    assert (wanted - changed(x)[0]).abs().max() > 0.01 * wanted.abs().max()


def test_the_phantom_gain_has_no_influence_and_no_gradient() -> None:
    torch.manual_seed(0)
    plain_layer = E88(DIM, **BASE)
    torch.manual_seed(0)
    layer = E88(DIM, **BASE, phantom_norm_gain=True)
    x = torch.randn(2, 3, DIM)
    y, _ = layer(x)
    torch.testing.assert_close(y, plain_layer(x)[0], rtol=0, atol=0)
    assert layer.phantom_gain.shape == (4,)
    assert not layer.phantom_gain.requires_grad
    y.sum().backward()
    assert layer.phantom_gain.grad is None
    with torch.no_grad():
        layer.phantom_gain.fill_(torch.nan)
    torch.testing.assert_close(layer(x)[0], y, rtol=0, atol=0)


def test_decay_stays_fp32_under_bf16() -> None:
    """Decays between 0.998 and 1 would all be 1 in bf16."""
    torch.manual_seed(0)
    layer = E88(DIM, **BASE)
    with torch.no_grad():
        layer.decay.a_log.fill_(math.log(1e-3))
        layer.decay.dt_bias.fill_(-1.0)
        layer.in_proj.zero_()
    start = torch.full((1, 3, 4, 4), 1e-3)
    wanted = 1e-3 * math.exp(-1e-3 * math.log1p(math.exp(-1.0)))
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            _, state = layer(torch.zeros(1, 1, DIM), {"S": start})
        assert state["S"].dtype == torch.float32
        torch.testing.assert_close(
            state["S"].detach(), torch.full_like(start, math.tanh(wanted)), rtol=1e-6, atol=0
        )


def test_silent_combinations_of_the_original_are_refused() -> None:
    refused = {
        "model.tie_kv=true with model.expansion=2: tied values are as wide as the keys; "
        "add model.expansion=1.0 or model.tie_kv=false": {"tie_kv": True, "expansion": 2.0},
        "model.expansion=0.7: 8 value channels do not divide into 3 heads; "
        "use model.expansion=0.5 or 0.75": {"expansion": 0.7},
        "model.expansion=0.01: 0 value channels do not divide into 3 heads; "
        "use model.expansion=0.25 or 0.5": {"expansion": 0.01},
        "model.d_conv=1: must be at least 2": {"d_conv": 1, "use_conv": True},
        "model.gate_activation=silu: read only with model.use_gate=true; "
        "add model.use_gate=true or drop model.gate_activation": {"gate_activation": "silu"},
        "model.phantom_norm_gain=true: read only with model.use_output_norm=false; "
        "add model.use_output_norm=false or drop model.phantom_norm_gain": {
            "phantom_norm_gain": True,
            "use_output_norm": True,
        },
        "model.qkv_init=separate: read only with model.tie_kv=false; "
        "add model.tie_kv=false or drop model.qkv_init": {"qkv_init": "separate", "tie_kv": True},
        "model.head_mix=concatenate: expected one of concat, weighted_sum, per_head, "
        "input_weighted, sum (did you mean concat?)": {"head_mix": "concatenate"},
    }
    for message, options in refused.items():
        with pytest.raises(UserError) as caught:
            E88(DIM, **(BASE | options))
        assert str(caught.value) == message


@pytest.mark.parametrize("heads", [1, 3, 7, 12])
@pytest.mark.parametrize("state", [1, 3, 7, 20, 28])
@pytest.mark.parametrize("expansion", [0.1, 0.37, 1.01, 2.7])
def test_a_suggested_expansion_is_accepted(heads, state, expansion) -> None:
    given = {"n_heads": heads, "n_state": state}
    try:
        E88.cell.parse_options(DIM, given | {"expansion": expansion})
    except UserError as error:
        suggested = str(error).split("model.expansion=")[-1].split(" or ")
        assert len(suggested) == 2
        for value in suggested:
            E88.cell.parse_options(DIM, given | {"expansion": float(value)})
