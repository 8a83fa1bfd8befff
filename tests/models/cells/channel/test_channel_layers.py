"""The channel layers against plain rewritings of their specifications; the original's defects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from tests.models.cases import beginning

DIM = 6
Weights = dict[str, Tensor]


def sigma(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x * sigma(x)


def s(h: Tensor) -> Tensor:
    """Return the self gate h^2 sigma(h)."""
    return h**2 * sigma(h)


def rn(v: Tensor) -> Tensor:
    return v / torch.sqrt((v * v).mean() + 1e-6)


def convolved(w: Weights, p_ti: Tensor) -> Tensor:
    """Return the projection after the taps, from zeros before the start."""
    if "conv.weight" not in w:
        return p_ti
    taps = w["conv.weight"].shape[1]
    rows = []
    for t in range(len(p_ti)):
        row = w["conv.bias"]
        for j in range(taps):
            if t - taps + 1 + j >= 0:
                row = row + w["conv.weight"][:, j] * p_ti[t - taps + 1 + j]
        rows.append(row)
    return torch.stack(rows)


# One step of each cell, from the specification: new h from the old one and u.
# m holds the blocks of the cell's matrix, w every parameter by name.


def e34(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    c = w["coefficient"].clamp(-0.99, 0.99)
    return torch.tanh(m[0] @ u + c * h + w["candidate_bias"])


def e59(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    return rn(h + torch.exp(w["log_alpha"]) * (m[0] @ u + w["value_bias"]))


def e59b(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    return rn(h + sigma(m[1] @ u + w["gate_bias"]) * (m[0] @ u + w["value_bias"]))


def e59c(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    alpha, beta = torch.exp(w["log_alpha"]), 0.1 * sigma(w["beta_logit"])
    return rn(h + alpha * (m[0] @ u + w["value_bias"]) + beta * (w["mix"] @ h))


def gate_and_value(m: list[Tensor], w: Weights, u: Tensor) -> tuple[Tensor, Tensor]:
    return sigma(m[0] @ u + w["retain_bias"]), m[1] @ u + w["candidate_bias"]


def e61(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al, v = gate_and_value(m, w, u)
    return al * h + (1 - al) * v


def e61_tanh(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al, v = gate_and_value(m, w, u)
    return al * h + (1 - al) * torch.tanh(v)


def e61_additive(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al, v = gate_and_value(m, w, u)
    return al * h + v


def tied(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    q = m[0] @ u + w["candidate_bias"]
    return sigma(q) * h + (1 - sigma(q)) * torch.tanh(q)


def e62(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    k = sigma(m[0] @ u + w["write_bias"])
    return (1 - k) * h + k * torch.tanh(m[1] @ u + w["candidate_bias"])


def e62_decay(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    k, al = sigma(m[0] @ u + w["write_bias"]), sigma(m[2] @ u + w["retain_bias"])
    return al * (1 - k) * h + k * torch.tanh(m[1] @ u + w["candidate_bias"])


def e64(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al, x = gate_and_value(m, w, u)
    return al * h + (1 - al) * torch.tanh(h + x)


def e65(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al, x = gate_and_value(m, w, u)
    return al * h + (1 - al) * torch.tanh(w["coefficient"] * h + x)


def e67(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al = sigma(m[0] @ u + w["coefficient"] * h + w["retain_bias"])
    return al * h + (1 - al) * torch.tanh(m[1] @ u + w["candidate_bias"])


def e68(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al, x = gate_and_value(m, w, u)
    return al * h + (1 - al) * torch.tanh(x) * sigma(w["coefficient"] * h + w["self_bias"])


def e68_inverse(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    al, x = gate_and_value(m, w, u)
    f = sigma(-w["coefficient"] * h.abs() + w["self_bias"])
    return al * h + (1 - al) * torch.tanh(x) * f


def g(k: Tensor) -> Tensor:
    return torch.stack([a + 0.5 if a >= 0 else sigma(a) for a in k])


def mingru(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    z = sigma(m[1] @ u)
    return (1 - z) * h + z * g(m[0] @ u)


def minlstm(m: list[Tensor], w: Weights, h: Tensor, u: Tensor) -> Tensor:
    f, i = sigma(m[1] @ u), sigma(m[2] @ u)
    return f / (f + i) * h + i / (f + i) * g(m[0] @ u)


Step = Callable[[list[Tensor], Weights, Tensor, Tensor], Tensor]
SKELETON: dict[str, tuple[str, dict[str, Any], Step, int]] = {
    "e34": ("E34", {}, e34, 1),
    "e34-conv": ("E34", {"use_conv": True, "expansion": 1.5}, e34, 1),
    "e59": ("E59", {}, e59, 1),
    "e59-narrow": ("E59", {"use_conv": True, "d_conv": 2, "expansion": 0.5}, e59, 1),
    "e59b": ("E59b", {"expansion": 1.5}, e59b, 2),
    "e59c": ("E59c", {"expansion": 1.5}, e59c, 1),
    "e61": ("E61", {}, e61, 2),
    "e61-conv": ("E61", {"use_conv": True, "d_conv": 3, "expansion": 2.0}, e61, 2),
    "e61-tanh": ("E61", {"use_tanh": True}, e61_tanh, 2),
    "e61-additive": ("E61", {"variant": "additive"}, e61_additive, 2),
    "e61-tied": ("E61", {"variant": "tied", "expansion": 1.5}, tied, 1),
    "e62": ("E62", {"expansion": 1.5}, e62, 2),
    "e62-decay": ("E62", {"variant": "decay", "use_conv": True}, e62_decay, 3),
    "e62-tied": ("E62", {"variant": "tied"}, tied, 1),
    "e64": ("E64", {"expansion": 1.5}, e64, 2),
    "e65": ("E65", {"expansion": 1.5}, e65, 2),
    "e67": ("E67", {"expansion": 1.5}, e67, 2),
    "e68": ("E68", {"expansion": 1.5}, e68, 2),
    "e68-inverse": ("E68", {"variant": "inverse"}, e68_inverse, 2),
}
MINIMAL: dict[str, tuple[str, dict[str, Any], Step, int]] = {
    f"{name.lower()}-{form}-{expansion:g}": (
        name,
        {"form": form, "expansion": expansion},
        step,
        blocks,
    )
    for name, step, blocks in (("MinGRU", mingru, 2), ("MinLSTM", minlstm, 3))
    for form in ("parallel", "sequential")
    for expansion in (1.0, 1.5)
}


def plain_skeleton(case: Any, w: Weights, x_td: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Vector-state specification 2.2, skeleton S, for one row of the batch."""
    _, _, step, blocks = case
    m = list(w["cell_proj"].chunk(blocks))
    outputs = []
    for u in silu(convolved(w, x_td @ w["in_proj"].T)):
        h = step(m, w, h, u)
        outputs.append(w["out_proj"] @ s(h))
    return torch.stack(outputs), h


def plain_minimal(case: Any, w: Weights, x_td: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Vector-state specification 5.3 and 5.4, the sequential form, for one row of the batch."""
    _, _, step, blocks = case
    m = list(w["cell_proj"].chunk(blocks))
    outputs = []
    for x in x_td:
        h = step(m, w, h, x)
        outputs.append(w["out_proj"] @ h if "out_proj" in w else h)
    return torch.stack(outputs), h


PROJECTIONS = {"no_z": "kvq", "tied_kq": "kv", "tied_kvq": "k"}
E74: dict[str, dict[str, Any]] = {
    "delta": {},
    "delta-linear": {"nonlinearity": "linear", "projection": "tied_kq", "use_conv": True},
    "delta-rmsnorm": {"nonlinearity": "rmsnorm", "projection": "tied_kvq"},
    "delta-frobnorm": {"nonlinearity": "frobnorm", "expansion": 1.5, "use_silu": False},
    "simple": {"update": "simple"},
    "simple-rmsnorm": {"update": "simple", "nonlinearity": "rmsnorm", "projection": "tied_kvq"},
    "ema": {"update": "ema"},
    "ema-tied": {"update": "ema", "nonlinearity": "linear", "projection": "tied_kq"},
    "retain": {"gate": "retain"},
    "retain-frobnorm": {"gate": "retain", "nonlinearity": "frobnorm", "projection": "tied_kvq"},
    "state": {"gate": "state"},
    "state-linear": {"gate": "state", "nonlinearity": "linear", "projection": "tied_kq"},
}
SIZE = 5


def plain_e74(options: dict[str, Any], w: Weights, x_td: Tensor, state: Tensor) -> Any:
    """Matrix-state specification 9, diagonal, for one row of the batch."""
    f = {
        "tanh": torch.tanh,
        "linear": lambda a: a,
        "rmsnorm": lambda a: a / ((a * a).mean().sqrt() + 1e-6),
        "frobnorm": lambda a: a / ((a * a).sum().sqrt() + 1e-6),
    }[options.get("nonlinearity", "tanh")]
    update, gate = options.get("update", "delta"), options.get("gate", "output")
    letters = PROJECTIONS[options.get("projection", "no_z")] + ("a" if update == "ema" else "")
    m = dict(zip(letters, w["cell_proj"].split(SIZE), strict=True))
    p = convolved(w, x_td @ w["in_proj"].T)
    outputs = []
    for c in silu(p) if options.get("use_silu", True) else p:
        k = m["k"] @ c
        v = m["v"] @ c if "v" in m else k
        q = m["q"] @ c if "q" in m else k
        unit = k / ((k * k).sum().sqrt() + 1e-6)
        if update == "simple":
            new = sigma(w["retain_logit"]) * state + v * unit
        elif update == "ema":
            al = sigma(m["a"] @ c + w["retain_bias"])
            new = al * state + (1 - al) * v * unit
        else:
            new = state * (1 - unit**2) + v * unit
        if gate != "output":
            a = sigma(w["gate_scale"] * state + w["gate_bias"])
            mixed = a * state + (1 - a) * new
            new = mixed if gate == "retain" else state + (v - state * unit) * unit * a
        state = f(new)
        outputs.append(w["out_proj"] @ s(state * q))
    return torch.stack(outputs), state


def randomized(name: str, **options: Any) -> Any:
    """Return an fp64 layer whose every parameter is random."""
    torch.manual_seed(5)
    layer = getattr(elman.layers, name)(DIM, **options, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return layer


def agree(layer: Any, plain: Callable[[Weights, Tensor, Tensor], Any], batch: int = 3) -> None:
    """Compare output, last state and every gradient with a rewriting for one row."""
    x = torch.randn(batch, 5, DIM, dtype=torch.float64, requires_grad=True)
    start = torch.randn_like(layer(x)[1]["h"]).requires_grad_()
    y, state = layer(x, beginning(layer, x, {"h": start}))
    weights = dict(layer.named_parameters())
    rows = [plain(weights, x[row], start[row]) for row in range(batch)]
    found = [y, state["h"]]
    wanted = [torch.stack(side) for side in zip(*rows, strict=True)]
    pulls = [torch.randn_like(one) for one in found]
    gradients = [
        torch.autograd.grad(side, [x, start, *weights.values()], pulls) for side in (found, wanted)
    ]
    for one, other in [*zip(found, wanted, strict=True), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", SKELETON.values(), ids=SKELETON)
def test_skeleton_layers_equal_the_plain_rewriting(case) -> None:
    agree(randomized(case[0], **case[1]), lambda *given: plain_skeleton(case, *given))


@pytest.mark.parametrize("case", MINIMAL.values(), ids=MINIMAL)
def test_minimal_layers_equal_the_plain_rewriting(case) -> None:
    agree(randomized(case[0], **case[1]), lambda *given: plain_minimal(case, *given))


@pytest.mark.parametrize("options", E74.values(), ids=E74)
def test_e74_diagonal_equals_the_plain_rewriting(options) -> None:
    layer = randomized("E74Diagonal", n_state=SIZE, **options)
    agree(layer, lambda *given: plain_e74(options, *given))


def trained(layer: Any, x: Tensor) -> dict[str, Tensor]:
    """Return the gradient of every parameter."""
    layer(x)[0].square().sum().backward()
    return {name: parameter.grad for name, parameter in layer.named_parameters()}


@pytest.mark.parametrize("options", E74.values(), ids=E74)
def test_e74_diagonal_trains_every_matrix_and_what_stands_before_it(options) -> None:
    """Its CUDA path ran outside autograd; an early version dropped dv of tied_kvq."""
    layer = randomized("E74Diagonal", n_state=SIZE, **options)
    x = torch.randn(2, 4, DIM, dtype=torch.float64, requires_grad=True)
    gradients = trained(layer, x)
    rows = gradients.pop("cell_proj").norm(dim=1)
    assert (rows > 1e-6).all()
    assert all(gradient.norm() > 1e-6 for gradient in gradients.values())
    assert x.grad.norm() > 1e-6


def test_e74_diagonal_normalizes_its_keys() -> None:
    """Its CUDA path did not: the length of W_k changed the output."""
    layer = randomized("E74Diagonal", n_state=SIZE, nonlinearity="linear")
    x = torch.randn(2, 4, DIM, dtype=torch.float64)
    before, _ = layer(x)
    with torch.no_grad():
        layer.cell_proj[:SIZE].mul_(3)
    torch.testing.assert_close(layer(x)[0], before, rtol=1e-4, atol=1e-6)


def test_e74_diagonal_reads_its_query() -> None:
    """Its CUDA path gated the state itself."""
    layer = randomized("E74Diagonal", n_state=SIZE)
    with torch.no_grad():
        layer.cell_proj[2 * SIZE :].zero_()
    assert (layer(torch.randn(2, 4, DIM, dtype=torch.float64))[0] == 0).all()


def test_e74_diagonal_simple_learns_its_decay() -> None:
    """Its CUDA path decayed by 0.9 whatever the parameter said."""
    layer = randomized("E74Diagonal", n_state=SIZE, update="simple", nonlinearity="linear")
    start = torch.ones(1, SIZE, dtype=torch.float64)
    with torch.no_grad():
        layer.cell_proj.zero_()
    _, state = layer(torch.zeros(1, 1, DIM, dtype=torch.float64), {"h": start})
    torch.testing.assert_close(state["h"][0], torch.sigmoid(layer.retain_logit.detach()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": "ntm"}, "model.update=ntm: expected one of delta, simple, ema"),
        ({"update": "residual"}, "model.update=residual: expected one of delta, simple, ema"),
        (
            {"update": "retrieved_gate"},
            "model.update=retrieved_gate: expected one of delta, simple, ema",
        ),
        ({"gate": "input"}, "model.gate=input: expected one of output, retain, state"),
        ({"projection": "full"}, "model.projection=full: expected one of no_z, tied_kq, tied_kvq"),
        (
            {"gate": "retain", "update": "ema"},
            "model.gate=retain with model.update=ema: this gate needs the delta rule; "
            "use model.update=delta or model.gate=output",
        ),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_names_that_silently_meant_something_else_are_refused(options, message) -> None:
    with pytest.raises(UserError) as caught:
        elman.layers.E74Diagonal(DIM, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["E34", "E59", "E59b", "E59c", "E61", "E68", "E74Diagonal"])
def test_s4d_which_meant_normal_is_refused(name) -> None:
    with pytest.raises(UserError, match=r"^model.mamba2_init=s4d: expected one of none, normal$"):
        getattr(elman.layers, name)(DIM, mamba2_init="s4d")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("E61", {"variant": "tied", "use_tanh": True}, "read only with model.variant=plain"),
        ("E61", {"variant": "inverse"}, "expected one of plain, additive, tied"),
        ("E62", {"variant": "additive"}, "expected one of plain, decay, tied"),
        ("E68", {"variant": "tied"}, "expected one of plain, inverse"),
        ("MinGRU", {"form": "scan"}, "expected one of parallel, sequential"),
        ("MinLSTM", {"use_conv": True}, "cell minlstm does not read it"),
        ("E34", {"recurrent_gain": 0.1}, "cell e34 does not read it"),
        ("E59b", {"expansion": 0.1}, "leaves no channels of model.dim=6"),
        ("MinGRU", {"expansion": 0.1}, "leaves no channels of model.dim=6"),
        ("E74Diagonal", {"n_state": 0}, "must be at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_options_are_refused_in_one_line(name, options, message) -> None:
    with pytest.raises(UserError) as caught:
        getattr(elman.layers, name)(DIM, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_e34_clamps_its_coefficients_in_the_forward_pass() -> None:
    """Those outside act as the nearer bound and get no gradient; those inside get theirs."""
    layer = randomized("E34")
    x = torch.randn(2, 6, DIM, dtype=torch.float64)
    outer = torch.tensor([-3.0, -0.995, -0.5, 0.5, 0.995, 3.0], dtype=torch.float64)
    with torch.no_grad():
        layer.coefficient.copy_(outer)
    gradient = trained(layer, x)["coefficient"]
    assert (gradient[[0, 1, 4, 5]] == 0).all()
    assert (gradient[2:4].abs() > 1e-6).all()
    y, _ = layer(x)
    with torch.no_grad():
        layer.coefficient.copy_(outer.clamp(-0.99, 0.99))
    torch.testing.assert_close(layer(x)[0], y, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["E59", "E59c"])
def test_e59_alpha_has_a_gradient_beyond_the_first_step(name) -> None:
    """At T = 1 from a zero state the norm takes alpha away again, up to its eps."""
    layer = randomized(name)
    x = torch.randn(2, 6, DIM, dtype=torch.float64)
    first = trained(layer, x[:, :1])["log_alpha"].item()
    layer.zero_grad()
    later = trained(layer, x)["log_alpha"].item()
    assert abs(first) < 1e-4 < abs(later)


@pytest.mark.parametrize("name", ["E61", "E62", "E64", "E65", "E67", "E68"])
def test_gradients_reach_the_first_state_and_come_from_the_last(name) -> None:
    """The original's kernels gave neither."""
    layer = randomized(name)
    start = torch.randn(2, DIM, dtype=torch.float64, requires_grad=True)
    _, state = layer(torch.randn(2, 5, DIM, dtype=torch.float64), {"h": start})
    state["h"].sum().backward()
    assert start.grad.abs().min() > 0
    assert layer.in_proj.grad.norm() > 0
    assert layer.cell_proj.grad.norm(dim=1).min() > 0


@pytest.mark.parametrize("name", ["E62", "E64", "E65", "E67", "E68"])
def test_the_state_stays_within_one(name) -> None:
    """A convex mix with a bounded candidate, from a zero state (vector-state specification 4)."""
    layer = randomized(name)
    _, state = layer(100 * torch.randn(4, 30, DIM, dtype=torch.float64))
    assert state["h"].abs().max() <= 1


@pytest.mark.parametrize("form", ["parallel", "sequential"])
def test_minlstm_starts_from_the_carried_state_itself(form) -> None:
    """The original started its parallel form from g(h) and divided by f + i + 1e-6 otherwise."""
    layer = randomized("MinLSTM", form=form)
    with torch.no_grad():
        layer.cell_proj.zero_()
    start = torch.tensor([[-3.0, -1.0, 0.0, 0.25, 1.0, 8.0]], dtype=torch.float64)
    _, state = layer(torch.zeros(1, 1, DIM, dtype=torch.float64), {"h": start})
    torch.testing.assert_close(state["h"], start / 2 + 0.25, rtol=1e-12, atol=1e-12)


def test_minimal_layers_have_an_output_projection_exactly_beside_an_expansion() -> None:
    for name in ("MinGRU", "MinLSTM"):
        layer = getattr(elman.layers, name)
        assert layer(DIM).out_proj is None
        assert layer(DIM, expansion=2.0).out_proj.shape == (DIM, 12)
        # int(6 * 1.1) == 6: the projection is there all the same.
        assert layer(DIM, expansion=1.1).out_proj.shape == (DIM, DIM)


@pytest.mark.parametrize("name", ["MinGRU", "MinLSTM"])
def test_one_step_equals_the_sequence_in_fp32(name) -> None:
    """The original computed single steps in the input's precision, sequences in fp32."""
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(DIM)
    x = torch.randn(2, 9, DIM)
    whole, _ = layer(x)
    state, steps = None, []
    for t in range(9):
        y, state = layer(x[:, t : t + 1], state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-5, atol=1e-6)
