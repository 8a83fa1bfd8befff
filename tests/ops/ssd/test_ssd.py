"""Mamba2's recurrence: chunks against the plain loop, and what the layer calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.ssd import chunked, reference
from elman.ops.ssd.op import selective_scan

HEADS, CHANNELS, COLUMNS = 4, 3, 5


def inputs(
    steps: int, *, groups: int = 1, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Return x, log decays, B, C and the first state."""
    torch.manual_seed(3)
    batch = 2
    drawn = [
        torch.randn(batch, steps, HEADS, CHANNELS, dtype=torch.float64),
        -scale * torch.rand(batch, steps, HEADS, dtype=torch.float64),
        torch.randn(batch, steps, groups, COLUMNS, dtype=torch.float64),
        torch.randn(batch, steps, groups, COLUMNS, dtype=torch.float64),
        torch.randn(batch, HEADS, CHANNELS, COLUMNS, dtype=torch.float64),
    ]
    return [one.to(dtype).requires_grad_() for one in drawn]


def results(run: Any, given: list[Tensor], *more: Any) -> list[Tensor]:
    """Return outputs, final state, and the gradients of all inputs under fixed weights."""
    outputs = run(*given, *more)
    torch.manual_seed(4)
    weights = [torch.randn(one.shape, dtype=torch.float64).to(one.dtype) for one in outputs]
    return [*outputs, *torch.autograd.grad(outputs, given, weights)]


def test_the_reference_is_the_equation() -> None:
    """Written out for one row and head, without a tensor operation."""
    x, log, b, c, state = (one.detach() for one in inputs(3))
    y, final = reference.ssd(x, log, b, c, state)
    for p in range(CHANNELS):
        row = state[1, 2, p].tolist()
        for t in range(3):
            decay = log[1, t, 2].exp().item()
            written = x[1, t, 2, p].item()
            row = [decay * s + written * b[1, t, 0, n].item() for n, s in enumerate(row)]
            read = sum(s * c[1, t, 0, n].item() for n, s in enumerate(row))
            assert y[1, t, 2, p].item() == pytest.approx(read)
        assert final[1, 2, p].tolist() == pytest.approx(row)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("steps", "chunk"), [(1, 4), (4, 4), (5, 4), (12, 4), (13, 4), (9, 1), (7, 64)], ids="{}".format
)
def test_chunks_equal_the_loop_forward_and_backward(steps, chunk, groups) -> None:
    given = inputs(steps, groups=groups)
    for found, wanted in zip(
        results(chunked.ssd, given, chunk), results(reference.ssd, given), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0], ids="decays to exp(-{})".format)
def test_fp32_chunks_are_as_good_as_fp32_allows(scale) -> None:
    exact = results(reference.ssd, inputs(150, scale=scale))
    found = results(chunked.ssd, inputs(150, scale=scale, dtype=torch.float32), chunked.CHUNK)
    for got, wanted in zip(found, exact, strict=True):
        assert (got - wanted).norm() <= 2e-5 * wanted.norm()


def test_gradcheck_at_a_rest() -> None:
    given = inputs(5, groups=2)
    assert torch.autograd.gradcheck(lambda *args: chunked.ssd(*args, 2), given, fast_mode=True)


@pytest.mark.parametrize("chunk", [0, 2])
def test_the_op_discretizes_and_adds_the_skip(chunk) -> None:
    x, logits, b, c, state = (one.detach() for one in inputs(5))
    a_log, bias, skip = torch.randn(3, HEADS, dtype=torch.float64)
    y, final = selective_scan(
        x,
        logits,
        b,
        c,
        a_log_h=a_log,
        dt_bias_h=bias,
        skip_h=skip,
        state_bhpn=state,
        chunk=chunk,
        backend="reference",
    )
    step = functional.softplus(logits + bias)
    wanted, last = reference.ssd(x * step.unsqueeze(-1), -a_log.exp() * step, b, c, state)
    torch.testing.assert_close(y, wanted + skip[:, None] * x)
    torch.testing.assert_close(final, last)
