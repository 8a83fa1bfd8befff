"""Resets of the dense engine: documents that share a row do not see each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.dense.op import elman
from elman.ops.dense.recurrences import CELLS

from .test_dense_kernels import Leaves, call, draw, everything

STEPS = pytest.mark.parametrize("step", CELLS)
BACKENDS = pytest.mark.parametrize("backend", ["reference"])


def resets_of(leaves: Leaves) -> Tensor:
    """Return resets at the first, second, a middle and the last step, or nowhere, by row."""
    batch, steps, _ = leaves["input 0"].shape
    resets = torch.zeros(batch, steps, dtype=torch.bool)
    for row, places in enumerate(([0, steps // 2], [min(1, steps - 1), steps - 1], [])):
        resets[row::3, places] = True
    return resets


def documents(resets: Tensor) -> list[tuple[int, int, int]]:
    """Return row, first step and end of every document."""
    found = []
    for row, one in enumerate(resets.tolist()):
        starts = sorted({0, *(t for t, reset in enumerate(one) if reset)})
        found += [(row, *ends) for ends in zip(starts, [*starts[1:], len(one)], strict=True)]
    return found


@STEPS
@BACKENDS
def test_documents_of_a_row_are_those_run_apart(step: str, backend: str) -> None:
    leaves = {name: leaf.detach() for name, leaf in draw(step, "rows").items()}
    resets = resets_of(leaves)
    together, *last = call(step, leaves, backend, resets)
    for row, begin, end in documents(resets):
        apart = dict(leaves)
        for name, leaf in leaves.items():
            if name.startswith("input"):
                apart[name] = leaf[row : row + 1, begin:end]
            elif name.startswith("state"):
                first = leaf[row : row + 1]
                apart[name] = torch.zeros_like(first) if resets[row, begin] else first
        y, *state = call(step, apart, backend)
        torch.testing.assert_close(together[row : row + 1, begin:end], y, rtol=1e-12, atol=1e-12)
        if end == resets.shape[1]:
            for one, part in zip(state, last, strict=True):
                torch.testing.assert_close(part[row : row + 1], one, rtol=1e-12, atol=1e-12)


@STEPS
@pytest.mark.parametrize("size", ["tiny", "tiny-low-rank"])
def test_gradcheck(step: str, size: str) -> None:
    leaves = draw(step, size)
    resets = resets_of(leaves)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(leaves, given, strict=True))
        return call(step, named, "reference", resets)

    assert torch.autograd.gradcheck(run, list(leaves.values()))


@STEPS
@BACKENDS
def test_a_reset_before_the_first_step_drops_the_given_state(step: str, backend: str) -> None:
    """To the bit, and NaN with it; the state's gradient is 0 to the bit."""
    leaves = draw(step, "rows")
    resets = resets_of(leaves)
    dropped = resets[:, 0]
    found = everything(step, leaves, backend, resets=resets)
    for name, leaf in leaves.items():
        if name.startswith("state"):
            assert not found[f"d {name}"][dropped].any()
            leaf.data[dropped] = torch.nan
    for name, one in everything(step, leaves, backend, resets=resets).items():
        assert torch.equal(one, found[name]), name


@STEPS
def test_segments_equal_the_plain_loop(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = draw(step, "channels")
    results = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        results.append(everything(step, leaves, "reference", resets=resets_of(leaves)))
    for name, one in results[0].items():
        torch.testing.assert_close(results[1][name], one, rtol=1e-11, atol=1e-11)


def test_the_plain_recurrence_has_the_keyword() -> None:
    leaves = draw("tanh", "channels")
    resets = resets_of(leaves)
    given = (leaves["input 0"], leaves["matrix"], leaves["state 0"])
    h, _ = elman(*given, linear=False, backend="reference", resets_bt=resets)
    assert torch.equal(h, call("tanh", leaves, "reference", resets)[0])
    assert not torch.equal(h, call("tanh", leaves, "reference")[0])
