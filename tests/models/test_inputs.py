"""What a model and its layers say to a wrong input, and copies of what they carry.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.layers import E1, E61, E88
from elman.models.language_model import LanguageModel
from elman.models.state import CarriedState
from tests.models.cases import CASES, DIM, build

ONE_EACH = {options[0]: name for name, options in reversed(CASES.items())}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(8, [E1(8), E61(8)]).eval()


# --------------------------------------------------------------------------------- the layers


WRONG_X: dict[str, tuple[Any, str]] = {
    "no-batch": (torch.zeros(3, DIM), f"not [3, {DIM}]; one sequence is x.unsqueeze(0)"),
    "a-vector": (torch.zeros(DIM), f"not [{DIM}]"),
    "four-axes": (torch.zeros(1, 2, 3, DIM), f"not [1, 2, 3, {DIM}]"),
    "another-width": (torch.zeros(1, 2, DIM + 1), f"({DIM + 1}) makes a layer of that width"),
    "ids": (torch.zeros(1, 2, DIM).long(), "not one of torch.int64; pass x.float()"),
    "a-list": ([[1.0]], "not list"),
}


@pytest.mark.parametrize("wrong", WRONG_X)
@pytest.mark.parametrize("layer", ONE_EACH)
def test_every_layer_says_what_it_wants(layer: str, wrong: str) -> None:
    built = build(CASES[ONE_EACH[layer]])
    given, message = WRONG_X[wrong]
    with pytest.raises(ValueError, match=r"expected a floating tensor \[batch, time") as caught:
        built(given)
    said = str(caught.value)
    assert said.startswith(f"{layer}: x: expected a floating tensor [batch, time, {DIM}]")
    assert message in said
    assert "\n" not in said


def test_every_layer_of_the_registry_is_among_them() -> None:
    assert set(ONE_EACH) == set(elman.layers.__all__)


# ---------------------------------------------------------------------------------- the model


WRONG_IDS: dict[str, tuple[Any, str]] = {
    "floats": (
        torch.tensor([[1.7, 2.2]]),
        "in torch.long (or torch.uint8), not torch.float32; pass tokens.long()",
    ),
    "flags": (torch.tensor([[True, False]]), "not torch.bool; pass tokens.long()"),
    "too-large": (torch.tensor([[1, 256]]), "not 256; a byte's id is its value"),
    "negative": (torch.tensor([[1, -100]]), "not -100; a byte's id is its value"),
    "no-batch": (torch.tensor([1, 2]), "not [2]; one sequence is tokens.unsqueeze(0)"),
    "a-list": ([[1, 2]], "not list; pass a tensor of torch.long"),
}


@pytest.mark.parametrize("call", ["forward", "loss"])
@pytest.mark.parametrize("wrong", WRONG_IDS)
def test_a_model_says_what_ids_it_wants(model: LanguageModel, wrong: str, call: str) -> None:
    given, message = WRONG_IDS[wrong]
    with pytest.raises(ValueError, match=r"^tokens: expected whole numbers") as caught:
        getattr(model, call)(given)
    said = str(caught.value)
    assert said.startswith("tokens: expected whole numbers [batch, time] of 0 to 255")
    assert message in said


def test_a_loss_needs_a_token_to_predict(model: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r", 2 steps at least, not \[1, 1\]$"):
        model.loss(torch.tensor([[1]]))
    with pytest.raises(ValueError, match="not 256"):
        model.loss(torch.tensor([[1, 256]]))  # the last token is predicted, and never read


@pytest.mark.parametrize(("steps", "given"), [(3, 4), (4, 3), (0, 0)])
def test_a_model_wants_a_target_for_each_token(
    model: LanguageModel, steps: int, given: int
) -> None:
    tokens_bt = torch.zeros(2, steps, dtype=torch.uint8)
    with pytest.raises(ValueError, match=rf"targets: shape \[2, {given}\] for tokens") as caught:
        model(tokens_bt, targets_bt=torch.zeros(2, given, dtype=torch.uint8))
    assert "\n" not in str(caught.value)


def test_targets_of_any_whole_dtype_give_the_loss(model: LanguageModel) -> None:
    tokens_bt1 = torch.tensor([[7, 200, 3, 3]], dtype=torch.uint8)
    loss, _ = model(tokens_bt1[:, :-1], targets_bt=tokens_bt1[:, 1:])
    each, _ = model(tokens_bt1[:, :-1], targets_bt=tokens_bt1[:, 1:], each=True)
    torch.testing.assert_close(loss, model.loss(tokens_bt1)[0])
    torch.testing.assert_close(each.mean(), loss.detach())
    assert (each.shape, each.requires_grad) == ((1, 3), False)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_every_whole_dtype_is_taken(model: LanguageModel, dtype: torch.dtype) -> None:
    ids = torch.tensor([[0, 1, 127]])
    assert torch.equal(model(ids.to(dtype))[0], model(ids)[0])


def test_where_nobody_can_look_at_the_values_nobody_does() -> None:
    """On the meta device, and in the ids of a small vocabulary in bytes."""
    made = LanguageModel(8, [E1(8, device="meta")], device="meta")
    assert made(torch.zeros(1, 2, dtype=torch.long, device="meta"))[0].shape == (1, 2, 256)
    small = LanguageModel(8, [E1(8)], vocab_size=10)
    with pytest.raises(ValueError, match="of 0 to 9, not 11"):
        small(torch.tensor([[11]], dtype=torch.uint8))


def test_a_trainer_reads_no_values_of_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a read waits for everything before it."""

    def refuse(*_: Any) -> None:
        raise AssertionError("values were read")

    monkeypatch.setattr(Tensor, "aminmax", refuse)
    model, tokens_bt = LanguageModel(8, [E1(8)]), torch.tensor([[1, 2, 3]], dtype=torch.int32)
    with pytest.raises(AssertionError, match="values were read"):
        model.loss(tokens_bt)
    model.checks_ids = False
    assert model.loss(tokens_bt)[0].isfinite()


# ---------------------------------------------------------------------------------- the state


def carried(layer: Any) -> tuple[Tensor, Any]:
    torch.manual_seed(1)
    x_btd = torch.randn(2, 5, layer.dim)
    _, state = layer(x_btd, layer(x_btd)[1])
    return x_btd, state


def pickled(state: Any) -> Any:
    return pickle.loads(pickle.dumps(state))


def saved(state: Any) -> Any:
    """By PyTorch, which takes nothing but tensors and plain containers back."""
    place = io.BytesIO()
    torch.save([state], place)
    place.seek(0)
    return torch.load(place, weights_only=True)[0]


@pytest.mark.parametrize("again", [copy.deepcopy, pickled, saved])
@pytest.mark.parametrize("name", ["e1", "e61", "e88", "e23", "e70"])
def test_a_state_can_be_copied_and_kept(name: str, again: Any) -> None:
    layer = build(CASES[name])
    x_btd, state = carried(layer)
    assert any(part.grad_fn is not None for part in state.values())
    other = again(state)
    assert list(other) == list(state)
    for name, part in state.items():
        assert torch.equal(other[name], part)
        assert other[name].data_ptr() != part.data_ptr()
        assert other[name].is_leaf
    with torch.no_grad():
        assert torch.equal(layer(x_btd, other)[0], layer(x_btd, state)[0])


def test_the_states_of_a_model_can_be_copied(model: LanguageModel) -> None:
    ids = torch.tensor([[1, 2, 3]])
    _, states = model(ids)
    others = copy.deepcopy(states)
    assert torch.equal(model(ids, others)[0], model(ids, states)[0])


def test_gradients_still_reach_the_past_through_the_state_itself() -> None:
    layer = E88(DIM, n_heads=2, n_state=3)
    x_btd = torch.randn(1, 3, DIM, requires_grad=True)
    _, state = layer(x_btd)
    layer(x_btd.detach(), state)[0].sum().backward()
    assert x_btd.grad is not None
    assert x_btd.grad.any()


def test_pytorch_finds_the_tensors_in_a_state() -> None:
    state = E1(8)(torch.randn(1, 2, 8))[1]
    leaves, spec = torch.utils._pytree.tree_flatten(state)
    assert [leaf.shape for leaf in leaves] == [part.shape for part in state.values()]
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert type(again) is CarriedState
    assert again == state


def test_a_layer_still_compiles_whole() -> None:
    torch._dynamo.reset()
    layer = E1(8)
    x_btd = torch.randn(2, 3, 8)
    compiled = torch.compile(layer, backend="eager")
    y_btd, state = compiled(x_btd)
    torch.testing.assert_close(y_btd, layer(x_btd)[0])
    torch.testing.assert_close(compiled(x_btd, state)[0], layer(x_btd, state)[0])
    with pytest.raises(ValueError, match="x: expected a floating tensor"):
        layer(x_btd[0])
