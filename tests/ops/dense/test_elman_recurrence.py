"""The dense recurrence against the specification's equations and hand-derived gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.dense.op import elman

SIZES = {
    "plain": (3, 5, 4),
    "one-step": (2, 1, 3),
    "one-row": (1, 7, 5),
    "rows-over-steps": (6, 2, 3),
}
LINEAR = pytest.mark.parametrize("linear", [False, True], ids=["tanh", "linear"])


def draw(size: tuple[int, int, int]) -> list[Tensor]:
    """Return random fp64 input, recurrent matrix (not symmetric) and first state."""
    b, t, i = size
    generator = torch.Generator().manual_seed(1)
    shapes = ((b, t, i), (i, i), (b, i))
    drawn = [torch.randn(*s, dtype=torch.float64, generator=generator) / 2 for s in shapes]
    return [tensor.requires_grad_() for tensor in drawn]


def by_hand(
    drawn: list[Tensor], linear: bool, dh: Tensor, dfinal: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return states and gradients by vector-state specification 2.7."""
    inputs, weight, state = (tensor.detach() for tensor in drawn)
    states = [state]
    for s in range(inputs.shape[1]):
        pre = inputs[:, s] + states[-1] @ weight.T
        states.append(pre if linear else pre.tanh())
    r, dinput, dweight = dfinal, torch.zeros_like(inputs), torch.zeros_like(weight)
    for s in reversed(range(inputs.shape[1])):
        e = dh[:, s] + r
        delta = e if linear else e * (1 - states[s + 1] ** 2)
        r = delta @ weight
        dinput[:, s] = delta
        dweight += delta.T @ states[s]
    return torch.stack(states[1:], dim=1), dinput, dweight, r


@LINEAR
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_states_and_gradients_are_the_hand_derived_ones(size, linear) -> None:
    drawn = draw(size)
    h, final = elman(*drawn, linear=linear, backend="reference")
    dh, dfinal = torch.randn_like(h), torch.randn_like(final)
    torch.autograd.backward([h, final], [dh, dfinal])
    wanted_h, *wanted = by_hand(drawn, linear, dh, dfinal)
    torch.testing.assert_close(h.detach(), wanted_h, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(final, h[:, -1], rtol=0, atol=0)
    for tensor, gradient in zip(drawn, wanted, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, rtol=1e-10, atol=1e-10)


@LINEAR
def test_gradcheck(linear) -> None:
    def run(*given: Tensor) -> tuple[Tensor, Tensor]:
        return elman(*given, linear=linear, backend="reference")

    assert torch.autograd.gradcheck(run, draw((2, 3, 3)))


@LINEAR
@pytest.mark.parametrize("steps", [1, 5, 9, 11])
def test_segments_equal_the_plain_loop(steps, linear, monkeypatch) -> None:
    drawn = draw((2, steps, 4))
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        h, final = elman(*drawn, linear=linear, backend="reference")
        results.append([h, *torch.autograd.grad(h.cos().sum() + final.sin().sum(), drawn)])
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-12, atol=1e-12)


def test_autocast_changes_nothing() -> None:
    drawn = [tensor.detach().float() for tensor in draw(SIZES["plain"])]
    plain, _ = elman(*drawn, linear=False, backend="reference")
    with torch.autocast("cpu", torch.bfloat16):
        h, final = elman(*drawn, linear=False, backend="reference")
    assert final.dtype == torch.float32
    torch.testing.assert_close(h, plain, rtol=0, atol=0)
