"""The gated dense recurrences against hand-derived gradients, and the faults of the original."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.dense.op import dense_recurrence

from .backward_gated import BLOCKS, PRODUCTS, Gradients, backward, forward

SIZES = {
    "plain": (3, 5, 4),
    "one-step": (2, 1, 3),
    "one-row": (1, 7, 5),
    "rows-over-steps": (6, 2, 3),
    "one-channel": (2, 3, 1),
}
steps = pytest.mark.parametrize("step", PRODUCTS)
ranks = pytest.mark.parametrize("rank", [None, 2, 7], ids=["dense", "rank-2", "rank-over-width"])
Drawn = tuple[Tensor, list[Tensor], list[Tensor], Tensor]


def draw(step: str, size: tuple[int, int, int], rank: int | None) -> Drawn:
    """Return random fp64 inputs, matrices (not symmetric), alpha and a state that is not zero."""
    b, t, i = size
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return (drawn / 2).requires_grad_()

    rows = PRODUCTS[step] * i
    recurrent = [random(rows, i)] if rank is None else [random(rows, rank), random(rank, i)]
    parameters = [random(1)] if step == "normalized_scalar" else []
    return random(b, t, BLOCKS[step] * i), recurrent, parameters, random(b, i)


def gated(
    step: str,
    inputs_btk: Tensor,
    recurrent: list[Tensor],
    parameters: list[Tensor],
    state_bi: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run a step on its inputs side by side, those that read the state first."""
    width = state_bi.shape[1]
    widths = [PRODUCTS[step] * width, *[width] * (BLOCKS[step] - PRODUCTS[step])]
    inputs = inputs_btk.split(widths, dim=-1)
    h, (final,) = dense_recurrence(
        step, inputs, recurrent, [state_bi], parameters=parameters, backend="reference"
    )
    return h, final


def leaves(drawn: Drawn) -> list[Tensor]:
    inputs, recurrent, parameters, state = drawn
    return [inputs, *recurrent, *parameters, state]


def detached(drawn: Drawn) -> Drawn:
    inputs, recurrent, parameters, state = drawn
    plain = ([one.detach() for one in part] for part in (recurrent, parameters))
    return (inputs.detach(), *plain, state.detach())


def flat(gradients: Gradients) -> list[Tensor]:
    return [gradients.inputs_btk, *gradients.recurrent, *gradients.parameters, gradients.state_bi]


def by_autograd(step: str, drawn: Drawn) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """Return states, gradients, and the random gradients of states and final state behind them."""
    h, final = gated(step, *drawn)
    torch.testing.assert_close(final, h[:, -1], rtol=0, atol=0)
    generator = torch.Generator().manual_seed(2)
    dh = torch.randn(h.shape, dtype=h.dtype, generator=generator)
    dfinal = torch.randn(final.shape, dtype=h.dtype, generator=generator)
    gradients = torch.autograd.grad([h, final], leaves(drawn), [dh, dfinal])
    return h.detach(), list(gradients), dh, dfinal


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@steps
@ranks
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_states_and_gradients_are_the_hand_derived_ones(step, rank, size) -> None:
    drawn = draw(step, size, rank)
    h, gradients, dh, dfinal = by_autograd(step, drawn)
    inputs, recurrent, parameters, state = detached(drawn)
    saved = forward(step, inputs, recurrent, parameters, state)
    assert_same([h], [torch.stack(saved.h_tbi[1:], dim=1)])
    assert_same(gradients, flat(backward(step, saved, recurrent, parameters, dh, dfinal)))


@steps
@pytest.mark.parametrize("rank", [None, 2], ids=["dense", "rank-2"])
def test_gradcheck(step, rank) -> None:
    drawn = draw(step, (2, 3, 3), rank)
    matrices = len(drawn[1])

    def run(inputs: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        *shared, state = rest
        recurrent, parameters = shared[:matrices], shared[matrices:]
        return gated(step, inputs, recurrent, parameters, state)

    assert torch.autograd.gradcheck(run, leaves(drawn))


@steps
@pytest.mark.parametrize("length", [1, 5, 11])
def test_segments_equal_the_plain_loop(step, length, monkeypatch) -> None:
    drawn = draw(step, (2, length, 4), 3)
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        h, gradients, _, _ = by_autograd(step, drawn)
        results.append([h, *gradients])
    assert_same(*results)


@steps
def test_autocast_changes_nothing(step) -> None:
    inputs, recurrent, parameters, state = detached(draw(step, SIZES["plain"], 2))
    arguments = (
        inputs.float(),
        [one.float() for one in recurrent],
        [one.float() for one in parameters],
        state.float(),
    )
    plain, _ = gated(step, *arguments)
    with torch.autocast("cpu", torch.bfloat16):
        h, final = gated(step, *arguments)
    assert final.dtype == torch.float32
    torch.testing.assert_close(h, plain, rtol=0, atol=0)


def transposed(matrices: list[Tensor], width: int) -> list[Tensor]:
    """Return every square block of rows transposed: the product with op T for op N."""
    return [torch.cat([block.T for block in one.split(width)]) for one in matrices]


@steps
def test_the_original_gradients_through_a_transposed_matrix_are_told_apart(step) -> None:
    """The first kernel of E60 multiplied by W_h^T; these draws show it in every gradient."""
    drawn = draw(step, SIZES["plain"], None)
    _, gradients, dh, dfinal = by_autograd(step, drawn)
    inputs, recurrent, parameters, state = detached(drawn)
    saved = forward(step, inputs, recurrent, parameters, state)
    wrong = backward(step, saved, transposed(recurrent, 4), parameters, dh, dfinal)
    for found, other in zip(gradients, flat(wrong), strict=True):
        assert (found - other).norm() > 0.02 * found.norm()


@steps
def test_a_weight_gradient_stored_transposed_is_told_apart(step) -> None:
    """Same norm, wrong entries: the second face of swapped operands."""
    _, gradients, _, _ = by_autograd(step, draw(step, SIZES["plain"], None))
    (wrong,) = transposed([gradients[1]], 4)
    torch.testing.assert_close(wrong.norm(), gradients[1].norm())
    assert (wrong - gradients[1]).norm() > 0.1 * gradients[1].norm()


def test_one_normalized_step_from_zero_hides_alpha() -> None:
    """At T = 1 from a zero state the norm removes the scale: a gradient test must not stop there.

    The output is then the normalized tanh whatever alpha is, and the gradient of alpha vanishes
    up to eps; both come back with a second step or with a state.
    """
    inputs, recurrent, (alpha,), state = draw("normalized_scalar", (2, 2, 8), None)
    zero = torch.zeros_like(state)

    def alpha_gradient(inputs: Tensor, state: Tensor) -> Tensor:
        h, _ = gated("normalized_scalar", inputs, recurrent, [alpha], state)
        (gradient,) = torch.autograd.grad(h.sin().sum(), alpha)
        return gradient.abs()

    def states(alpha: Tensor, state: Tensor) -> Tensor:
        return gated("normalized_scalar", inputs[:, :1], recurrent, [alpha], state)[0]

    torch.testing.assert_close(states(alpha, zero), states(3 * alpha, zero), rtol=1e-3, atol=1e-4)
    assert alpha_gradient(inputs[:, :1], zero) < 1e-3 * alpha_gradient(inputs, zero)
    assert alpha_gradient(inputs[:, :1], zero) < 1e-3 * alpha_gradient(inputs[:, :1], state)
    assert (states(alpha, state) - states(3 * alpha, state)).abs().max() > 0.05


@pytest.mark.parametrize("step", ["normalized", "normalized_scalar", "normalized_sum"])
def test_the_norm_holds_the_state_at_one_and_leaves_zeros_alone(step) -> None:
    inputs, recurrent, parameters, state = detached(draw(step, (2, 4, 8), None))
    h, _ = gated(step, 50 * inputs, recurrent, parameters, state)
    ones = torch.ones(2, 4, dtype=torch.float64)
    torch.testing.assert_close(h.square().mean(-1), ones, rtol=1e-4, atol=0)
    zeros, zero = torch.zeros_like(inputs), torch.zeros_like(state)
    h, _ = gated(step, zeros, recurrent, parameters, zero)
    assert not h.any()
