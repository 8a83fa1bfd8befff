"""Layer E23 against a plain rewriting of its specification; its tapes and options."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.layers import E23
from tests.models.cases import beginning

DIM = 6
CASES: dict[str, dict[str, Any]] = {
    "seeded": {"n_slots": 3},
    "zero": {"n_slots": 3, "initial_tape": "zero"},
    "wider": {"n_slots": 2, "expansion": 1.5},
    "narrower": {"n_slots": 5, "expansion": 0.7},
    "one-slot": {"n_slots": 1},
    "identity": {"n_slots": 4, "write": "identity"},
    "shared": {"n_slots": 4, "write": "shared", "expansion": 1.5},
}
writes = pytest.mark.parametrize("write", ["full", "identity", "shared"])


def build(options: dict[str, Any]) -> E23:
    """Return an fp64 layer whose every parameter is random."""
    torch.manual_seed(5)
    layer = E23(DIM, **options, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return layer


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def softmax(scores: Tensor) -> Tensor:
    return torch.exp(scores) / torch.exp(scores).sum()


def plain(layer: E23, x_td: Tensor, h_i: Tensor, tape_ni: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run one row step by step, as vector-state specification 3.4 and seed 003 write it."""
    named = dict(layer.named_parameters())
    w_p, w_z = named["in_proj"].split(len(h_i))
    k = 1 / math.sqrt(len(h_i))
    outputs = []
    for x in x_td:
        u, z = silu(w_p @ x), w_z @ x
        r = softmax(k * (tape_ni @ h_i))
        read = sum(r[n] * tape_ni[n] for n in range(len(r)))
        h_i = torch.tanh(named["recurrent"] @ h_i + named["input"] @ u + read + named["bias"])
        w = softmax(k * (tape_ni @ h_i))
        matrix = {"full": "write", "shared": "recurrent"}.get(layer.write_value)
        q = h_i if matrix is None else named[matrix] @ h_i
        tape_ni = torch.stack([(1 - w[n]) * tape_ni[n] + w[n] * q for n in range(len(w))])
        outputs.append(named["out_proj"] @ (h_i * silu(z)))
    return torch.stack(outputs), h_i, tape_ni


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("given", [True, False], ids=["given-state", "first-state"])
def test_output_state_and_gradients_equal_the_plain_rewriting(options, given) -> None:
    layer = build(options)
    x = torch.randn(4, 3, DIM, dtype=torch.float64, requires_grad=True)
    i, n = layer.width, layer.slots
    h = torch.zeros(4, i, dtype=torch.float64)
    tape = torch.zeros(4, n, i, dtype=torch.float64)
    if layer.seeded:
        tape = tape + layer.initial_tape
    if given:
        h, tape = torch.randn_like(h).requires_grad_(), torch.randn_like(tape).requires_grad_()
    y, state = layer(x, {"h": h, "tape": tape} if given else None)
    rows = [plain(layer, x[row], h[row], tape[row]) for row in range(4)]
    found = [y, state["h"], state["tape"]]
    wanted = [torch.stack(side) for side in zip(*rows, strict=True)]
    weights = [torch.randn_like(one) for one in found]
    leaves = [x, *([h, tape] if given else []), *layer.parameters()]
    gradients = [torch.autograd.grad(side, leaves, weights) for side in (found, wanted)]
    for one, other in [*zip(found, wanted, strict=True), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_the_published_model_starts_from_a_zero_tape_of_eight_slots() -> None:
    options = compose_config(["model=e23_512x17_e1.5_legacy"]).model.options
    assert (options["initial_tape"], options["n_slots"]) == ("zero", 8)
    assert compose_config(["model=e23"]).model.options["initial_tape"] == "seeded"


@writes
def test_initial_values(write) -> None:
    torch.manual_seed(11)
    layer = E23(96, expansion=1.5, write=write)
    singular = torch.linalg.svdvals(layer.recurrent)
    torch.testing.assert_close(singular, torch.full_like(singular, 0.9), rtol=1e-4, atol=0)
    matrices = {"in_proj": (288, 96), "input": (144, 144), "out_proj": (96, 144)}
    if write == "full":
        matrices["write"] = (144, 144)
    for name, shape in matrices.items():
        weight, bound = getattr(layer, name), math.sqrt(6 / sum(shape))
        assert weight.shape == shape
        assert 0.99 * bound <= weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not layer.bias.any()
    normal = E23(96, mamba2_init="normal", write=write)
    for weight in (normal.in_proj, normal.out_proj):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert normal.input.std().item() == pytest.approx(1 / math.sqrt(96), rel=0.05)


def test_the_seeded_tape_is_fixed_by_its_seed_alone() -> None:
    """Neither the global generator nor the dtype of the layer moves it."""
    torch.manual_seed(1)
    tape = E23(64, n_slots=16).initial_tape
    torch.manual_seed(2)
    wide = E23(64, n_slots=16, dtype=torch.float64)
    assert torch.equal(wide.initial_tape.float(), tape)
    other = E23(64, n_slots=16, tape_seed=1).initial_tape
    assert not torch.isclose(other, tape).any()
    assert tape.mean().item() == pytest.approx(0, abs=0.1)
    assert tape.std().item() == pytest.approx(1, abs=0.1)
    assert torch.linalg.matrix_rank(tape) == 16
    wide.reset_parameters()
    assert torch.equal(wide.initial_tape.float(), tape)


def test_the_seeded_tape_is_kept_in_checkpoints_and_is_no_parameter() -> None:
    torch.manual_seed(0)
    layer, other = E23(DIM, n_slots=3), E23(DIM, n_slots=3, tape_seed=7)
    assert "initial_tape" not in dict(layer.named_parameters())
    assert "initial_tape" in layer.state_dict()
    assert not layer.initial_tape.requires_grad
    other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 4, DIM)
    torch.testing.assert_close(other(x)[0], layer(x)[0], rtol=0, atol=0)
    before = layer.initial_tape.clone()
    layer(x)[0].sum().backward()
    assert torch.equal(layer.initial_tape, before)
    assert "initial_tape" not in E23(DIM, initial_tape="zero").state_dict()


@writes
def test_slots_of_a_zero_tape_stay_identical_and_number_them_is_a_decay_rate(write) -> None:
    """What the published model computed; from a seeded tape the slots differ."""
    layer = build({"n_slots": 4, "initial_tape": "zero", "write": write})
    x = torch.randn(2, 9, DIM, dtype=torch.float64)
    y, state = layer(x)
    tape = state["tape"]
    assert tape.abs().min() > 1e-6
    torch.testing.assert_close(tape, tape[:, :1].expand_as(tape), rtol=0, atol=1e-14)
    # Training cannot separate them either: the gradient of every slot is the same.
    zero = beginning(layer, x, {"tape": torch.zeros_like(tape).requires_grad_()})
    (gradient,) = torch.autograd.grad(layer(x, zero)[0].square().sum(), zero["tape"])
    torch.testing.assert_close(gradient, gradient[:, :1].expand_as(gradient), rtol=1e-9, atol=0)
    seeded = build({"n_slots": 4, "write": write})
    tape = seeded(x)[1]["tape"]
    assert (tape[:, 1:] - tape[:, :1]).abs().amax(dim=-1).min() > 1e-3
    assert not torch.allclose(seeded(x)[0], y, rtol=1e-3)


@pytest.mark.parametrize("carried", [True, False], ids=["given-state", "first-state"])
@pytest.mark.parametrize("steps", [1, 2])
def test_more_rows_than_steps_are_not_misread(steps, carried) -> None:
    """The original took [B, T, d] for [T, B, d] where B > T: single-step decoding was wrong."""
    layer = build({"n_slots": 3})
    x = torch.randn(5, steps, DIM, dtype=torch.float64)
    state = {"h": torch.randn(5, DIM), "tape": torch.randn(5, 3, DIM)} if carried else {}
    state = {name: one.double() for name, one in state.items()}
    y, after = layer(x, state)
    assert y.shape == (5, steps, DIM)
    assert after["h"].shape == (5, DIM)
    assert after["tape"].shape == (5, 3, DIM)
    for row in range(5):
        alone = {name: one[row : row + 1] for name, one in state.items()}
        torch.testing.assert_close(layer(x[row : row + 1], alone)[0][0], y[row])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"initial_tape": "zero", "tape_seed": 3},
            "model.tape_seed=3: read only with model.initial_tape=seeded; "
            "add model.initial_tape=seeded or drop model.tape_seed",
        ),
        ({"n_slots": 0}, "model.n_slots=0: must be at least 1"),
        ({"tape_seed": 10**6}, "model.tape_seed=1000000: must be at most 999999"),
        ({"write": "none"}, "model.write=none: expected one of full, identity, shared"),
        ({"initial_tape": "random"}, "model.initial_tape=random: expected one of seeded, zero"),
        ({"use_conv": True}, "model.use_conv: cell e23 does not read it"),
        ({"expansion": 0.01}, "model.expansion=0.01: leaves no channels of model.dim=6; "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_refused_in_one_line(given, message) -> None:
    with pytest.raises(UserError) as caught:
        E23(DIM, **given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
