"""The channel recurrences against hand-derived gradients, and the two forms against each other."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.ops.channel import log_space, steps
from elman.ops.channel.op import channel
from elman.ops.common import scan


def _neighbor(name: str) -> Any:
    """Import a module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


by_hand = _neighbor("backward_channel")

SIZES = {
    "plain": (3, 5, 4),
    "one-step": (2, 1, 3),
    "one-row": (1, 7, 5),
    "rows-over-steps": (6, 2, 3),
    "one-channel": (2, 3, 1),
}
PARALLEL = tuple(log_space.STEPS)
ALL = (*steps.STEPS, *PARALLEL)
STEPS = pytest.mark.parametrize("step", ALL)
VECTOR = [step for step in ALL if not step.startswith("e74")]
SCALARS = ("alpha",)


def names(step: str) -> tuple[list[str], list[str]]:
    """Return the names of a step's sequences and of its parameters, from its signature."""
    function = log_space.STEPS[step] if step in PARALLEL else steps.STEPS[step]
    found = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    inputs, parameters = ([p.name for p in found if p.kind is kind] for kind in kinds)
    return inputs, [
        name for name in parameters if name not in ("phi", "retain", "inverse", "use_tanh")
    ]


def draw(
    step: str, size: tuple[int, int, int], dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Return random inputs, parameters and a first state."""
    b, t, c = size
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return drawn.to(dtype).requires_grad_()

    inputs, parameters = names(step)
    shapes = dict.fromkeys(SCALARS, (1,))
    return (
        {name: normal(b, t, c) for name in inputs},
        {name: normal(*shapes.get(name, (c,))) for name in parameters},
        normal(b, c),
    )


def leaves(drawn: tuple[dict[str, Tensor], dict[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """Return every argument by name."""
    inputs, parameters, state = drawn
    return inputs | parameters | {"state": state}


def run(step: str, drawn: Any) -> tuple[Tensor, Tensor]:
    """Run a step on the reference."""
    return channel(step, *drawn, backend="reference")


def test_every_step_has_a_hand_derived_gradient() -> None:
    assert set(by_hand.BACKWARD) == set(steps.STEPS)
    assert {name.removesuffix("_parallel") for name in PARALLEL} <= set(steps.STEPS)


@STEPS
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_gradients_are_the_hand_derived_ones(step, size) -> None:
    """Of all inputs, every parameter and the first state, through all states and the last one."""
    drawn = draw(step, size)
    h, final = run(step, drawn)
    torch.testing.assert_close(final, h[:, -1], rtol=0, atol=0)
    dh, dfinal = torch.randn_like(h), torch.randn_like(final)
    torch.autograd.backward([h, final], [dh, dfinal])
    inputs, parameters, state = drawn
    states = torch.cat([state.unsqueeze(1), h], dim=1).detach()
    with torch.no_grad():
        dinputs, dparameters, dstate = by_hand.backward(
            step, inputs, parameters, states, dh, dfinal
        )
    for name, wanted in (dinputs | dparameters | {"state": dstate}).items():
        torch.testing.assert_close(
            leaves(drawn)[name].grad,
            wanted,
            rtol=1e-8,
            atol=1e-9,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@STEPS
def test_gradcheck(step) -> None:
    drawn = draw(step, (2, 3, 3))
    order = list(leaves(drawn))
    inputs, parameters, _ = drawn

    def of_leaves(*given: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(order, given, strict=True))
        parts = {n: named[n] for n in inputs}, {n: named[n] for n in parameters}, named["state"]
        return run(step, parts)

    assert torch.autograd.gradcheck(of_leaves, tuple(leaves(drawn).values()), atol=1e-6)


@STEPS
def test_every_state_is_returned(step) -> None:
    """Kernels of the original returned the first and last states alone, the rest uninitialized."""
    drawn = draw(step, (2, 7, 3))
    inputs, parameters, state = drawn
    h, _ = run(step, drawn)
    for t in range(7):
        start = state if t == 0 else h[:, t - 1]
        one, final = run(step, ({n: x[:, t : t + 1] for n, x in inputs.items()}, parameters, start))
        torch.testing.assert_close(final, h[:, t], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one[:, 0], h[:, t], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("step", ["e34", "e59", "e65", "e74_retain_rmsnorm", "mingru_parallel"])
@pytest.mark.parametrize("steps", [1, 5, 9, 11])
def test_segments_equal_the_plain_loop(step, steps, monkeypatch) -> None:
    drawn = draw(step, (2, steps, 4))
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        h, final = run(step, drawn)
        loss = h.cos().sum() + final.sin().sum()
        results.append([h, *torch.autograd.grad(loss, list(leaves(drawn).values()))])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-10, atol=1e-12)


@STEPS
def test_autocast_changes_nothing_and_arguments_stay_as_they_are(step) -> None:
    drawn = draw(step, SIZES["plain"], torch.float32)
    before = {name: tensor.detach().clone() for name, tensor in leaves(drawn).items()}
    plain, _ = run(step, drawn)
    with torch.autocast("cpu", torch.bfloat16):
        h, final = run(step, drawn)
    assert h.dtype == final.dtype == torch.float32
    torch.testing.assert_close(h, plain, rtol=0, atol=0)
    for name, tensor in leaves(drawn).items():
        torch.testing.assert_close(tensor.detach(), before[name], rtol=0, atol=0)


@pytest.mark.parametrize("step", VECTOR)
def test_half_precision_inputs_are_computed_in_the_dtype_of_the_state(step) -> None:
    """The original rounded h to bf16 at every step."""
    inputs, parameters, state = draw(step, SIZES["one-row"], torch.float32)
    narrow = {name: tensor.to(torch.bfloat16) for name, tensor in inputs.items()}
    widened = {name: tensor.float() for name, tensor in narrow.items()}
    h, _ = run(step, (narrow, parameters, state))
    assert h.dtype == torch.float32
    torch.testing.assert_close(h, run(step, (widened, parameters, state))[0], rtol=0, atol=0)


@pytest.mark.parametrize("step", ["e34", "e61", "e62", "e64", "e65", "e67", "e68"])
def test_sums_over_many_steps_keep_fp32_accuracy(step) -> None:
    """The original overran the workspace of its bias and coefficient sums, or summed in bf16."""
    exact, single = (draw(step, (8, 256, 3), dtype) for dtype in (torch.float64, torch.float32))
    gradients = []
    for drawn in (exact, single):
        parameters = list(drawn[1].values())
        gradients.append(torch.autograd.grad(run(step, drawn)[0].square().sum(), parameters))
    for wanted, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=3e-5, atol=1e-4)


@pytest.mark.parametrize("step", PARALLEL)
@pytest.mark.parametrize("steps", [1, 2, 63, 64, 65, 130])
@pytest.mark.parametrize("start", [-2.0, 0.0, 1.5], ids=["negative", "zero", "positive"])
def test_parallel_and_sequential_forms_agree(step, steps, start) -> None:
    """With their gradients, whatever the sign of the carried state.

    The original carried log g(h) in place of h, added 1e-6 to a denominator in one form only, and
    had a gradient that was not finite for a state of 0.
    """
    inputs, parameters, state = draw(step, (2, steps, 3))
    state = torch.full_like(state, start).requires_grad_()
    results = []
    for form in (step, step.removesuffix("_parallel")):
        h, final = run(form, (inputs, parameters, state))
        loss = h.cos().sum() + final.sin().sum()
        gradients = torch.autograd.grad(loss, [*inputs.values(), state])
        assert all(gradient.isfinite().all() for gradient in gradients)
        results.append([h, final, *gradients])
    for parallel, sequential in zip(*results, strict=True):
        torch.testing.assert_close(parallel, sequential, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("step", PARALLEL)
def test_the_parallel_form_in_fp32_keeps_the_gradients_of_its_gates(step) -> None:
    """One cumulative sum over 512 steps loses three digits and more of them."""
    results = []
    for form, dtype in ((step.removesuffix("_parallel"), torch.float64), (step, torch.float32)):
        drawn = draw(step, (4, 512, 8), dtype)
        h, _ = run(form, drawn)
        results.append([h, *torch.autograd.grad(h.square().sum(), list(drawn[0].values()))])
    for exact, found in zip(*results, strict=True):
        assert (found.double() - exact).norm() < 1e-4 * exact.norm()


@pytest.mark.parametrize("step", [*PARALLEL, "mingru", "minlstm"])
@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_saturated_gates_give_finite_numbers(step, scale) -> None:
    inputs, parameters, state = draw(step, (2, 80, 3), torch.float32)
    inputs = {n: (scale * x.detach()).requires_grad_() for n, x in inputs.items()}
    h, final = run(step, (inputs, parameters, state))
    exact, _ = run(
        step.removesuffix("_parallel"),
        ({n: x.double() for n, x in inputs.items()}, parameters, state.double()),
    )
    torch.testing.assert_close(h.double(), exact, rtol=2e-3, atol=1e-4 * scale)
    gradients = torch.autograd.grad(h.sum() + final.sum(), [*inputs.values(), state])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("word", ["rmsnorm", "frobnorm"])
def test_a_zero_vector_passes_the_norms(word) -> None:
    zeros = {name: torch.zeros(1, 2, 3, requires_grad=True) for name in ("key", "value")}
    state = torch.zeros(1, 3, requires_grad=True)
    h, _ = channel(f"e74_delta_{word}", zeros, {}, state, backend="reference")
    assert (h == 0).all()
    gradients = torch.autograd.grad(h.sum(), [*zeros.values(), state])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("word", ["rmsnorm", "frobnorm"])
def test_the_norms_set_the_length_of_the_state(word) -> None:
    h, _ = run(f"e74_delta_{word}", draw(f"e74_delta_{word}", (2, 4, 9)))
    length = 3.0 if word == "rmsnorm" else 1.0
    torch.testing.assert_close(
        h.norm(dim=-1), torch.full((2, 4), length).double(), rtol=1e-4, atol=0
    )
