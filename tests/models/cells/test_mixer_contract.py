"""What holds for every layer of every cell: carried state, shapes, dtypes, devices, errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.base.errors import UserError
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.ops.common import scan
from tests.models.cases import CASES, DIM, beginning, build, cases, first_state

EXACT = {"rtol": 1e-9, "atol": 1e-12}


# Parts of a state that are stored inputs or projections, in their dtype; the others are fp32.
STORED = {"conv", "past"}


def trained(layer: Any) -> dict[str, Tensor]:
    """Return the parameters that training moves, by name."""
    return {name: p for name, p in layer.named_parameters() if p.requires_grad}


def test_every_cell_is_here() -> None:
    covered = {getattr(elman.layers, name).cell.name for name, _ in CASES.values()}
    own = {c.name for c in registry.cells().values() if c.layer.startswith("elman.")}
    assert covered == own


@cases
@pytest.mark.parametrize("batch", [1, 9])
def test_chunks_with_carried_state_equal_the_whole(case, batch) -> None:
    """Single steps, as in generation, too; the convolution's history included."""
    layer = build(case, dtype=torch.float64)
    x = torch.randn(batch, 7, DIM, dtype=torch.float64)
    whole, final = layer(x)
    for lengths in ((1,) * 7, (3, 4), (2, 1, 4)):
        state, parts = None, []
        for piece in x.split(lengths, dim=1):
            y, state = layer(piece, state)
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts, 1), whole, **EXACT)
        torch.testing.assert_close(dict(state), dict(final), **EXACT)


@cases
def test_rows_do_not_meet_whatever_the_shape(case) -> None:
    """The original E23 took [B, T, d] for [T, B, d] where B > T."""
    layer = build(case, dtype=torch.float64)
    for batch, steps in ((5, 2), (5, 1), (2, 5)):
        x = torch.randn(batch, steps, DIM, dtype=torch.float64)
        y, state = layer(x)
        assert y.shape == x.shape
        for row in range(0, batch, batch - 1):  # the first and the last
            alone, alone_state = layer(x[row : row + 1])
            torch.testing.assert_close(alone[0], y[row], **EXACT)
            for name in state:
                torch.testing.assert_close(alone_state[name][0], state[name][row], **EXACT)


@cases
def test_the_carried_state_matters_and_an_absent_one_is_the_first(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    y, state = layer(x)
    assert all(tensor.shape[0] == 2 for tensor in state.values())
    # Mamba3 turns reads and writes alike, and writes the last v on the last k: no part acts alone.
    parts = [tuple(state)] if layer.cell.name == "mamba3" else [(name,) for name in state]
    if layer.cell.name == "slstm":  # without n the memory is empty, and c and m are not read
        parts = [("n", name) if name in ("c", "m") else (name,) for name in state]
    for names in parts:
        carried = layer(x, beginning(layer, x, {name: state[name] for name in names}))[0]
        assert not torch.allclose(carried, y, rtol=1e-6, atol=0), names
    torch.testing.assert_close(layer(x, first_state(layer, state))[0], y, rtol=0, atol=0)


@cases
def test_gradcheck_of_input_state_and_parameters(case) -> None:
    layer = build(case, dtype=torch.float64)
    x = torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    shapes = layer(x)[1]
    states = [torch.randn_like(state).requires_grad_() for state in shapes.values()]
    weights = trained(layer)

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(shapes, rest, strict=False))
        named = dict(zip(weights, rest[len(shapes) :], strict=True))
        y, new = torch.func.functional_call(layer, named, (x, state))
        return (y, *new.values())

    assert torch.autograd.gradcheck(run, (x, *states, *weights.values()), fast_mode=True, atol=1e-6)


@cases
def test_segments_equal_the_plain_loop(case, monkeypatch) -> None:
    layer = build(case, dtype=torch.float64)
    for steps in (1, 5):
        x = torch.randn(2, steps, DIM, dtype=torch.float64)
        results = []
        for limit in (10**9, 0):
            monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
            y, state = layer(x)
            loss = y.square().sum() + sum(tensor.sin().sum() for tensor in state.values())
            results.append([y, *torch.autograd.grad(loss, list(trained(layer).values()))])
        torch.testing.assert_close(results[1], results[0], **EXACT)


@cases
def test_bf16_autocast_is_close_and_finite(case) -> None:
    layer = build(case)
    x = torch.randn(3, 9, DIM)
    wanted, wanted_state = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x)
        y.float().square().sum().backward()
    # What is added to the residual stream has the stream's dtype.
    assert y.dtype == (x.dtype if layer.cell.own_norms else torch.bfloat16)
    assert all(state[name].dtype == torch.float32 for name in state.keys() - STORED)
    assert (y.float() - wanted).norm() < 0.06 * wanted.norm()
    for name in state:
        assert (state[name].float() - wanted_state[name]).norm() < 0.06 * wanted_state[name].norm()
    assert all(p.grad.isfinite().all() for p in trained(layer).values())


@cases
def test_a_bf16_layer_holds_its_state_in_fp32(case) -> None:
    layer = build(case, dtype=torch.bfloat16)
    y, state = layer(torch.randn(2, 3, DIM, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()
    assert all(state[name].dtype == torch.float32 for name in state.keys() - STORED)


@cases
def test_a_layer_that_is_cast_is_the_layer_of_that_dtype(case) -> None:
    """Whatever makes a state, such as E23's tape, stays as wide as the state."""
    layer = build(case)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        made = build(case, dtype=dtype)
        made.load_state_dict(layer.state_dict())
        x = torch.randn(2, 3, DIM, dtype=dtype)
        wanted, wanted_state = made(x)
        y, state = layer.to(dtype)(x)
        torch.testing.assert_close(y, wanted, rtol=0, atol=0)
        torch.testing.assert_close(dict(state), dict(wanted_state), rtol=0, atol=0)
        layer(x, state)
        layer.float()(x.float())


@cases
def test_the_meta_device_computes_shapes_alone(case) -> None:
    layer, real = build(case, device="meta"), build(case)
    assert {n: p.shape for n, p in layer.state_dict().items()} == {
        n: p.shape for n, p in real.state_dict().items()
    }
    y, state = layer(torch.randn(2, 2, DIM, device="meta"))
    y.sum().backward()
    _, wanted = real(torch.randn(2, 2, DIM))
    assert y.shape == (2, 2, DIM)
    assert {n: s.shape for n, s in state.items()} == {n: s.shape for n, s in wanted.items()}
    with torch.device("meta"):
        assert all(p.is_meta for p in build(case).state_dict().values())


@cases
def test_nothing_uninitialized_is_read(case, monkeypatch) -> None:
    """With NaN in every fresh buffer, weights, outputs and gradients are finite all the same."""
    for owner, names in (
        (torch, ("empty", "empty_like", "empty_strided")),
        (Tensor, ("new_empty", "new_empty_strided")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    assert torch.empty(2).isnan().all()
    assert torch.zeros(2).new_empty(2).isnan().all()
    layer = build(case)
    tensors = dict(layer.state_dict())
    y, state = layer(torch.randn(2, 5, DIM))
    y.square().sum().backward()
    tensors |= state | {"y": y} | {f"grad {n}": p.grad for n, p in trained(layer).items()}
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
        return torch.cat([p.detach().flatten() for p in layer.state_dict().values()]).clone()

    layer = build(case)
    torch.testing.assert_close(drawn(1), drawn(1), rtol=0, atol=0)
    assert not torch.equal(drawn(1), drawn(2))
    for first, second in zip(build(case).parameters(), build(case).parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


# Where dropout stands after the last projection (matrix-state specification 2, 11 and 12.1).
AFTER = ("E88", "E97", "M2RNN", "E74FixedDecay", "E75")


DROPPING = [
    name
    for name, (layer, _) in CASES.items()
    if "dropout" in getattr(elman.layers, layer).cell.options
]


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_stands_where_it_is_specified_and_acts_in_training_alone(name) -> None:
    layer_name, options = CASES[name]
    layer, plain = build((layer_name, options | {"dropout": 0.5})), build(CASES[name])
    x = torch.randn(4, 30, DIM)
    zeros = (layer(x)[0] == 0).double().mean().item()
    # A single head of E75 is the single-head form.
    if layer_name in AFTER and not (layer_name == "E75" and options["n_heads"] == 1):
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


@cases
def test_the_loss_falls_through_the_mixer_alone(case) -> None:
    """The embedding, which is the head, is held; every parameter of the layer takes part."""
    layer_name, options = case
    torch.manual_seed(0)
    layer = getattr(elman.layers, layer_name)(16, **options)
    model = LanguageModel(16, [layer])
    with torch.no_grad():
        model.embedding.mul_(20)
    # Clones: the optimizer writes in place.
    before = {name: p.detach().clone() for name, p in trained(layer).items()}
    text = b"the quick brown fox jumps over the lazy dog; "
    tokens = torch.tensor([list((text * 2)[i : i + 7]) for i in range(0, 40, 5)])
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(18):
        model.begin_step()
        loss, _ = model.loss(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0]
    for name, parameter in trained(layer).items():
        assert not torch.equal(parameter, before[name]), name


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
            if set(given) & PARTIAL <= declared and not _read_by_default(name, given):
                yield pytest.param(name, given, message, id=f"{name}-{next(iter(given))}")


def _read_by_default(name: str, given: dict[str, Any]) -> bool:
    """Return whether only the taps are given, of a convolution that is there unless left out."""
    use_conv = getattr(elman.layers, name).cell.options.get("use_conv")
    return set(given) == {"d_conv"} and (use_conv is None or use_conv.default is True)


@pytest.mark.parametrize(("name", "given", "message"), list(_cases()))
def test_wrong_options_are_refused_in_one_line(name, given, message) -> None:
    # Wide enough for every cell's default heads.
    arguments = {"dim": 128} | given
    with pytest.raises(UserError) as caught:
        getattr(elman.layers, name)(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_unread_spectral_radius_and_gain_are_refused() -> None:
    with pytest.raises(UserError, match=r"read only with model\.recurrent_norm=spectral"):
        elman.layers.E1(DIM, recurrent_norm="none", spectral_radius=0.5)
    # At its default too: whoever names it expects it to act.
    with pytest.raises(UserError, match=r"read only with model\.recurrent_norm=spectral"):
        elman.layers.E1(DIM, recurrent_norm="none", spectral_radius=0.99)
    with pytest.raises(UserError, match=r"not read with model\.recurrent_norm=scaled_orthogonal"):
        elman.layers.E0(DIM, recurrent_norm="scaled_orthogonal", recurrent_gain=0.1)
    assert elman.layers.E0(DIM, recurrent_norm="none", recurrent_gain=0.1).norm is None
    with pytest.raises(UserError, match=r"read only with model\.mamba2_init=none"):
        elman.layers.E42(DIM, mamba2_init="s4d", recurrent_gain=1.0)


SIZED = [n for n in elman.layers.__all__ if "expansion" in getattr(elman.layers, n).cell.options]


@pytest.mark.parametrize("name", [name for name in SIZED if name not in ("E88", "E97")])
def test_an_expansion_that_leaves_no_channels_is_refused(name) -> None:
    with pytest.raises(UserError, match=r"leaves no channels .* use model.expansion=0.125 or more"):
        getattr(elman.layers, name)(DIM, expansion=0.01)


def test_layers_are_listed_and_a_wrong_name_is_an_attribute_error() -> None:
    assert {"E1", "E42", "E75", "E88"} <= set(elman.layers.__all__)
    assert set(elman.layers.__all__) <= set(dir(elman.layers))
    with pytest.raises(AttributeError, match="no layer 'E89'; layers: "):
        _ = elman.layers.E89


def test_a_backend_is_chosen_once_for_every_name_and_device(monkeypatch) -> None:
    asked: list[tuple[str, str]] = []

    def choose(cell: object, requested: str, device_type: str) -> str:
        asked.append((requested, device_type))
        return f"{requested} on {device_type}"

    monkeypatch.setattr("elman.models.cells.common.mixer.choose_backend", choose)
    layer, x = elman.layers.E1(8), torch.zeros(1, 1, 8)
    assert [layer.backend_for(x) for _ in range(2)] == ["auto on cpu"] * 2
    layer.backend = "reference"  # as a comparison of two of them does
    assert layer.backend_for(x) == "reference on cpu"
    assert layer.backend_for(x.to("meta")) == "reference on meta"
    assert asked == [("auto", "cpu"), ("reference", "cpu"), ("reference", "meta")]
