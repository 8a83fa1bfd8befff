"""What holds for every gated dense layer and for E23: carried state, shapes, dtypes, training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.models.language_model import LanguageModel
from elman.ops import scan

DIM = 6
WIDE = {"expansion": 1.5}
CONV = {"use_conv": True, "expansion": 1.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "e60": ("E60", {}),
    "e60-tied": ("E60", {"tied": True}),
    "e60-conv": ("E60", CONV),
    "e60-tied-conv": ("E60", {"tied": True, **CONV}),
    "e60b": ("E60b", WIDE),
    "e60b-conv": ("E60b", {"use_conv": True, "d_conv": 2}),
    "e60c": ("E60c", WIDE),
    "e60c-conv": ("E60c", {**CONV, "d_conv": 5}),
    "e63": ("E63", WIDE),
    "e63-conv": ("E63", CONV),
    "e63-independent": ("E63", {"variant": "independent"}),
    "e63-h-dependent": ("E63", {"variant": "h_dependent", "expansion": 0.5}),
    "e63-h-dependent-conv": ("E63", {"variant": "h_dependent", **CONV}),
    "e63-residual": ("E63", {"variant": "residual", **WIDE}),
    "e66": ("E66", {}),
    "e66-rank-3": ("E66", {"rank": 3, **CONV}),
    "e67lr": ("E67lr", {}),
    "e67lr-rank-1": ("E67lr", {"rank": 1, **CONV}),
    "e23": ("E23", {"n_slots": 3, **WIDE}),
    "e23-one-slot": ("E23", {"n_slots": 1}),
    "e23-zero": ("E23", {"n_slots": 3, "initial_tape": "zero"}),
    "e23-identity": ("E23", {"n_slots": 5, "write": "identity"}),
    "e23-shared": ("E23", {"n_slots": 2, "write": "shared", "expansion": 0.5}),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def build(case: tuple[str, dict[str, Any]], **kwargs: Any) -> Any:
    """Return a layer with random weights."""
    name, options = case
    torch.manual_seed(2)
    return getattr(elman.layers, name)(DIM, **options, **kwargs)


def first_state(layer: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what an absent state stands for: zeros, but for a seeded tape."""
    start = {name: torch.zeros_like(one) for name, one in state.items()}
    if getattr(layer, "seeded", False):
        start["tape"] = start["tape"] + layer.initial_tape
    return start


@cases
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    "lengths",
    [(1, 1, 1, 1, 1), (3, 4), (1, 6), (2, 1, 4)],
    ids=lambda lengths: "+".join(map(str, lengths)),
)
def test_chunks_with_carried_state_equal_the_whole(case, batch, lengths) -> None:
    """Single steps, as in generation, give what the whole sequence gives."""
    layer = build(case, dtype=torch.float64)
    x = torch.randn(batch, sum(lengths), DIM, dtype=torch.float64)
    whole, final = layer(x)
    state, parts = None, []
    for piece in x.split(lengths, dim=1):
        y, state = layer(piece, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-12)
    assert state.keys() == final.keys()
    for name in final:
        torch.testing.assert_close(state[name], final[name], rtol=1e-10, atol=1e-12)


@cases
@pytest.mark.parametrize(("batch", "steps"), [(5, 2), (5, 1), (2, 5)], ids="{}".format)
def test_rows_do_not_meet_whatever_the_shape(case, batch, steps) -> None:
    """The original E23 took [B, T, d] for [T, B, d] where B > T."""
    layer = build(case, dtype=torch.float64)
    x = torch.randn(batch, steps, DIM, dtype=torch.float64)
    y, state = layer(x)
    assert y.shape == x.shape
    for row in range(batch):
        alone, alone_state = layer(x[row : row + 1])
        torch.testing.assert_close(alone[0], y[row], rtol=1e-10, atol=1e-12)
        for name in state:
            torch.testing.assert_close(
                alone_state[name][0], state[name][row], rtol=1e-10, atol=1e-12
            )


@cases
def test_the_carried_state_matters_and_an_absent_one_is_the_first(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    y, state = layer(x)
    assert all(one.shape[0] == 2 for one in state.values())
    for name in state:
        assert not torch.allclose(layer(x, {name: state[name]})[0], y, rtol=1e-6), name
    torch.testing.assert_close(layer(x, first_state(layer, state))[0], y, rtol=0, atol=0)


@cases
def test_gradcheck_of_input_state_and_parameters(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    names = list(layer(x)[1])
    states = [torch.randn_like(layer(x)[1][name]).requires_grad_() for name in names]
    # Random biases too: at zero their gradients could hide a factor.
    trained = {
        name: torch.randn_like(p).div(2).requires_grad_() for name, p in layer.named_parameters()
    }

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(names, rest, strict=False))
        weights = dict(zip(trained, rest[len(names) :], strict=True))
        y, new = torch.func.functional_call(layer, weights, (x, state))
        return (y, *new.values())

    assert torch.autograd.gradcheck(run, (x, *states, *trained.values()), fast_mode=True, atol=1e-6)


@cases
@pytest.mark.parametrize("steps", [1, 5])
def test_segments_equal_the_plain_loop(case, steps, monkeypatch) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, steps, DIM, dtype=torch.float64)
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        y, state = layer(x)
        loss = y.square().sum() + sum(one.sin().sum() for one in state.values())
        results.append([y, *torch.autograd.grad(loss, list(layer.parameters()))])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-10, atol=1e-12)


@cases
def test_bf16_autocast_is_close_and_finite(case) -> None:
    layer = build(case)
    x = torch.randn(3, 9, DIM)
    wanted, wanted_state = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x)
        y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(state[name].dtype == torch.float32 for name in state if name != "conv")
    assert (y.float() - wanted).norm() < 0.05 * wanted.norm()
    for name in state:
        assert (state[name].float() - wanted_state[name]).norm() < 0.05 * wanted_state[name].norm()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@cases
def test_a_bf16_layer_holds_its_state_in_fp32(case) -> None:
    layer = build(case, dtype=torch.bfloat16)
    y, state = layer(torch.randn(2, 3, DIM, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()
    assert all(state[name].dtype == torch.float32 for name in state if name != "conv")


@cases
def test_the_meta_device_computes_shapes_alone(case) -> None:
    layer = build(case, device="meta")
    real = build(case)
    assert {n: p.shape for n, p in layer.state_dict().items()} == {
        n: p.shape for n, p in real.state_dict().items()
    }
    y, state = layer(torch.randn(2, 3, DIM, device="meta"))
    y.sum().backward()
    _, wanted = real(torch.randn(2, 3, DIM))
    assert y.shape == (2, 3, DIM)
    assert {n: s.shape for n, s in state.items()} == {n: s.shape for n, s in wanted.items()}
    with torch.device("meta"):
        assert all(p.is_meta for p in build(case).state_dict().values())


@cases
def test_nothing_uninitialised_is_read(case, monkeypatch) -> None:
    """With NaN in every fresh buffer, weights, outputs and gradients are finite all the same."""
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(Tensor, name, poisoned(getattr(Tensor, name)))
    assert torch.empty(2).isnan().all()
    layer = build(case)
    tensors = layer.state_dict()
    y, state = layer(torch.randn(2, 5, DIM))
    y.square().sum().backward()
    tensors |= state | {"y": y}
    tensors |= {f"grad {n}": p.grad for n, p in layer.named_parameters()}
    for name, tensor in tensors.items():
        assert tensor.isfinite().all(), name


def poisoned(make: Any) -> Any:
    """Return ``make`` filling what it returns with NaN."""

    def filled(*args: Any, **kwargs: Any) -> Tensor:
        made = make(*args, **kwargs)
        with torch.no_grad():
            return made.fill_(torch.nan) if made.is_floating_point() else made

    return filled


@cases
def test_the_global_generator_alone_decides_the_weights(case) -> None:
    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        layer.reset_parameters()
        return torch.cat([p.detach().flatten() for p in layer.parameters()])

    layer = build(case)
    torch.testing.assert_close(drawn(1), drawn(1), rtol=0, atol=0)
    assert not torch.equal(drawn(1), drawn(2))


@cases
def test_dropout_acts_in_training_alone_and_before_the_output_projection(case) -> None:
    name, options = case
    layer, plain = build((name, options | {"dropout": 0.5})), build(case)
    x = torch.randn(2, 50, DIM)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    # Behind the projection half of the output would be zero.
    assert (layer(x)[0] == 0).double().mean() < 0.25
    torch.testing.assert_close(layer.eval()(x)[0], plain(x)[0], rtol=0, atol=0)


@cases
def test_a_tiny_model_learns(case) -> None:
    name, options = case
    torch.manual_seed(4)
    layers = [getattr(elman.layers, name)(16, **options) for _ in range(2)]
    model = LanguageModel(16, layers, vocab_size=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    tokens = torch.arange(17).repeat(4, 1).add(torch.arange(4).unsqueeze(1)) % 7
    losses = []
    for _ in range(25):
        model.begin_step()
        loss, _ = model.loss(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
