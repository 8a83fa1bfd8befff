"""What a layer is given as its state is its own, of this batch; nothing is computed of nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers
from elman.models.language_model import LanguageModel
from tests.models.cases import CASES, DIM, build, cases

BATCH = 3
State = dict[str, Tensor]


def backends(layer: Any) -> list[str]:
    """Return the backends that run a layer on this machine."""
    return [name for name in layer.runnable.backends if name in ("reference", "cpu")]


def given(layer: Any, batch: int = BATCH) -> tuple[Tensor, State]:
    """Return an input and a state that fits it."""
    dtype = next(layer.parameters()).dtype
    x = torch.randn(batch, 2, DIM, dtype=dtype)
    return x, {name: part.detach() for name, part in layer(x)[1].items()}


def refused(layer: Any, x: Tensor, state: Any, *said: str) -> None:
    """Assert that every backend refuses a state in the same words."""
    for backend in backends(layer):
        layer.backend = backend
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            layer(x, state)
        message = str(caught.value)
        assert "\n" not in message
        assert type(layer).__name__ in message
        for words in said:
            assert words in message, message
    layer.backend = "auto"


@cases
def test_a_state_of_another_batch_is_refused(case) -> None:
    layer = build(case)
    x, state = given(layer)
    for name, part in state.items():
        wrong = state | {name: part[:1]}
        refused(layer, x, wrong, f"state {name} of ", f"shape [1, {part.shape[1]}", "(batch of the")
        # The kernels copy what is not contiguous: an expanded batch is as small in memory.
        refused(layer, x[:1], {**state, name: part[:1], next(iter(state)): part})


@cases
def test_other_parts_are_refused(case) -> None:
    layer = build(case)
    x, state = given(layer)
    name = next(iter(state))
    rest = {key: part for key, part in state.items() if key != name} | {"other": state[name]}
    refused(layer, x, rest, "parts ", "other, expected ", name)
    refused(layer, x, state | {"other": state[name]}, "parts ", "other, expected ", name)
    if len(state) > 1:
        refused(layer, x, {name: state[name]}, f"parts {name}, expected ", *state)
    refused(layer, x, [state], "list, expected a dict of ")
    refused(layer, x, state | {name: None}, f"state {name} of ", "NoneType, expected a tensor [3, ")


@cases
def test_another_dtype_is_refused(case) -> None:
    layer = build(case)
    x, state = given(layer)
    for name, part in state.items():
        for dtype in (torch.float64, torch.int64):
            wrong = state | {name: part.to(dtype)}
            refused(layer, x, wrong, f"state {name} of ", f"dtype {dtype}"[12:], "float32")
    # What the projections made may have been made under autocast.
    narrow = {n: p.bfloat16() if n in ("conv", "past") else p for n, p in state.items()}
    assert layer(x, narrow)[0].isfinite().all()


@cases
def test_another_shape_is_refused(case) -> None:
    layer = build(case)
    x, state = given(layer)
    for name, part in state.items():
        shape = list(part.shape)
        for wrong in (part[..., :-1], part.flatten(1)[:, None, None], part[0]):
            if wrong.shape != part.shape:
                said = f"state {name} of "
                refused(layer, x, state | {name: wrong}, said, f"shape {list(wrong.shape)}, expec")
        turned = part.transpose(-1, -2)
        if turned.shape[0] == BATCH and list(turned.shape) != shape and name != "past":
            refused(layer, x, state | {name: turned}, f"expected {shape}")


@cases
def test_a_state_on_another_device_is_refused(case) -> None:
    layer = build(case)
    x, state = given(layer)
    for name, part in state.items():
        wrong = state | {name: part.to("meta")}
        refused(layer, x, wrong, f"state {name} of ", "on meta, expected on cpu (device of the")


@cases
def test_a_state_of_another_layer_is_refused(case) -> None:
    layer, others = build(case), [("E61", {"expansion": 3.0}), ("E88", {"n_heads": 7})]
    x, _ = given(layer)
    for other in others:
        refused(layer, x, given(build(other))[1])


NOTHING = ((0, 3), (3, 0), (0, 0))
"""Batch and steps."""


@cases
@pytest.mark.parametrize("how", ["first", "carried", "autocast"])
def test_nothing_is_computed_of_nothing(case, how) -> None:
    layer = build(case)
    _, full = given(layer)
    for batch, steps in NOTHING:
        state = {name: torch.randn_like(part[:batch]) for name, part in full.items()}
        x = torch.randn(batch, steps, DIM, requires_grad=True)
        for backend in backends(layer):
            layer.backend = backend
            check_nothing(layer, x, state, how)


def check_nothing(layer: Any, x: Tensor, state: State, how: str) -> None:
    """Check what no rows or no steps give, and that no gradient comes of them."""
    carried, autocast = how != "first", how == "autocast"
    layer.zero_grad()
    x.grad = None
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, last = layer(x, state if carried else None)
    assert y.shape == x.shape
    assert {n: p.shape for n, p in last.items() if n != "past"} == {
        n: p.shape for n, p in state.items() if n != "past"
    }
    if carried and not autocast and not x.shape[1]:
        assert all(torch.equal(last[name], part) for name, part in state.items())
    (y.float().sum() + sum(part.float().sum() for part in last.values())).backward()
    assert x.grad.shape == x.shape
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert not parameter.grad.any(), name


@cases
def test_without_steps_the_last_states_gradient_is_the_first_ones(case) -> None:
    layer = build(case, dtype=torch.float64)
    _, state = given(layer)
    first = {name: part.requires_grad_() for name, part in state.items()}
    for backend in backends(layer):
        layer.backend = backend
        _, last = layer(torch.randn(BATCH, 0, DIM, dtype=torch.float64), first)
        wanted = [torch.randn_like(part) for part in first.values()]
        found = torch.autograd.grad(list(last.values()), list(first.values()), wanted)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@cases
def test_no_steps_between_two_pieces_change_nothing(case) -> None:
    layer = build(case)
    x = torch.randn(BATCH, 5, DIM)
    _, state = layer(x[:, :2])
    wanted = layer(x[:, 2:], state)
    _, state = layer(x[:, 2:2], state)
    torch.testing.assert_close(layer(x[:, 2:], state), wanted, rtol=0, atol=0)


MODELS = {
    "rms": [("E88", {"n_heads": 2, "n_state": 4, "use_conv": True}), ("E61", {})],
    "legacy_ln": [("E1", {}), ("GRU", {}), ("Mamba2", {"head_dim": 4, "n_state": 3})],
}


def model_of(wrapper: Any) -> LanguageModel:
    torch.manual_seed(0)
    layers = [build(case) for case in MODELS[wrapper]]
    return LanguageModel(DIM, layers, wrapper)


@pytest.mark.parametrize(("batch", "steps"), NOTHING, ids="{}".format)
@pytest.mark.parametrize("wrapper", MODELS)
def test_a_model_predicts_nothing_of_nothing(wrapper, batch, steps) -> None:
    model = model_of(wrapper)
    _, states = model(torch.zeros(batch, 4, dtype=torch.long))
    logits, last = model(torch.zeros(batch, steps, dtype=torch.long), states)
    assert logits.shape == (batch, steps, 256)
    logits.sum().backward()
    assert all(not p.grad.any() for p in model.parameters())
    for before, after in zip(states, last, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((0, 5), "tokens of the loss: shape .0, 5., expected 1 row or more"),
        ((2, 1), "tokens: expected .* 2 steps at least, not .2, 1."),
        ((2, 0), "tokens: expected .* 2 steps at least, not .2, 0."),
    ],
)
def test_a_loss_of_no_token_is_refused(shape, said) -> None:
    with pytest.raises(ValueError, match=said):
        model_of("rms").loss(torch.zeros(shape, dtype=torch.long))


def test_states_of_another_model_are_refused() -> None:
    model, other = model_of("rms"), model_of("legacy_ln")
    tokens = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="states of the model: 3, expected one of each layer, 2"):
        model(tokens, other(tokens)[1])
    with pytest.raises(ValueError, match="state of E88: parts h, expected S, conv"):
        model(tokens, other(tokens)[1][:2])
    with pytest.raises(ValueError, match=r"state S of E88: shape \[2, .*expected \[1, "):
        model(tokens[:1], model(tokens)[1])


@pytest.mark.parametrize("name", ["e88-conv", "e61", "e1", "gru"])
def test_a_check_breaks_no_graph_and_is_part_of_none(name) -> None:
    layer = build(CASES[name])
    x, state = given(layer)
    counts = []
    for wrong in (False, True):
        torch._dynamo.reset()
        if wrong:
            layer.begin = lambda x, state: state or {}  # as without the check
        found = torch._dynamo.explain(layer)(x, state)
        nodes = [len(graph.graph.nodes) for graph in found.graphs]
        counts.append((found.graph_break_count, nodes))
    assert counts[0] == counts[1]


def test_a_compiled_layer_refuses_a_state_of_another_batch() -> None:
    layer = elman.layers.E88(DIM, n_heads=2, n_state=4)
    x, state = given(layer)
    compiled = torch.compile(layer, backend="eager")
    torch.testing.assert_close(compiled(x, state), layer(x, state))
    with pytest.raises(Exception, match=r"state S of E88: shape \[1, 2, 4, 4\], expected \[3, "):
        compiled(x, {"S": state["S"][:1]})
