"""The projection of silu(u) that keeps u alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from elman.ops.silu_linear import silu_linear


def draw(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    u, weight = torch.randn(2, 3, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    return u.requires_grad_(), weight.requires_grad_()


def test_value_and_gradients() -> None:
    u, weight = draw()
    wanted = functional.linear(functional.silu(u), weight)
    torch.testing.assert_close(silu_linear(u, weight), wanted, rtol=0, atol=0)
    assert torch.autograd.gradcheck(silu_linear, (u, weight))


@pytest.mark.parametrize("frozen", ["input", "weight"])
def test_what_needs_no_gradient_gets_none(frozen) -> None:
    u, weight = draw()
    still, moving = (u, weight) if frozen == "input" else (weight, u)
    still.requires_grad_(False)
    silu_linear(u, weight).sum().backward()
    assert still.grad is None
    assert moving.grad is not None


def test_silu_of_the_input_is_not_kept() -> None:
    u, weight = draw()
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        silu_linear(u, weight)
    assert {t.data_ptr() for t in saved} == {u.data_ptr(), weight.data_ptr()}


def test_autocast_narrows_the_product_and_not_the_gradients() -> None:
    u, weight = draw(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = silu_linear(u, weight)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert u.grad.dtype == weight.grad.dtype == torch.float32


def test_torch_compile_takes_it_as_one_graph() -> None:
    u, weight = draw()
    compiled = torch.compile(silu_linear, fullgraph=True, backend="aot_eager")
    compiled(u, weight).sum().backward()
    grads = u.grad.clone(), weight.grad.clone()
    u.grad = weight.grad = None
    silu_linear(u, weight).sum().backward()
    torch.testing.assert_close(grads, (u.grad, weight.grad))
