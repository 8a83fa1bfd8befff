"""What holds for every layer, on the dense cells: carried state, shapes, dtypes and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import elman.layers
from elman.compose import compose_config
from elman.errors import UserError
from elman.models.language_model import LanguageModel
from elman.ops import scan

DIM = 7
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "e0": ("E0", {}),
    "e0-conv-free": ("E0", {"use_conv": True, "recurrent_norm": "none", "expansion": 1.5}),
    "e0-orthogonal": ("E0", {"recurrent_norm": "scaled_orthogonal"}),
    "e4": ("E4", {}),
    "e4-rank-free": ("E4", {"rank": 3, "recurrent_norm": "none", "expansion": 1.5}),
    "e33": ("E33", {}),
    "e33-conv": ("E33", {"use_conv": True, "d_conv": 2, "expansion": 0.5}),
    "e36": ("E36", {}),
    "e36-conv-free": ("E36", {"use_conv": True, "recurrent_norm": "none"}),
    "e37": ("E37", {}),
    "e37-conv": ("E37", {"use_conv": True, "d_conv": 3, "expansion": 1.5}),
    "e39": ("E39", {}),
    "e39-conv-free": ("E39", {"use_conv": True, "recurrent_norm": "none"}),
    "e56": ("E56", {}),
    "e56-wider": ("E56", {"expansion": 1.5, "mamba2_init": "normal"}),
    "cudagru": ("CudaGRU", {}),
    "cudagru-wider": ("CudaGRU", {"expansion": 1.5}),
    "cudalstm": ("CudaLSTM", {}),
    "cudalstm-narrower": ("CudaLSTM", {"expansion": 0.5}),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
NORMED = {"E0": {}, "E4": {}, "E33": {}, "E36": {}, "E37": {}, "E39": {}}


def build(case: tuple[str, dict[str, Any]], dim: int = DIM, **kwargs: Any) -> Any:
    """Return a layer whose every parameter is random: some start at zero."""
    name, options = case
    torch.manual_seed(2)
    layer = getattr(elman.layers, name)(dim, **options, **kwargs)
    if kwargs.get("device") != "meta":
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn_like(parameter) / 2)
        layer.begin_step()
    return layer


@cases
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("lengths", [(1,) * 7, (3, 4), (1, 6)], ids=lambda n: "+".join(map(str, n)))
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
    for name in state:
        assert state[name].shape[0] == 2
        assert not torch.allclose(layer(x, {name: state[name]})[0], y, rtol=1e-6), name
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    torch.testing.assert_close(layer(x, zeros)[0], y, rtol=0, atol=0)


@cases
def test_gradcheck_of_input_state_and_parameters(case) -> None:
    layer = build(case, dim=5, dtype=torch.float64)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    names = list(layer(x)[1])
    states = [torch.randn_like(layer(x)[1][name]).requires_grad_() for name in names]
    trained = dict(layer.named_parameters())

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        state = dict(zip(names, rest, strict=False))
        weights = dict(zip(trained, rest[len(names) :], strict=True))
        y, new = torch.func.functional_call(layer, weights, (x, state))
        return (y, *new.values())

    assert torch.autograd.gradcheck(run, (x, *states, *trained.values()), fast_mode=True, atol=1e-6)


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
        torch.testing.assert_close(recomputed, kept, rtol=1e-10, atol=1e-12)


@cases
def test_bf16_autocast_is_close_and_finite(case) -> None:
    layer = build(case)
    x = torch.randn(3, 9, DIM) / 2
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
def test_the_meta_device_computes_shapes_alone(case) -> None:
    layer, real = build(case, device="meta"), build(case)
    assert {n: p.shape for n, p in layer.state_dict().items()} == {
        n: p.shape for n, p in real.state_dict().items()
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
        (Tensor, ("new_empty", "new_empty_strided")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    assert torch.empty(2).isnan().all()
    torch.manual_seed(2)
    layer = getattr(elman.layers, case[0])(DIM, **case[1])
    tensors = dict(layer.state_dict())
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
        return torch.cat([p.detach().flatten() for p in layer.state_dict().values()]).clone()

    layer = build(case)
    torch.testing.assert_close(drawn(1), drawn(1), rtol=0, atol=0)
    assert not torch.equal(drawn(1), drawn(2))


@cases
def test_dropout_acts_in_training_alone(case) -> None:
    name, options = case
    layer, plain = build((name, options | {"dropout": 0.5})), build(case)
    x = torch.randn(2, 5, DIM)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    torch.testing.assert_close(layer.eval()(x)[0], plain(x)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", NORMED)
def test_only_begin_step_advances_the_power_iteration(name) -> None:
    model = LanguageModel(DIM, [build((name, {}))])
    tokens = torch.randint(0, 256, (2, 6))
    before = [buffer.clone() for buffer in model.buffers()]
    assert len(before) == 2
    model.activation_checkpointing = True
    model.loss(tokens)[0].backward()
    with torch.no_grad():
        model.eval().loss(tokens)
    for one, other in zip(before, model.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    model.begin_step()
    for one, other in zip(before, model.buffers(), strict=True):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("name", NORMED)
def test_a_new_layer_is_normalised_before_any_step(name) -> None:
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(32)
    factors = layer.recurrent_factors() if name == "E4" else (layer.recurrent_matrix(),)
    top = torch.linalg.matrix_norm(torch.linalg.multi_dot([*factors, torch.eye(32)]), 2).item()
    radius = layer.cell.options["spectral_radius"].default
    # The estimate approaches from below, so the true value is somewhat above the radius.
    assert radius * 0.999 < top < radius * 1.3


@pytest.mark.parametrize("name", NORMED)
def test_the_vectors_of_the_iteration_are_saved_and_loaded(name) -> None:
    one, two = build((name, {})), getattr(elman.layers, name)(DIM)
    assert {"norm.u", "norm.v"} <= set(one.state_dict())
    two.load_state_dict(one.state_dict())
    x = torch.randn(1, 3, DIM)
    torch.testing.assert_close(one(x)[0], two(x)[0], rtol=0, atol=0)


def test_the_fixed_orthogonal_matrix_is_a_buffer_in_the_checkpoint() -> None:
    layer = elman.layers.E0(DIM, recurrent_norm="scaled_orthogonal")
    assert "recurrent" in layer.state_dict()
    assert "recurrent" not in dict(layer.named_parameters())


class Shapes(TorchDispatchMode):
    """Records the shapes of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor):
                self.seen.add(tuple(one.shape))
        return result


def test_the_product_of_e4_is_never_formed() -> None:
    layer = elman.layers.E4(33, rank=3)
    with Shapes() as shapes:
        layer.begin_step()
        left, right = layer.recurrent_factors()
        (left.square().sum() + right.square().sum()).backward()
    assert (33, 3) in shapes.seen
    assert (33, 33) not in shapes.seen


@pytest.mark.parametrize("name", ["E0", "E4", "E33", "E36", "E37", "E39", "E56", "CudaGRU"])
def test_an_expansion_that_leaves_no_channels_is_refused(name) -> None:
    with pytest.raises(UserError, match=r"leaves no channels .* use model.expansion=0.1429 or"):
        getattr(elman.layers, name)(DIM, expansion=0.01)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "E0",
            {"recurrent_norm": "scaled_orthogonal", "recurrent_gain": 1.0},
            "model.recurrent_gain=1.0: not read with model.recurrent_norm=scaled_orthogonal; "
            "use model.recurrent_norm=spectral or drop model.recurrent_gain",
        ),
        (
            "E0",
            {"recurrent_norm": "scaled_orthogonal", "spectral_radius": 0.5},
            "model.spectral_radius=0.5: read only with model.recurrent_norm=spectral; "
            "add model.recurrent_norm=spectral or drop model.spectral_radius",
        ),
        (
            "E4",
            {"recurrent_norm": "none", "spectral_radius": 0.5},
            "model.spectral_radius=0.5: read only with model.recurrent_norm=spectral; "
            "add model.recurrent_norm=spectral or drop model.spectral_radius",
        ),
        ("E4", {"rank": -1}, "model.rank=-1: must be at least 0"),
        (
            "E4",
            {"use_conv": True},
            "model.use_conv: cell e4 does not read it; its options: "
            "expansion, rank, recurrent_norm, spectral_radius, dropout",
        ),
        (
            "E56",
            {"recurrent_norm": "spectral"},
            "model.recurrent_norm: cell e56 does not read it; its options: "
            "expansion, mamba2_init, dropout",
        ),
        (
            "E56",
            {"mamba2_init": "s4d"},
            "model.mamba2_init=s4d: expected one of none, normal",
        ),
        (
            "E0",
            {"recurrent_norm": "orthogonal"},
            "model.recurrent_norm=orthogonal: expected one of spectral, none, scaled_orthogonal "
            "(did you mean scaled_orthogonal?)",
        ),
        (
            "CudaGRU",
            {"recurrent_gain": 1.0},
            "model.recurrent_gain: cell cudagru does not read it; its options: expansion, dropout",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_impossible_options_are_refused_in_one_line(name, given, message) -> None:
    with pytest.raises(UserError) as caught:
        getattr(elman.layers, name)(DIM, **given)
    assert str(caught.value) == message


def test_the_command_line_refuses_the_same() -> None:
    with pytest.raises(UserError, match=r"model\.recurrent_gain=1\.0: not read with"):
        compose_config(
            ["model=e0", "model.recurrent_norm=scaled_orthogonal", "model.recurrent_gain=1.0"]
        )
