"""What holds for every layer of every cell: carried state, shapes, dtypes, devices, errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import elman.layers
from elman.errors import UserError
from elman.models import registry
from elman.ops import scan

DIM = 8
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "e88": ("E88", {"n_heads": 3, "n_state": 4}),
    "e88-conv": ("E88", {"n_heads": 2, "n_state": 3, "expansion": 2.0, "use_conv": True}),
    "e88-full": (
        "E88",
        {
            "n_heads": 3,
            "n_state": 2,
            "use_conv": True,
            "use_gate": True,
            "use_output_norm": True,
            "use_write_gate": True,
            "use_value_residual": True,
            "head_mix": "input_weighted",
        },
    ),
    "e88-tied-constant": (
        "E88",
        {"n_heads": 2, "n_state": 3, "tie_kv": True, "decay_mode": "constant", "use_conv": True},
    ),
    "e88-weighted-sum": (
        "E88",
        {"n_heads": 3, "n_state": 2, "head_mix": "weighted_sum", "phantom_norm_gain": True},
    ),
    "e75": ("E75", {"n_heads": 3, "n_state": 4}),
    "e75-conv": ("E75", {"n_heads": 1, "n_state": 5, "use_conv": True, "expansion": 1.5}),
    "e1": ("E1", {}),
    "e1-conv": ("E1", {"use_conv": True, "expansion": 1.5, "recurrent_norm": "none"}),
    "e42": ("E42", {}),
    "e42-conv": ("E42", {"use_conv": True, "d_conv": 2}),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def build(case: tuple[str, dict[str, Any]], **kwargs: Any) -> Any:
    """Return a layer with random weights, biases included."""
    name, options = case
    torch.manual_seed(2)
    return getattr(elman.layers, name)(DIM, **options, **kwargs)


def cast(state: dict[str, torch.Tensor] | None, dtype: torch.dtype) -> Any:
    """Return a state with another dtype."""
    return None if state is None else {name: tensor.to(dtype) for name, tensor in state.items()}


@cases
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "lengths",
    [(1, 1, 1, 1, 1, 1, 1), (3, 4), (1, 6), (5, 1, 1), (2, 1, 4)],
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
    trained = {name: p for name, p in layer.named_parameters() if p.requires_grad}

    def run(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
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
        loss = y.square().sum() + sum(tensor.sum() for tensor in state.values())
        trained = [p for p in layer.parameters() if p.requires_grad]
        results.append([y, *torch.autograd.grad(loss, trained)])
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
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.requires_grad)


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
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))
    assert torch.empty(2).isnan().all()
    assert torch.zeros(2).new_empty(2).isnan().all()
    layer = build(case)
    tensors = dict(layer.named_parameters()) | dict(layer.named_buffers())
    y, state = layer(torch.randn(2, 5, DIM))
    y.square().sum().backward()
    tensors |= state | {"y": y}
    tensors |= {f"grad {n}": p.grad for n, p in layer.named_parameters() if p.requires_grad}
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
    for first, second in zip(build(case).parameters(), build(case).parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@cases
def test_dropout_acts_in_training_alone(case) -> None:
    name, options = case
    layer, plain = build((name, options | {"dropout": 0.5})), build(case)
    x = torch.randn(2, 5, DIM)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    torch.testing.assert_close(layer.eval()(x)[0], plain(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", elman.layers.__all__)
def test_the_constructor_takes_exactly_the_declared_options(name) -> None:
    layer = getattr(elman.layers, name)
    parameters = inspect.signature(layer).parameters
    shared = {"dim", "backend", "device", "dtype"}
    assert set(parameters) - shared == set(layer.cell.options)
    for option, declared in layer.cell.options.items():
        assert parameters[option].default == declared.default
    assert registry.cell(layer.cell.name) is layer.cell


WRONG_OPTIONS = [
    ({"n_stat": 8}, "model.n_stat: cell "),
    ({"dropout": "much"}, "model.dropout=much: expected a number"),
    ({"dropout": -0.1}, "model.dropout=-0.1: must be at least 0"),
    ({"dim": 0}, "dim=0: expected a whole number of at least 1, as in dim=512"),
    ({"dim": 8.0}, "dim=8.0: expected a whole number of at least 1, as in dim=512"),
    ({"use_conv": 1}, "model.use_conv=1: expected true or false"),
    ({"use_conv": True, "d_conv": 1}, "model.d_conv=1: must be at least 2"),
    ({"d_conv": 3}, "model.d_conv=3: read only with model.use_conv=true; "),
    ({"expansion": 0}, "model.expansion=0.0: must be greater than 0"),
    ({"backend": "cude"}, "kernels.backend=cude: no such backend (did you mean cuda?)"),
]
# Options that some cells do not have, by specification.
PARTIAL = {"dropout", "use_conv", "d_conv", "expansion"}


def _cases() -> Iterator[object]:
    for name in elman.layers.__all__:
        declared = set(getattr(elman.layers, name).cell.options)
        for given, message in WRONG_OPTIONS:
            if set(given) & PARTIAL <= declared:
                yield pytest.param(name, given, message, id=f"{name}-{next(iter(given))}")


@pytest.mark.parametrize(("name", "given", "message"), _cases())
def test_wrong_options_are_refused_in_one_line(name, given, message) -> None:
    arguments = {"dim": DIM} | given
    with pytest.raises(UserError) as caught:
        getattr(elman.layers, name)(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_unread_spectral_radius_and_gain_are_refused() -> None:
    with pytest.raises(UserError, match=r"read only with model\.recurrent_norm=spectral"):
        elman.layers.E1(DIM, recurrent_norm="none", spectral_radius=0.5)
    with pytest.raises(UserError, match=r"read only with model\.mamba2_init=none"):
        elman.layers.E42(DIM, mamba2_init="s4d", recurrent_gain=1.0)


@pytest.mark.parametrize("name", ["E75", "E1", "E42"])
def test_an_expansion_that_leaves_no_channels_is_refused(name) -> None:
    with pytest.raises(UserError, match=r"leaves no channels .* use model.expansion=0.125 or more"):
        getattr(elman.layers, name)(DIM, expansion=0.01)


def test_layers_are_listed_and_a_wrong_name_is_an_attribute_error() -> None:
    assert {"E1", "E42", "E75", "E88"} <= set(elman.layers.__all__)
    assert set(elman.layers.__all__) <= set(dir(elman.layers))
    with pytest.raises(AttributeError, match="no layer 'E89'; layers: "):
        _ = elman.layers.E89
