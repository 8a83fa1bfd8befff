"""What holds for every layer of the channel cells: carried state, shapes, dtypes, devices."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import elman.layers
from elman.models import registry
from elman.ops import scan

DIM = 8
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "e34": ("E34", {}),
    "e34-conv": ("E34", {"use_conv": True, "expansion": 1.5}),
    "e59": ("E59", {}),
    "e59-conv": ("E59", {"use_conv": True, "expansion": 0.5}),
    "e59b": ("E59b", {"expansion": 1.5}),
    "e59c": ("E59c", {"use_conv": True, "d_conv": 2}),
    "e61": ("E61", {"expansion": 1.5}),
    "e61-tanh": ("E61", {"use_tanh": True, "use_conv": True}),
    "e61-additive": ("E61", {"variant": "additive"}),
    "e61-tied": ("E61", {"variant": "tied"}),
    "e62": ("E62", {"use_conv": True}),
    "e62-decay": ("E62", {"variant": "decay"}),
    "e62-tied": ("E62", {"variant": "tied"}),
    "e64": ("E64", {"use_conv": True, "expansion": 1.5}),
    "e65": ("E65", {"use_conv": True}),
    "e67": ("E67", {"use_conv": True}),
    "e68": ("E68", {"use_conv": True}),
    "e68-inverse": ("E68", {"variant": "inverse"}),
    "mingru": ("MinGRU", {}),
    "mingru-sequential": ("MinGRU", {"form": "sequential", "expansion": 1.5}),
    "minlstm": ("MinLSTM", {"expansion": 1.5}),
    "minlstm-sequential": ("MinLSTM", {"form": "sequential"}),
    "e74": ("E74Diagonal", {"n_state": 5}),
    "e74-simple": ("E74Diagonal", {"n_state": 5, "update": "simple", "projection": "tied_kq"}),
    "e74-ema-conv": (
        "E74Diagonal",
        {"n_state": 7, "update": "ema", "nonlinearity": "rmsnorm", "use_conv": True},
    ),
    "e74-retain": (
        "E74Diagonal",
        {"n_state": 5, "gate": "retain", "nonlinearity": "linear", "expansion": 1.5},
    ),
    "e74-state": (
        "E74Diagonal",
        {"n_state": 3, "gate": "state", "nonlinearity": "frobnorm", "projection": "tied_kvq"},
    ),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def build(case: tuple[str, dict[str, Any]], **kwargs: Any) -> Any:
    """Return a layer with the weights of a fixed seed."""
    name, options = case
    torch.manual_seed(2)
    return getattr(elman.layers, name)(DIM, **options, **kwargs)


def test_every_channel_cell_of_this_package_is_here() -> None:
    covered = {getattr(elman.layers, name).cell.name for name, _ in CASES.values()}
    assert covered == {
        cell.name
        for cell in registry.cells().values()
        if cell.engine == "channel" and cell.layer.startswith("elman.")
    }


@cases
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize(
    "lengths", [(1, 1, 1, 1, 1), (3, 4), (1, 5, 1)], ids=lambda lengths: "+".join(map(str, lengths))
)
def test_chunks_with_carried_state_equal_the_whole(case, batch, lengths) -> None:
    """The convolution's history included, which the original dropped."""
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
def test_the_carried_state_matters_and_starts_at_zero(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    y, state = layer(x)
    assert all(tensor.shape[0] == 2 for tensor in state.values())
    for name in state:
        assert not torch.allclose(layer(x, {name: state[name]})[0], y, rtol=1e-6), name
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    torch.testing.assert_close(layer(x, zeros)[0], y, rtol=0, atol=0)


@cases
def test_gradcheck_of_input_state_and_parameters(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    names = list(layer(x)[1])
    states = [torch.randn_like(layer(x)[1][name]).requires_grad_() for name in names]
    trained = dict(layer.named_parameters())

    def run(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state = dict(zip(names, rest, strict=False))
        weights = dict(zip(trained, rest[len(names) :], strict=True))
        y, new = torch.func.functional_call(layer, weights, (x, state))
        return (y, *new.values())

    assert torch.autograd.gradcheck(run, (x, *states, *trained.values()), fast_mode=True, atol=1e-6)


@cases
def test_recomputed_segments_equal_the_plain_loop(case, monkeypatch) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        y, state = layer(x)
        loss = y.square().sum() + state["h"].sum()
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
    assert state["h"].dtype == torch.float32
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
    assert state["h"].dtype == torch.float32


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
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))
    assert torch.empty(2).isnan().all()
    layer = build(case)
    y, state = layer(torch.randn(2, 5, DIM))
    y.square().sum().backward()
    tensors = dict(layer.named_parameters()) | state | {"y": y}
    tensors |= {f"grad {n}": p.grad for n, p in layer.named_parameters()}
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
        return torch.cat([p.detach().flatten() for p in layer.parameters()]).clone()

    layer = build(case)
    torch.testing.assert_close(drawn(1), drawn(1), rtol=0, atol=0)
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if not case[0].startswith("Min")], ids=str
)
def test_dropout_acts_in_training_alone(case) -> None:
    name, options = case
    layer, plain = build((name, options | {"dropout": 0.5})), build(case)
    x = torch.randn(2, 5, DIM)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    torch.testing.assert_close(layer.eval()(x)[0], plain(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES.values()}))
def test_the_constructor_takes_exactly_the_declared_options(name) -> None:
    layer = getattr(elman.layers, name)
    parameters = inspect.signature(layer).parameters
    assert set(parameters) - {"dim", "backend", "device", "dtype"} == set(layer.cell.options)
    for option, declared in layer.cell.options.items():
        assert parameters[option].default == declared.default
