"""The gated delta rule: chunks against the plain loop, the inverse in them, the op of the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.gated_delta import chunked, reference
from elman.ops.gated_delta.inverse import unit_lower_inverse
from elman.ops.gated_delta.op import gated_delta_rule

HEADS, KEYS, VALUES = 3, 4, 6


def inputs(
    steps: int,
    *,
    scale: float = 1.0,
    same_keys: bool = False,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Return q, k, v, log decays, strengths and the first state."""
    torch.manual_seed(3)
    wide: dict[str, Any] = {"dtype": torch.float64}
    k = torch.randn(2, 1 if same_keys else steps, HEADS, KEYS, **wide)
    drawn = [
        torch.randn(2, steps, HEADS, KEYS, **wide),
        functional.normalize(k, dim=-1).expand(-1, steps, -1, -1).contiguous(),
        torch.randn(2, steps, HEADS, VALUES, **wide),
        -scale * torch.rand(2, steps, HEADS, **wide),
        torch.rand(2, steps, HEADS, **wide),
        torch.randn(2, HEADS, VALUES, KEYS, **wide),
    ]
    return [one.to(dtype).requires_grad_() for one in drawn]


def results(run: Any, given: list[Tensor], *more: Any) -> list[Tensor]:
    """Return outputs, final state, and the gradients of all inputs under fixed weights."""
    outputs = run(*given, *more)
    torch.manual_seed(4)
    weights = [torch.randn(one.shape, dtype=torch.float64).to(one.dtype) for one in outputs]
    return [*outputs, *torch.autograd.grad(outputs, given, weights)]


def test_the_reference_is_the_equation() -> None:
    """S' = c S (I - w k k^T) + w v k^T, the paper's form, for one row and head."""
    q, k, v, log, strength, state = (one.detach() for one in inputs(3))
    y, final = reference.gated_delta_rule(q, k, v, log, strength, state)
    one = state[1, 2]
    for t in range(3):
        key, w = k[1, t, 2], strength[1, t, 2]
        erased = torch.eye(KEYS, dtype=torch.float64) - w * torch.outer(key, key)
        one = log[1, t, 2].exp() * one @ erased + w * torch.outer(v[1, t, 2], key)
        torch.testing.assert_close(y[1, t, 2], one @ q[1, t, 2])
    torch.testing.assert_close(final[1, 2], one)


@pytest.mark.parametrize(
    ("steps", "chunk"),
    [(1, 4), (4, 4), (5, 4), (12, 4), (13, 4), (9, 1), (7, 64), (40, 16), (37, 32)],
    ids="{}".format,
)
def test_chunks_equal_the_loop_forward_and_backward(steps, chunk) -> None:
    given = inputs(steps)
    for found, wanted in zip(
        results(chunked.gated_delta_rule, given, chunk),
        results(reference.gated_delta_rule, given),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("scale", "same_keys"),
    [(1e-3, False), (1.0, False), (100.0, False), (1e-3, True)],
    ids=["slow decay", "decay", "fast decay", "one key throughout"],
)
def test_fp32_chunks_are_as_good_as_fp32_allows(scale, same_keys) -> None:
    """One key throughout: the terms of a power series of the inverse would reach 1e18."""
    exact = results(reference.gated_delta_rule, inputs(150, scale=scale, same_keys=same_keys))
    found = results(
        chunked.gated_delta_rule,
        inputs(150, scale=scale, same_keys=same_keys, dtype=torch.float32),
    )
    for got, wanted in zip(found, exact, strict=True):
        assert (got - wanted).norm() <= 5e-5 * wanted.norm()


def test_gradcheck_at_a_rest() -> None:
    given = inputs(5)
    assert torch.autograd.gradcheck(
        lambda *args: chunked.gated_delta_rule(*args, 2), given, fast_mode=True
    )


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 33, 64])
@pytest.mark.parametrize("ones", [False, True], ids=["random", "ones"])
def test_the_inverse_of_many_triangles(length, ones) -> None:
    torch.manual_seed(0)
    lower = torch.ones(2, 3, length, length) if ones else torch.rand(2, 3, length, length)
    whole = lower.double().tril(-1) + torch.eye(length, dtype=torch.float64)
    found = unit_lower_inverse(lower)
    assert (found.double() @ whole - torch.eye(length)).abs().max() < 2e-5
    assert (found.triu(1) == 0).all()


def test_the_inverse_has_its_gradient_and_reads_the_lower_triangle_alone() -> None:
    torch.manual_seed(0)
    lower = torch.randn(2, 11, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit_lower_inverse, lower)
    (gradient,) = torch.autograd.grad(unit_lower_inverse(lower).sum(), lower)
    assert (gradient.triu() == 0).all()
    poisoned = lower.detach().masked_fill(torch.ones(11, 11).triu().bool(), torch.nan)
    assert unit_lower_inverse(poisoned).isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_op_normalizes_and_activates(scale) -> None:
    q, k, v, decay, write, state = (one.detach() for one in inputs(5))
    a_log, bias = torch.randn(2, HEADS, dtype=torch.float64)
    y, final = gated_delta_rule(
        3 * q,
        2 * k,
        v,
        decay,
        write,
        a_log_h=a_log,
        dt_bias_h=bias,
        write_scale=scale,
        state_bhvk=state,
        backend="reference",
    )
    wanted, last = reference.gated_delta_rule(
        3 * q / (9 * q.square().sum(-1, keepdim=True) + 1e-6).sqrt() / KEYS**0.5,
        2 * k / (4 * k.square().sum(-1, keepdim=True) + 1e-6).sqrt(),
        v,
        -a_log.exp() * functional.softplus(decay + bias),
        scale * write.sigmoid(),
        state,
    )
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(final, last)
