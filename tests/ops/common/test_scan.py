"""Memory and work of the reference time loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan

STEPS = 400


def running_sum(state: Tensor, x_tb: Tensor) -> tuple[Tensor, Tensor]:
    """A segment with one tanh a step; counts how often it runs."""
    running_sum.calls.append(x_tb.shape[0])
    outputs = []
    for x_b in x_tb.unbind(0):
        state = torch.tanh(state + x_b)
        outputs.append(state)
    return torch.stack(outputs), state


@pytest.fixture(autouse=True)
def calls() -> list[int]:
    """Return the lengths of the segments that ran."""
    running_sum.calls = []
    return running_sum.calls


def test_small_calls_run_once(calls) -> None:
    x = torch.randn(STEPS, 3, requires_grad=True)
    scan.scan(running_sum, torch.zeros(3), [x])[0].sum().backward()
    assert calls == [STEPS]


def test_large_calls_run_in_segments_and_twice(calls, monkeypatch) -> None:
    monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", STEPS * 3 * 4 - 1)
    x = torch.randn(STEPS, 3, requires_grad=True)
    scan.scan(running_sum, torch.zeros(3), [x])[0].sum().backward()
    assert calls == [20] * 40


def test_the_last_segment_may_be_shorter(calls, monkeypatch) -> None:
    monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", 0)
    x = torch.randn(23, 3, requires_grad=True)
    output, final = scan.scan(running_sum, torch.zeros(3), [x])
    assert calls == [5, 5, 5, 5, 3]
    assert output.shape == (23, 3)
    torch.testing.assert_close(output[-1], final, rtol=0, atol=0)


def test_without_gradients_nothing_is_split(calls, monkeypatch) -> None:
    monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", 0)
    with torch.no_grad():
        scan.scan(running_sum, torch.zeros(3), [torch.randn(STEPS, 3)])
    assert calls == [STEPS]


def test_segments_keep_few_states_for_the_backward_pass(monkeypatch) -> None:
    def kept(limit: int) -> int:
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        x = torch.randn(STEPS, 1000, requires_grad=True)
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output, _ = scan.scan(running_sum, torch.zeros(1000), [x])
        assert output.requires_grad
        # The input stays alive anyway.
        sizes.pop(x.untyped_storage().data_ptr(), None)
        return sum(sizes.values())

    all_states = STEPS * 1000 * 4
    assert kept(all_states) >= all_states
    assert kept(all_states - 1) <= all_states / 8


@pytest.mark.parametrize(
    ("steps", "step_bytes", "wanted"),
    [
        (512, scan.SAVED_STATES_LIMIT // 512, 512),
        (512, scan.SAVED_STATES_LIMIT // 512 + 1, 23),
        (1, 2 * scan.SAVED_STATES_LIMIT, 1),
    ],
)
def test_segment_length(steps, step_bytes, wanted) -> None:
    assert scan.segment_length(steps, step_bytes) == wanted
