"""Resets of the tape engine: documents that share a row do not see each other's tape or state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.tape import results
from elman.ops.tape.recurrences import CELLS

from .test_tape_kernels import OUTPUTS, Leaves, call, draw, everything

WRITES = pytest.mark.parametrize("write", CELLS)
BACKENDS = pytest.mark.parametrize("backend", ["reference"])


def resets_of(leaves: Leaves) -> Tensor:
    """Return resets by row: at the first and a middle step, around a checkpoint, or nowhere.

    Those around it are on the checkpoint, on the step behind it and on the last step.
    """
    batch, steps, _ = leaves["input"].shape
    resets = torch.zeros(batch, steps, dtype=torch.bool)
    kept = min(results.interval(steps), steps - 1)
    around = [kept, min(kept + 1, steps - 1), steps - 1]
    for row, places in enumerate(([0, steps // 2], around, [], [kept - 1])):
        resets[row::4, places] = True
    return resets


def documents(resets: Tensor) -> list[tuple[int, int, int]]:
    """Return row, first step and end of every document."""
    found = []
    for row, one in enumerate(resets.tolist()):
        starts = sorted({0, *(t for t, reset in enumerate(one) if reset)})
        found += [(row, *ends) for ends in zip(starts, [*starts[1:], len(one)], strict=True)]
    return found


@WRITES
@BACKENDS
def test_documents_of_a_row_are_those_run_apart(write: str, backend: str) -> None:
    leaves = {name: leaf.detach() for name, leaf in draw(write, "odd").items()}
    resets = resets_of(leaves)
    together, *last = call(write, leaves, backend, resets)
    for row, begin, end in documents(resets):
        apart = leaves | {"input": leaves["input"][row : row + 1, begin:end]}
        for name in ("tape", "state"):
            first = leaves[name][row : row + 1]
            apart[name] = torch.zeros_like(first) if resets[row, begin] else first
        y, *state = call(write, apart, backend)
        torch.testing.assert_close(together[row : row + 1, begin:end], y, rtol=1e-11, atol=1e-12)
        if end == resets.shape[1]:
            for one, part in zip(state, last, strict=True):
                torch.testing.assert_close(part[row : row + 1], one, rtol=1e-11, atol=1e-12)


@WRITES
def test_gradcheck(write: str) -> None:
    leaves = draw(write, "tiny")
    resets = resets_of(leaves)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        return call(write, dict(zip(leaves, given, strict=True)), "reference", resets)

    assert torch.autograd.gradcheck(run, list(leaves.values()))


@WRITES
@BACKENDS
def test_a_reset_before_the_first_step_drops_what_was_given(write: str, backend: str) -> None:
    """To the bit, and NaN with it; the gradients of tape and state are 0 to the bit."""
    leaves = draw(write, "odd")
    resets = resets_of(leaves)
    dropped = resets[:, 0]
    found = everything(write, leaves, backend, resets=resets)
    for name in ("tape", "state"):
        assert not found[f"d {name}"][dropped].any()
        leaves[name].data[dropped] = torch.nan
    for name, one in everything(write, leaves, backend, OUTPUTS, resets).items():
        assert torch.equal(one, found[name]), name


@WRITES
def test_segments_equal_the_plain_loop(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = draw(write, "odd")
    found = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        found.append(everything(write, leaves, "reference", resets=resets_of(leaves)))
    for name, one in found[0].items():
        torch.testing.assert_close(found[1][name], one, rtol=1e-11, atol=1e-11)
