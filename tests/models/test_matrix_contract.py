"""What holds for every matrix-state layer and variant: carried state, shapes, dtypes, devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elman.layers
from elman.models.language_model import LanguageModel
from elman.ops import scan

DIM = 8
Case = tuple[str, dict[str, Any]]
CASES: dict[str, Case] = {
    "e14": ("E14", {"n_state": 3}),
    "e14-square": ("E14", {"expansion": 0.5}),
    "e63m": ("E63m", {"n_state": 3, "expansion": 0.5}),
    "e63m-rnn": ("E63m", {"n_state": 3, "variant": "rnn"}),
    "e63m-lite": ("E63m", {"variant": "lite", "expansion": 0.25, "use_conv": True}),
    "e70": ("E70", {"n_state": 3}),
    "e70-final": (
        "E70",
        {"n_state": 3, "linear_state": True, "projection_norm": "spectral", "use_conv": True},
    ),
    "e71": ("E71", {"n_state": 5, "use_conv": True}),
    "e72": ("E72", {"n_state": 3}),
    "e72-inverse": ("E72", {"n_state": 3, "variant": "inverse"}),
    "e73": ("E73", {"n_state": 3, "use_conv": True, "d_conv": 2}),
    "e73-row": ("E73", {"n_state": 3, "variant": "row", "z_activation": "tanh"}),
    "e73-full": ("E73", {"n_state": 3, "variant": "full"}),
    "e73-delta": ("E73", {"n_state": 3, "rule": "delta", "variant": "full"}),
    "e73cp": ("E73cp", {"n_state": 3, "use_conv": True}),
    "e73cp-row": ("E73cp", {"n_state": 3, "variant": "row"}),
    "e74": ("E74", {"n_state": 3, "use_conv": True}),
    "e74-full": ("E74", {"n_state": 3, "projection": "full"}),
    "e74-tied": ("E74", {"n_state": 3, "projection": "tied_kvq", "gate": "input"}),
    "e74-retain": ("E74", {"n_state": 3, "gate": "retain", "nonlinearity": "rmsnorm"}),
    "e74-state": ("E74", {"n_state": 3, "gate": "state", "nonlinearity": "linear"}),
    "e74-residual": ("E74", {"n_state": 3, "update": "residual"}),
    "e74-ntm": ("E74", {"n_state": 3, "update": "ntm", "nonlinearity": "frobnorm"}),
    "e74-retrieved-gate": ("E74", {"n_state": 3, "update": "retrieved_gate"}),
    "e74-error-gate": ("E74", {"n_state": 3, "update": "retrieved_gate", "error_gate": True}),
    "e74-ema": ("E74", {"n_state": 3, "update": "ema", "projection": "tied_kq"}),
    "e74-simple": ("E74", {"n_state": 3, "update": "simple"}),
    "e74-lowrank": ("E74LowRank", {"n_state": 5, "rank": 3, "use_conv": True}),
    "e74-blockdiag": ("E74BlockDiagonal", {"n_state": 24, "use_conv": True}),
    "e74-fixed": ("E74FixedDecay", {"n_state": 3, "use_conv": True}),
    "e74-fixed-learned": ("E74FixedDecay", {"n_state": 3, "learned_decay": True}),
    "e75-vector-gate": ("E75", {"n_heads": 3, "n_state": 3, "linear_state": True}),
    "e75-post": ("E75", {"n_heads": 3, "n_state": 2, "use_conv": True, "conv_mode": "post"}),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def build(case: Case, **kwargs: Any) -> Any:
    """Return a layer with its own initial weights."""
    name, options = case
    torch.manual_seed(2)
    layer = getattr(elman.layers, name)(DIM, **options, **kwargs)
    if hasattr(layer, "basis"):
        # The published scale of 0.01 hides every effect of the state behind rounding.
        layer.basis.mul_(50)
    return layer


@cases
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    "lengths",
    [(1, 1, 1, 1, 1), (2, 1), (4, 3)],
    ids=lambda lengths: "+".join(map(str, lengths)),
)
def test_chunks_with_carried_state_equal_the_whole(case, batch, lengths) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(batch, sum(lengths), DIM, dtype=torch.float64)
    whole, final = layer(x)
    state, parts = None, []
    for piece in x.split(lengths, dim=1):
        y, state = layer(piece, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-12)
    assert state.keys() == final.keys()
    for name in final:
        torch.testing.assert_close(state[name], final[name], rtol=1e-9, atol=1e-12)


@cases
def test_the_carried_state_matters_and_starts_at_zero(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    y, state = layer(x)
    assert all(tensor.shape[0] == 2 for tensor in state.values())
    for name in state:
        assert not torch.allclose(layer(x, {name: state[name]})[0], y, rtol=1e-6, atol=0), name
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    torch.testing.assert_close(layer(x, zeros)[0], y, rtol=0, atol=0)


@cases
def test_gradcheck_of_input_state_and_parameters(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    shapes = layer(x)[1]
    states = [torch.randn_like(state).requires_grad_() for state in shapes.values()]
    weights = dict(layer.named_parameters())

    def run(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state = dict(zip(shapes, rest, strict=False))
        named = dict(zip(weights, rest[len(shapes) :], strict=True))
        y, new = torch.func.functional_call(layer, named, (x, state))
        return (y, *new.values())

    assert torch.autograd.gradcheck(run, (x, *states, *weights.values()), fast_mode=True, atol=1e-6)


@cases
def test_segments_equal_the_plain_loop(case, monkeypatch) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        y, state = layer(x)
        loss = y.square().sum() + sum(tensor.sum() for tensor in state.values())
        results.append([y, *torch.autograd.grad(loss, list(layer.parameters()))])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-9, atol=1e-12)


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
    assert (y.float() - wanted).norm() < 0.06 * wanted.norm()
    for name in state:
        assert (state[name].float() - wanted_state[name]).norm() < 0.06 * wanted_state[name].norm()
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
    assert {n: p.shape for n, p in layer.named_parameters()} == {
        n: p.shape for n, p in real.named_parameters()
    }
    y, state = layer(torch.randn(2, 3, DIM, device="meta"))
    y.sum().backward()
    _, wanted = real(torch.randn(2, 3, DIM))
    assert y.shape == (2, 3, DIM)
    assert {n: s.shape for n, s in state.items()} == {n: s.shape for n, s in wanted.items()}


@cases
def test_nothing_uninitialised_is_read(case, monkeypatch) -> None:
    """With NaN in every fresh buffer, weights, outputs and gradients are finite all the same."""
    for owner, names in (
        (torch, ("empty", "empty_like", "empty_strided")),
        (torch.Tensor, ("new_empty", "new_empty_strided")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    assert torch.empty(2).isnan().all()
    layer = build(case)
    tensors = dict(layer.named_parameters()) | dict(layer.named_buffers())
    y, state = layer(torch.randn(2, 5, DIM))
    y.square().sum().backward()
    tensors |= state | {"y": y} | {f"grad {n}": p.grad for n, p in layer.named_parameters()}
    for name, tensor in tensors.items():
        assert tensor.isfinite().all(), name


def poisoned(make: Any) -> Any:
    """Return ``make`` filling what it returns with NaN."""

    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = make(*args, **kwargs)
        with torch.no_grad():
            return made.fill_(torch.nan) if made.is_floating_point() else made

    return filled


@cases
def test_the_global_generator_alone_decides_the_weights(case) -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        layer.reset_parameters()
        kept = [p.detach().flatten() for p in (*layer.parameters(), *layer.buffers())]
        return torch.cat(kept).clone()

    layer = build(case)
    torch.testing.assert_close(drawn(1), drawn(1), rtol=0, atol=0)
    assert not torch.equal(drawn(1), drawn(2))


AFTER = {"e74-fixed", "e74-fixed-learned", "e75-vector-gate", "e75-post"}


@pytest.mark.parametrize("name", CASES)
def test_dropout_stands_where_it_is_specified_and_acts_in_training_alone(name) -> None:
    layer_name, options = CASES[name]
    layer, plain = build((layer_name, options | {"dropout": 0.5})), build(CASES[name])
    x = torch.randn(4, 30, DIM)
    zeros = (layer(x)[0] == 0).double().mean().item()
    if name in AFTER:
        assert 0.4 < zeros < 0.6
    else:
        # Before the projection, an output is zero only where every channel was dropped.
        assert 0 <= zeros < 0.3
        assert not torch.equal(layer(x)[0], layer(x)[0])
    torch.testing.assert_close(layer.eval()(x)[0], plain(x)[0], rtol=0, atol=0)


def test_one_head_with_post_conv_drops_the_layers_output() -> None:
    layer = build(("E75", {"n_heads": 1, "n_state": 16, "use_conv": True, "conv_mode": "post"}))
    assert layer.dropout_after()
    assert not build(("E75", {"n_heads": 1})).dropout_after()


def batch_of(period: int) -> torch.Tensor:
    """Return rows of a repeating pattern, 6 + 1 tokens each."""
    return (torch.arange(8)[:, None] + torch.arange(7)[None]) % period


@cases
def test_a_tiny_model_learns(case) -> None:
    torch.manual_seed(0)
    name, options = case
    model = LanguageModel(DIM, [getattr(elman.layers, name)(DIM, **options)], vocab_size=8)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.06)
    losses = []
    for _ in range(20):
        model.begin_step()
        loss, _ = model.loss(batch_of(5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses) < 0.6 * losses[0]
    for parameter_name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[parameter_name]), parameter_name
