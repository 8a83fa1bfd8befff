"""Functions of other people's packages: what a recomputed pass asks of their backward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from elman.ops.common.packages import unpack_once


def reading_twice() -> type[Function]:
    """Return a function like mamba-ssm's of Mamba3: it looks whether tensors are there first."""

    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
            ctx.save_for_backward(x, x * x)
            ctx.factor = factor
            return factor * x**3

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
            assert len(ctx.saved_tensors) == 2
            _, square = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return 3 * ctx.factor * square * dy, None

    return Cube


def gradient(function: type[Function], recomputed: bool) -> Tensor:
    x = torch.tensor([1.0, 2.0], requires_grad=True)

    def run(x: Tensor) -> Tensor:
        y: Tensor = function.apply(x, 2.0)
        return y.sin()

    y = checkpoint(run, x, use_reentrant=False) if recomputed else run(x)
    return torch.autograd.grad(y.sum(), x)[0]


def test_a_recomputed_pass_refuses_a_function_that_unpacks_twice() -> None:
    with pytest.raises(RuntimeError, match="already unpacked once"):
        gradient(reading_twice(), recomputed=True)


def test_a_function_that_unpacks_once_can_be_recomputed() -> None:
    function = reading_twice()
    exact = gradient(function, recomputed=False)
    unpack_once(function)
    assert torch.equal(gradient(function, recomputed=False), exact)
    assert torch.equal(gradient(function, recomputed=True), exact)
