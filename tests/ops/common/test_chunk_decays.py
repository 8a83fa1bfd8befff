"""Products of decays within a chunk, and time cut into chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common.chunk_decays import chunk_decays
from elman.ops.common.chunking import run_in_chunks


def logs(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return logarithms of decays, every third one near 0."""
    torch.manual_seed(1)
    drawn = -scale * torch.rand(*shape, dtype=torch.float64)
    drawn[..., ::3] = -1e-3
    return drawn.to(dtype)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_products_are_those_of_the_plain_definition(length) -> None:
    log = logs(2, 3, length)
    decays, found = log.exp(), chunk_decays(log)
    for step in range(length):
        for past in range(step + 1):
            wanted = decays[..., past + 1 : step + 1].prod(-1)
            torch.testing.assert_close(found.between[..., step, past], wanted)
        torch.testing.assert_close(found.since_start[..., step], decays[..., : step + 1].prod(-1))
        torch.testing.assert_close(found.until_end[..., step], decays[..., step + 1 :].prod(-1))
        assert (found.between[..., step, step + 1 :] == 0).all()
    torch.testing.assert_close(found.whole, decays.prod(-1))


def test_gradients_reach_the_logarithms() -> None:
    log = logs(2, 5).requires_grad_()

    def run(log: Tensor) -> tuple[Tensor, ...]:
        found = chunk_decays(log)
        return found.between, found.since_start, found.until_end, found.whole

    assert torch.autograd.gradcheck(run, log)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e4])
def test_fp32_is_exact_even_after_a_step_that_forgets_everything(scale) -> None:
    """One running sum in fp32 loses four digits at a scale of 50."""
    log = logs(4, 64, scale=scale, dtype=torch.float32)
    found, wanted = chunk_decays(log), chunk_decays(log.double())
    assert found.between.dtype == torch.float32
    for part in ("between", "since_start", "until_end", "whole"):
        got, exact = getattr(found, part), getattr(wanted, part)
        assert (got - exact).norm() <= 1e-7 * exact.norm(), part


def test_nothing_overflows_and_no_gradient_is_lost() -> None:
    log = torch.full((1, 64), -300.0, requires_grad=True)
    found = chunk_decays(log)
    (found.between.sum() + found.until_end.sum() + found.since_start.sum()).backward()
    assert found.between.isfinite().all()
    assert log.grad is not None
    assert log.grad.isfinite().all()


@pytest.mark.parametrize(
    ("steps", "length", "calls"),
    [(1, 4, [(1, 1)]), (4, 4, [(4, 4)]), (8, 4, [(8, 4)]), (11, 4, [(8, 4), (3, 3)])],
    ids=["short", "one", "two", "two and a rest"],
)
def test_time_is_cut_into_equal_chunks_and_a_rest(steps, length, calls) -> None:
    seen = []

    def run(inputs, state, length):
        seen.append((inputs[0].shape[1], length))
        total = state + inputs[0].cumsum(1)
        return total, total[:, -1:]

    x = torch.arange(2.0 * steps).view(2, steps)
    y, state = run_in_chunks(run, (x,), torch.zeros(2, 1), length)
    torch.testing.assert_close(y, x.cumsum(1))
    torch.testing.assert_close(state, x.sum(1, keepdim=True))
    assert seen == calls
