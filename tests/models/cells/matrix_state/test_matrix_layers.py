"""Layers E14, E63m and E70 to E75 against plain rewritings of their specifications, in fp64.

One sequence, step by step, from the text of matrix-state specification 3 to 11 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from tests.models.cases import beginning

DIM = 6
Options = dict[str, Any]
Named = dict[str, Tensor]
Plain = Callable[[Options, Named, Tensor, Tensor], tuple[Tensor, Tensor]]

CASES: dict[str, tuple[str, Options]] = {
    "e14": ("E14", {}),
    "e14-fewer-columns": ("E14", {"n_state": 2, "expansion": 1.5}),
    "e14-more-columns": ("E14", {"n_state": 7, "expansion": 0.5}),
    "e63m": ("E63m", {}),
    "e63m-slots": ("E63m", {"n_state": 4, "expansion": 0.5, "use_conv": True}),
    "e63m-lite": ("E63m", {"n_state": 5, "variant": "lite"}),
    "e63m-rnn": ("E63m", {"n_state": 5, "variant": "rnn"}),
    "e70": ("E70", {}),
    "e70-linear": ("E70", {"linear_state": True}),
    "e70-spectral": ("E70", {"projection_norm": "spectral", "spectral_radius": 0.7}),
    "e70-frozen": ("E70", {"learned_decay": False}),
    "e70-final": ("E70", {"projection_norm": "spectral", "linear_state": True, "expansion": 0.5}),
    "e71": ("E71", {}),
    "e71-conv": ("E71", {"use_conv": True, "expansion": 1.5}),
    "e72": ("E72", {}),
    "e72-inverse": ("E72", {"variant": "inverse", "use_conv": True, "d_conv": 2}),
}
for _variant in ("column", "row", "full"):
    for _rule in ("modulated", "delta"):
        CASES[f"e73-{_variant}-{_rule}"] = ("E73", {"variant": _variant, "rule": _rule})
    CASES[f"e73cp-{_variant}"] = ("E73cp", {"variant": _variant})
for _name in ("tanh", "none"):
    CASES[f"e73-{_name}"] = ("E73", {"z_activation": _name, "expansion": 1.5})
CASES |= {
    f"e74-{update}-{projection}-{gate}": (
        "E74",
        {"update": update, "projection": projection, "gate": gate, "nonlinearity": nonlinearity},
    )
    for update, projection, gate, nonlinearity in [
        ("delta", "no_z", "output", "tanh"),
        ("delta", "no_z", "input", "linear"),
        ("delta", "no_z", "retain", "rmsnorm"),
        ("delta", "no_z", "state", "frobnorm"),
        ("delta", "full", "output", "tanh"),
        ("delta", "full", "retain", "tanh"),
        ("delta", "full", "state", "linear"),
        ("delta", "tied_kq", "output", "tanh"),
        ("delta", "tied_kvq", "output", "tanh"),
        ("residual", "no_z", "output", "tanh"),
        ("residual", "tied_kvq", "input", "linear"),
        ("ntm", "no_z", "output", "tanh"),
        ("ntm", "tied_kq", "input", "linear"),
        ("retrieved_gate", "no_z", "output", "tanh"),
        ("retrieved_gate", "tied_kvq", "input", "rmsnorm"),
        ("ema", "no_z", "output", "tanh"),
        ("ema", "tied_kvq", "input", "frobnorm"),
        ("simple", "no_z", "output", "tanh"),
        ("simple", "tied_kq", "input", "linear"),
    ]
}
CASES |= {
    "e74-error-gate": ("E74", {"update": "retrieved_gate", "error_gate": True}),
    "e74-no-silu": ("E74", {"use_silu": False, "expansion": 2.0, "use_conv": True}),
    "e74-lowrank": ("E74LowRank", {"rank": 2}),
    "e74-lowrank-tied": ("E74LowRank", {"rank": 7, "projection": "tied_kq"}),
    "e74-lowrank-linear": ("E74LowRank", {"projection": "tied_kvq", "nonlinearity": "linear"}),
    "e74-blockdiag": ("E74BlockDiagonal", {"n_state": 16}),
    "e74-blockdiag-tied": (
        "E74BlockDiagonal",
        {"n_state": 24, "projection": "tied_kvq", "nonlinearity": "linear"},
    ),
    "e74-blockdiag-of-3": ("E74BlockDiagonal", {"n_state": 9, "block_size": 3}),
    "e74-blockdiag-whole": ("E74BlockDiagonal", {"n_state": 5, "block_size": 5}),
    "e74-blockdiag-kq": ("E74BlockDiagonal", {"n_state": 8, "projection": "tied_kq"}),
    "e74-fixed": ("E74FixedDecay", {"decay": 0.7}),
    "e74-fixed-learned": ("E74FixedDecay", {"learned_decay": True, "expansion": 1.5}),
    "e75-vector-gate": ("E75", {"n_heads": 1, "linear_state": True}),
    "e75-vector-gate-heads": ("E75", {"n_heads": 3, "n_state": 2, "linear_state": True}),
    "e75-post": ("E75", {"n_heads": 3, "n_state": 2, "use_conv": True, "conv_mode": "post"}),
    "e75-post-linear": (
        "E75",
        {
            "n_heads": 1,
            "n_state": 4,
            "use_conv": True,
            "conv_mode": "post",
            "d_conv": 3,
            "linear_state": True,
        },
    ),
}
ALIKE = {"E70", "E71", "E72", "E73", "E73cp", "E74", "E74LowRank", "E74FixedDecay"}
for _name, (_layer, _options) in CASES.items():
    if (_layer in ALIKE or _name == "e75-vector-gate") and "n_state" not in _options:
        _options["n_state"] = 5


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def gs(y: Tensor) -> Tensor:
    return y * y * sigmoid(y)


def hat(k: Tensor) -> Tensor:
    return k / (k.square().sum().sqrt() + 1e-6)


def convolved(w: Named, u: Tensor) -> Tensor:
    """Return the rows of ``u`` [T, c], convolved from zeros if there are taps."""
    if "conv.weight" not in w:
        return u
    taps = w["conv.weight"].shape[1]
    padded = torch.cat([u.new_zeros(taps - 1, u.shape[1]), u])
    return torch.stack(
        [
            w["conv.bias"] + sum(w["conv.weight"][:, j] * padded[t + j] for j in range(taps))
            for t in range(len(u))
        ]
    )


def scaffold(w: Named, x: Tensor) -> Tensor:
    """Return c = silu(conv(W_in x)), [T, d]."""
    return silu(convolved(w, x @ w["in_proj"].T))


def squash(name: str, s: Tensor) -> Tensor:
    if name == "tanh":
        return torch.tanh(s)
    if name == "linear":
        return s
    squares = s.square().mean() if name == "rmsnorm" else s.square().sum()
    return s / (squares.sqrt() + 1e-6)


def plain_e14(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    d, k = s.shape
    w_key, w_dec, w_val, w_qry = w["cell_proj"].split([d, d, k, k])
    b_key, b_dec, b_val, b_qry = w["cell_bias"].split([d, d, k, k])
    rows = []
    for step in x:
        both = w["in_proj"] @ step
        c, z = silu(both[:d]), both[d:]
        key, val = torch.tanh(w_key @ c + b_key), w_val @ c + b_val
        s = sigmoid(w_dec @ c + b_dec)[:, None] * s + torch.outer(key, val)
        rows.append(w["out_proj"] @ ((s @ (w_qry @ c + b_qry)) * silu(z)))
    return torch.stack(rows), s[None]


def plain_e63m(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    n, d = s.shape
    w_k, w_q, w_x, w_a = w["cell_proj"].split([d, d, n, n])
    rows, before = [], x.new_zeros(n)
    for c in scaffold(w, x):
        k, q = w_k @ c, w_q @ c
        r = torch.tanh(s @ k)
        v = torch.tanh(w["mix"] @ r + w_x @ c + w["value_bias"])
        alpha = sigmoid(w_a @ c + w["gate_bias"])
        s = alpha[:, None] * s + (1 - alpha)[:, None] * torch.outer(v, k)
        pre = s @ q
        if o["variant"] == "rnn":
            pre = pre + w["recurrent"] @ before
        before = torch.tanh(pre)
        out = w["slot_proj"] @ before if o["variant"] == "lite" else before
        rows.append(w["out_proj"] @ out)
    return torch.stack(rows), s[None]


def spectral(w: Named, name: str, matrix: Tensor, radius: float) -> Tensor:
    sigma = (w[f"{name}.u"] @ matrix @ w[f"{name}.v"]).abs()
    return matrix * radius / (sigma + 1e-8)


def plain_e70(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    w_k, w_v, w_q = w["cell_proj"].split(len(s))
    if o["projection_norm"] == "spectral":
        w_k = spectral(w, "norms.0", w_k, o["spectral_radius"])
        w_v = spectral(w, "norms.1", w_v, o["spectral_radius"])
    rows = []
    for c in scaffold(w, x):
        s = w["decay"].clamp(0, 0.999) * s + torch.outer(w_v @ c, w_k @ c)
        s = s if o["linear_state"] else torch.tanh(s)
        rows.append(w["out_proj"] @ gs(s @ (w_q @ c)))
    return torch.stack(rows), s[None]


def plain_e71(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    w_k, w_v, w_q, w_a = w["cell_proj"].split(len(s))
    rows = []
    for c in scaffold(w, x):
        k, v, q = w_k @ c, w_v @ c, w_q @ c
        alpha = sigmoid(w_a @ c + w["read_slope"] * (s @ k) + w["gate_bias"])
        s = alpha[:, None] * s + (1 - alpha)[:, None] * torch.outer(v, k)
        rows.append(w["out_proj"] @ gs(s @ q))
    return torch.stack(rows), s[None]


def plain_e72(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    w_k, w_v, w_q, w_a = w["cell_proj"].split(len(s))
    rows = []
    for c in scaffold(w, x):
        k, v, q = w_k @ c, w_v @ c, w_q @ c
        alpha, r = sigmoid(w_a @ c + w["gate_bias"]), s @ k
        weighted = w["read_slope"] * r if o["variant"] == "standard" else -w["read_slope"] * r.abs()
        gated = v * sigmoid(weighted + w["read_bias"])
        s = alpha[:, None] * s + (1 - alpha)[:, None] * torch.outer(gated, k)
        rows.append(w["out_proj"] @ gs(s @ q))
    return torch.stack(rows), s[None]


def plain_e73(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    w_k, w_v, w_q, w_z = w["cell_proj"].split(len(s))
    rule, activation = o.get("rule", "delta"), o.get("z_activation", "none")
    rows = []
    for c in scaffold(w, x):
        k, v, q, z = w_k @ c, w_v @ c, w_q @ c, w_z @ c + w["z_bias"]
        z = {"sigmoid": sigmoid(z), "tanh": torch.tanh(z), "none": z}[activation]
        ones = torch.ones_like(z)
        modulation = {
            "column": torch.outer(ones, z),
            "row": torch.outer(z, ones),
            "full": torch.outer(z, z),
        }[o["variant"]]
        if rule == "modulated":
            s = torch.tanh(s * modulation + torch.outer(v, k))
        else:
            delta = v - (s * modulation) @ hat(k)
            s = torch.tanh(s + torch.outer(delta, hat(k)))
        rows.append(w["out_proj"] @ gs(s @ q))
    return torch.stack(rows), s[None]


def projections(o: Options, w: Named, c: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor, Named]:
    """Return k, v, q and the further projections by name."""
    blocks = list(w["cell_proj"].split(n))
    names = {"full": "kvqz", "no_z": "kvq", "tied_kq": "kv", "tied_kvq": "k"}[o["projection"]]
    found = {name: blocks.pop(0) @ c for name in names}
    gates = {"ntm": ["erase", "write"], "retrieved_gate": ["write"], "ema": ["keep"]}
    gates = [*gates.get(o.get("update"), []), *(["out"] if o.get("gate") == "input" else [])]
    found |= {name: blocks.pop(0) @ c + w[f"{name}_bias"] for name in gates}
    assert not blocks
    return found["k"], found.get("v", found["k"]), found.get("q", found["k"]), found


def updated(o: Options, w: Named, s: Tensor, k: Tensor, v: Tensor, more: Named) -> Tensor:
    """Return the new state of E74's updates before f."""
    if o["update"] == "ntm":
        written = torch.outer(sigmoid(more["write"]) * v, k)
        return s * (1 - torch.outer(sigmoid(more["erase"]), k)) + written
    if o["update"] == "ema":
        alpha = sigmoid(more["keep"])[:, None]
        return alpha * s + (1 - alpha) * torch.outer(v, k)
    if o["update"] == "simple":
        return sigmoid(w["decay_logit"]) * s + torch.outer(v, k)
    delta = v - (s * (more["z"] + w["z_bias"]) if "z" in more else s) @ k
    if o["update"] == "residual":
        return s + w["scale"][:, None] * torch.tanh(torch.outer(delta, k))
    if o["update"] == "retrieved_gate":
        error = delta.square().mean() if o["error_gate"] else 0
        return s + torch.outer(sigmoid(more["write"] + error) * delta, k)
    if o["gate"] in ("retain", "state"):
        a = sigmoid(w["energy_slope"] * s.square().mean(1) + w["energy_bias"])
        delta = (1 - a if o["gate"] == "retain" else a) * delta
    return s + torch.outer(delta, k)


def plain_e74(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    inputs = convolved(w, x @ w["in_proj"].T)
    rows = []
    for c in silu(inputs) if o["use_silu"] else inputs:
        k, v, q, more = projections(o, w, c, len(s))
        s = squash(o["nonlinearity"], updated(o, w, s, hat(k), v, more))
        y = s @ q
        rows.append(w["out_proj"] @ (y * silu(more["out"]) if "out" in more else gs(y)))
    return torch.stack(rows), s[None]


def plain_lowrank(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (left,) = s
    right = w["basis"]
    rows = []
    for c in scaffold(w, x):
        k, v, q, _ = projections(o, w, c, len(left))
        delta = v - (left @ right.T) @ hat(k)
        left = squash(o["nonlinearity"], left + torch.outer(delta, w["write_proj"] @ hat(k)))
        rows.append(w["out_proj"] @ gs(left @ right.T @ q))
    return torch.stack(rows), left[None]


def plain_blockdiag(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    blocks, rows = list(s), []
    for c in scaffold(w, x):
        size = o["block_size"]
        k, v, q, _ = projections(o, w, c, size * len(s))
        reads = []
        for i in range(len(blocks)):
            part = slice(size * i, size * i + size)
            key = hat(k[part])
            new = blocks[i] + torch.outer(v[part] - blocks[i] @ key, key)
            blocks[i] = squash(o["nonlinearity"], new)
            reads.append(blocks[i] @ q[part])
        rows.append(w["out_proj"] @ gs(torch.cat(reads)))
    return torch.stack(rows), torch.stack(blocks)


def plain_fixed(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    (s,) = s
    decay = sigmoid(w["decay_logit"]) if o["learned_decay"] else o["decay"]
    w_k, w_v, w_q = w["cell_proj"].split(len(s))
    rows = []
    for c in scaffold(w, x):
        k = hat(w_k @ c)
        s = decay * s + torch.outer(w_v @ c - s @ k, k)
        rows.append(w["out_proj"] @ gs(s @ (w_q @ c)))
    return torch.stack(rows), s[None]


def plain_e75(o: Options, w: Named, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    heads, n = w["forget_bias"].shape
    if o["conv_mode"] == "post":
        cell = x @ w["cell_proj"].T
        kvq, logits = cell[:, : 3 * heads * n], cell[:, 3 * heads * n :]
        cell = torch.cat([silu(convolved(w, kvq)), logits], dim=1)
    else:
        cell = scaffold(w, x) @ w["cell_proj"].T
    states, rows = list(s), []
    for step in cell:
        reads = []
        for h in range(heads):
            k, v, q, logit = (part[h * n : (h + 1) * n] for part in step.split(heads * n))
            new = sigmoid(logit + w["forget_bias"][h])[:, None] * states[h]
            new = new + torch.outer(v - states[h] @ hat(k), hat(k))
            states[h] = new if o["linear_state"] else torch.tanh(new)
            reads.append(gs(states[h] @ q))
        rows.append(w["out_proj"] @ torch.cat(reads))
    return torch.stack(rows), torch.stack(states)


PLAIN: dict[str, Plain] = {
    "E14": plain_e14,
    "E63m": plain_e63m,
    "E70": plain_e70,
    "E71": plain_e71,
    "E72": plain_e72,
    "E73": plain_e73,
    "E73cp": plain_e73,
    "E74": plain_e74,
    "E74LowRank": plain_lowrank,
    "E74BlockDiagonal": plain_blockdiag,
    "E74FixedDecay": plain_fixed,
    "E75": plain_e75,
}


def build(name: str, options: Options) -> Any:
    """Return an fp64 layer whose every parameter and buffer is random."""
    torch.manual_seed(5)
    layer = getattr(elman.layers, name)(DIM, **options, dtype=torch.float64)
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            tensor.copy_(torch.randn_like(tensor) / 2)
        if hasattr(layer, "decay"):
            layer.decay.fill_(0.6)
    layer.begin_step()
    return layer


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_state_and_gradients_equal_the_plain_rewriting(case) -> None:
    layer = build(*case)
    plain = PLAIN[case[0]]
    x = torch.randn(3, 5, DIM, dtype=torch.float64, requires_grad=True)
    start = torch.randn_like(layer(x)[1]["S"]).requires_grad_()
    y, state = layer(x, beginning(layer, x, {"S": start}))
    weights = dict(layer.named_parameters()) | dict(layer.named_buffers())
    rows = [plain(layer.settings.values, weights, x[row], start[row]) for row in range(3)]
    wanted = [torch.stack(side) for side in zip(*rows, strict=True)]
    found = [y, state["S"]]
    factors = [torch.randn_like(one) for one in found]
    leaves = {"x": x, "S": start}
    leaves |= {name: p for name, p in layer.named_parameters() if p.requires_grad}
    gradients = [
        torch.autograd.grad(
            sum((f * one).sum() for f, one in zip(factors, side, strict=True)), leaves.values()
        )
        for side in (found, wanted)
    ]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    for name, one, other in zip(leaves, *gradients, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-8, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )
        assert other.any(), f"{name} has no gradient"
