"""The layer sLSTM against a plain rewriting of its equations, and its first values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.build import build_model
from tests.ops.dense.backward_dense import sigmoid, silu

DIM = 6
CASES: dict[str, dict[str, Any]] = {
    "plain": {"n_heads": 2, "use_conv": False},
    "conv": {"n_heads": 3, "d_conv": 3},
    "one-head": {"n_heads": 1, "expansion": 1.5},
    "five-heads": {"n_heads": 5, "expansion": 2.5},
}


def build(options: dict[str, Any]) -> Any:
    """Return an fp64 layer whose every parameter is random."""
    torch.manual_seed(6)
    layer = elman.layers.SLSTM(DIM, **options, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return layer


def convolved(named: dict[str, Tensor], p_ti: Tensor) -> Tensor:
    """Return the input of i and f: a convolution from zeros, then silu, if there are taps."""
    if "conv.weight" not in named:
        return p_ti
    weight, rows = named["conv.weight"], []
    taps = weight.shape[1]
    for t in range(len(p_ti)):
        past = [(j, t - taps + 1 + j) for j in range(taps) if t - taps + 1 + j >= 0]
        rows.append(named["conv.bias"] + sum(weight[:, j] * p_ti[s] for j, s in past))
    return silu(torch.stack(rows))


def plain(layer: Any, x_td: Tensor, start: list[Tensor]) -> list[Tensor]:
    """Run one row: the output of all steps, and h, c, n and m after the last one."""
    named, heads = dict(layer.named_parameters()), layer.heads
    p = x_td @ named["in_proj"].T
    u = convolved(named, p)
    width = p.shape[1] // heads
    # By head, then by gate: z, o, i, f.
    w, r = (named[one].view(heads, 4, width, width) for one in ("cell_proj", "recurrent"))
    b = named["cell_bias"].view(heads, 4, width)
    h, c, n, m = start
    outputs = []
    for t in range(len(p)):
        parts, norms = [], []
        for k in range(heads):
            own = slice(k * width, (k + 1) * width)
            reads = (p[t, own], p[t, own], u[t, own], u[t, own])
            z, o, i, f = (w[k, g] @ reads[g] + r[k, g] @ h[own] + b[k, g] for g in range(4))
            past = torch.log(sigmoid(f)) + m[own]
            top = torch.maximum(past, i)
            c_k = torch.exp(past - top) * c[own] + torch.exp(i - top) * torch.tanh(z)
            n_k = torch.exp(past - top) * n[own] + torch.exp(i - top)
            parts.append((sigmoid(o) * c_k / n_k, c_k, n_k, top))
            centered = parts[-1][0] - parts[-1][0].mean()
            norms.append(centered / torch.sqrt((centered**2).mean() + 1e-5))
        h, c, n, m = (torch.cat(group) for group in zip(*parts, strict=True))
        outputs.append(named["out_proj"] @ (named["norm_weight"] * torch.cat(norms)))
    return [torch.stack(outputs), h, c, n, m]


@pytest.mark.parametrize("size", [(3, 5), (1, 1), (2, 3)], ids=["plain", "one", "odd"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_state_and_gradients_equal_the_plain_rewriting(case, size) -> None:
    layer = build(case)
    x = torch.randn(*size, DIM, dtype=torch.float64, requires_grad=True)
    start = [torch.randn(size[0], layer.width, dtype=torch.float64) for _ in "hcnm"]
    start[2] = start[2].abs() + 0.5
    start = [part.requires_grad_() for part in start]
    first = dict(zip("hcnm", start, strict=True))
    if layer.conv is not None:
        taps = layer.conv.weight.shape[1]
        first["conv"] = torch.zeros(size[0], taps - 1, layer.width, dtype=torch.float64)
    y, state = layer(x, first)
    found = [y, *(state[name] for name in "hcnm")]
    rows = [plain(layer, x[b], [part[b] for part in start]) for b in range(size[0])]
    wanted = [torch.stack(parts) for parts in zip(*rows, strict=True)]
    upstream = [torch.randn_like(one) for one in found]
    leaves = [x, *start, *layer.parameters()]
    gradients = [torch.autograd.grad(side, leaves, upstream) for side in (found, wanted)]
    for one, other in [*zip(found, wanted, strict=True), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_biases_of_forget_gates_fall_by_a_power_that_grows_with_depth() -> None:
    """xlstm's powerlaw_blockdependent: -(-5 + 12 (j / (J - 1))^(0.3 + 1.3 l / (L - 1)))."""
    overrides = ("model=slstm", "model.dim=128", "model.depth=3", "model.expected_params=null")
    model = build_model(compose_config(overrides).model)
    layers = [one for one in model.modules() if isinstance(one, elman.layers.SLSTM)]
    assert len(layers) == 3
    for index, layer in enumerate(layers):
        bias = layer.cell_bias.detach().view(4, 4, 32)
        ramp = torch.arange(32) / 31
        wanted = -(-5 + 12 * ramp ** (0.3 + 1.3 * index / 2))
        assert not bias[:, :3].any()
        torch.testing.assert_close(bias[:, 3], wanted.expand(4, 32), rtol=1e-5, atol=1e-5)
        assert not layer.recurrent.any()
        assert abs(layer.cell_proj.std().item() / (2 / (5 * 128)) ** 0.5 - 1) < 0.05


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_heads": 4}, "= 6; use model.n_heads=3"),
        ({"n_heads": 6}, "and 2 or more, of int(model.dim * model.expansion) = 6; use model.n_h"),
        ({"n_heads": 2, "expansion": 0.5}, "= 3; use model.n_heads=1"),
        ({"n_heads": 2, "expansion": 0.2}, "= 1; use a larger model.dim"),
        ({"n_heads": 0}, "model.n_heads=0: must be at least 1"),
        ({"n_heads": 2, "use_conv": False, "d_conv": 3}, "model.d_conv=3: read only with"),
    ],
)
def test_heads_that_do_not_share_the_width_are_refused(options, words) -> None:
    with pytest.raises(UserError) as refused:
        elman.layers.SLSTM(DIM, **options)
    assert words in str(refused.value)
