"""Several delta rules in one step against the equation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.gated_delta.product import gated_delta_product

KEYS, VALUES, STEPS = 4, 5, 6


def inputs(rules: int) -> list[Tensor]:
    """Return q, k, v, log decays, strengths and the first state, of one row and head."""
    torch.manual_seed(3)
    shapes = [(STEPS, 1, KEYS), (STEPS * rules, 1, KEYS), (STEPS * rules, 1, VALUES)]
    shapes += [(STEPS, 1), (STEPS * rules, 1), (1, VALUES, KEYS)]
    return [torch.randn(1, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def loop(
    q: Tensor, k: Tensor, v: Tensor, log: Tensor, write: Tensor, state: Tensor, rules: int
) -> tuple[Tensor, Tensor]:
    """The decay once a step, then every rule, then the read."""
    q, k = (one / (one.square().sum(-1, keepdim=True) + 1e-6).sqrt() for one in (q, k))
    one, reads = state[0, 0], []
    for t in range(STEPS):
        one = one * log[0, t, 0].exp()
        for s in range(t * rules, (t + 1) * rules):
            error = v[0, s, 0] - one @ k[0, s, 0]
            one = one + write[0, s, 0] * torch.outer(error, k[0, s, 0])
        reads.append(one @ q[0, t, 0] / KEYS**0.5)
    return torch.stack(reads)[None, :, None], one[None, None]


@pytest.mark.parametrize("rules", [1, 2, 3])
@pytest.mark.parametrize("decays", [True, False])
def test_a_product_of_rules_is_the_loop_with_its_gradients(rules, decays) -> None:
    q, k, v, log, write, state = given = inputs(rules)
    kept = log if decays else torch.zeros_like(log)
    found = gated_delta_product(
        q,
        k,
        v,
        log if decays else None,
        write,
        rules=rules,
        state_bhvk=state,
        backend="reference",
    )
    wanted = loop(q, k, v, kept, write, state, rules)
    weights = [torch.randn_like(one) for one in wanted]
    leaves = [one for one in given if decays or one is not log]
    for got, plain in zip(
        [*found, *torch.autograd.grad(found, leaves, weights)],
        [*wanted, *torch.autograd.grad(wanted, leaves, weights)],
        strict=True,
    ):
        torch.testing.assert_close(got, plain, rtol=1e-9, atol=1e-11)
