"""Dense cells: the constraint of the recurrent matrix, and options that do not combine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import elman.layers
from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.language_model import LanguageModel

DIM = 7
NORMED = ("E0", "E1", "E4", "E33", "E36", "E37", "E39", "E42")


def build(name: str) -> Any:
    """Return a layer whose every parameter is random: some start at zero."""
    torch.manual_seed(2)
    layer = getattr(elman.layers, name)(DIM)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    layer.begin_step()
    return layer


@pytest.mark.parametrize("name", NORMED)
def test_only_begin_step_advances_the_power_iteration(name) -> None:
    model = LanguageModel(DIM, [build(name)])
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
def test_a_new_layer_is_normalized_before_any_step(name) -> None:
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(32)
    factors = layer.recurrent_factors() if name == "E4" else (layer.recurrent_matrix(),)
    top = torch.linalg.matrix_norm(torch.linalg.multi_dot([*factors, torch.eye(32)]), 2).item()
    radius = layer.cell.options["spectral_radius"].default
    # The estimate approaches from below, so the true value is somewhat above the radius.
    assert radius * 0.999 < top < radius * 1.3


@pytest.mark.parametrize("name", NORMED)
def test_the_vectors_of_the_iteration_are_saved_and_loaded(name) -> None:
    one, two = build(name), getattr(elman.layers, name)(DIM)
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
