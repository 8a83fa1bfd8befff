"""The delta rule with channel decays: its three rules, and chunks against the plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.channel_delta import chunked, reference
from elman.ops.channel_delta.op import channel_delta
from elman.ops.channel_delta.rules import Gdn2, Kda, Rule, Rwkv7, Steps

HEADS, KEYS, VALUES = 3, 4, 6


def inputs(steps: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return the sequences of the common form, and the first state."""
    torch.manual_seed(3)
    wide: dict[str, Any] = {"dtype": torch.float64}
    keys, values = ((2, steps, HEADS, width) for width in (KEYS, VALUES))
    b = functional.normalize(torch.randn(keys, **wide), dim=-1)
    drawn = [
        torch.randn(keys, **wide),
        torch.randn(keys, **wide),
        torch.randn(values, **wide),
        -b * torch.rand(keys, **wide),
        b,
        -scale * torch.rand(keys, **wide),
        torch.randn(2, HEADS, VALUES, KEYS, **wide),
    ]
    return [one.to(dtype).requires_grad_() for one in drawn]


def results(run: Any, given: list[Tensor], *more: Any) -> list[Tensor]:
    """Return outputs, final state, and the gradients of all inputs under fixed weights."""
    outputs = run(Steps(*given[:-1]), given[-1], *more)
    torch.manual_seed(4)
    weights = [torch.randn(one.shape, dtype=torch.float64).to(one.dtype) for one in outputs]
    return [*outputs, *torch.autograd.grad(outputs, given, weights)]


@pytest.mark.parametrize(("steps", "chunk"), [(1, 4), (4, 4), (13, 4), (5, 1), (37, 16)])
def test_chunks_equal_the_loop_forward_and_backward(steps, chunk) -> None:
    given = inputs(steps)
    for found, wanted in zip(
        results(chunked.channel_delta, given, chunk),
        results(reference.channel_delta, given),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_fp32_chunks_are_as_good_as_fp32_allows(scale) -> None:
    exact = results(reference.channel_delta, inputs(70, scale=scale))
    found = results(chunked.channel_delta, inputs(70, scale=scale, dtype=torch.float32))
    for got, wanted in zip(found, exact, strict=True):
        assert (got - wanted).norm() <= 5e-5 * wanted.norm()


def test_gradcheck() -> None:
    given = inputs(3)
    assert torch.autograd.gradcheck(
        lambda *args: chunked.channel_delta(Steps(*args[:-1]), args[-1], 2), given, fast_mode=True
    )


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum() + 1e-6).sqrt()


def check(rule: Rule, step: Any) -> None:
    """Compare a rule with its equation, ``step(state, t) -> (state, query)``, for one head."""
    first = drawn(1, 1, VALUES, KEYS)
    y, last = channel_delta(rule, state_bhvk=first, backend="reference")
    state = first[0, 0]
    for t in range(y.shape[1]):
        state, query = step(state, t)
        torch.testing.assert_close(y[0, t, 0], state @ query)
    torch.testing.assert_close(last[0, 0], state)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_kda_is_its_equation(scale) -> None:
    """Kimi Linear, equation 1: S' = S C (I - w k k^T) + w v k^T."""
    torch.manual_seed(0)
    q, k, decay = drawn(3, 1, 3, 1, KEYS)
    v, write = drawn(1, 3, 1, VALUES), drawn(1, 3, 1)
    a_log, bias = drawn(1), drawn(KEYS)

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        key, w = unit(k[0, t, 0]), scale * write[0, t, 0].sigmoid()
        c = torch.exp(-a_log.exp() * functional.softplus(decay[0, t, 0] + bias))
        erased = torch.eye(KEYS, dtype=torch.float64) - w * torch.outer(key, key)
        state = state * c @ erased + w * torch.outer(v[0, t, 0], key)
        return state, unit(q[0, t, 0]) / KEYS**0.5

    check(Kda(q, k, v, decay, write, a_log, bias, scale), step)


def test_gdn2_is_its_equation() -> None:
    """fla.layers.GatedDeltaNet2: S' = S C (I - (e o k) k^T) + (w o v) k^T."""
    torch.manual_seed(0)
    q, k, e = drawn(3, 1, 3, 1, KEYS)
    v, w = drawn(2, 1, 3, 1, VALUES)
    log = -drawn(1, 3, 1, KEYS).abs()

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        key = unit(k[0, t, 0])
        erased = torch.eye(KEYS, dtype=torch.float64) - torch.outer(e[0, t, 0] * key, key)
        state = state * log[0, t, 0].exp() @ erased
        state = state + torch.outer(w[0, t, 0] * v[0, t, 0], key)
        return state, unit(q[0, t, 0]) / KEYS**0.5

    check(Gdn2(q, k, v, log, e, w), step)


def test_rwkv7_is_its_equation() -> None:
    """RWKV-7, equation 15: S' = S (diag(c) + a b^T) + v k^T."""
    torch.manual_seed(0)
    q, k, a, b, log = drawn(5, 1, 3, 1, KEYS)
    v, log = drawn(1, 3, 1, VALUES), -log.abs()

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        transition = log[0, t, 0].exp().diag() + torch.outer(a[0, t, 0], b[0, t, 0])
        return state @ transition + torch.outer(v[0, t, 0], k[0, t, 0]), q[0, t, 0]

    check(Rwkv7(q, k, v, a, b, log), step)
