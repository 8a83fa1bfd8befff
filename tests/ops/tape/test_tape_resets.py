"""Resets of the tape engine: documents that share a row do not see each other's tape or state."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.tape import cpu, custom_op, results
from elman.ops.tape.recurrences import CELLS
from tests.ops.whole import compile_steps

from .test_tape_kernels import OUTPUTS, SIZES, TOLERANCE, Leaves, call, check, draw, everything

WRITES = pytest.mark.parametrize("write", CELLS)
BACKENDS = pytest.mark.parametrize("backend", ["reference", "cpu"])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "kernel_threads", lambda of_torch: 2)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile all kernels of this module at once."""
    for dtype in TOLERANCE:
        for resets in (False, True):
            compile_steps("tape", dtype, resets=resets)


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


def check_drops(write: str, backend: str, size: str) -> None:
    """Check that a reset before the first step drops what was given, NaN with it, to the bit."""
    leaves = draw(write, size, torch.float32)
    resets = resets_of(leaves)
    dropped = resets[:, 0]
    found = everything(write, leaves, backend, resets=resets)
    for name in ("tape", "state"):
        assert not found[f"d {name}"][dropped].any()
        leaves[name].data[dropped] = torch.nan
    for name, one in everything(write, leaves, backend, OUTPUTS, resets).items():
        assert torch.equal(one, found[name]), name


@WRITES
@BACKENDS
def test_a_reset_before_the_first_step_drops_what_was_given(write: str, backend: str) -> None:
    check_drops(write, backend, "odd")


@WRITES
def test_segments_equal_the_plain_loop(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = draw(write, "odd")
    found = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        found.append(everything(write, leaves, "reference", resets=resets_of(leaves)))
    for name, one in found[0].items():
        torch.testing.assert_close(found[1][name], one, rtol=1e-11, atol=1e-11)


@cache
def wanted(write: str, size: str) -> Leaves:
    """Return what the reference computes in fp64."""
    leaves = draw(write, size)
    return everything(write, leaves, "reference", resets=resets_of(leaves))


@WRITES
@DTYPES
@pytest.mark.parametrize("size", SIZES)
def test_the_kernels_are_the_reference(write: str, size: str, dtype: torch.dtype) -> None:
    leaves = draw(write, size, dtype)
    found = everything(write, leaves, "cpu", resets=resets_of(leaves))
    check(found, wanted(write, size), TOLERANCE[dtype])


@WRITES
def test_a_reset_at_every_step_is_the_references(write: str) -> None:
    leaves = draw(write, "odd")
    resets = torch.ones(leaves["input"].shape[:2], dtype=torch.bool)
    exact = everything(write, leaves, "reference", resets=resets)
    assert not exact["d W_h"].any() or write == "shared"
    check(everything(write, leaves, "cpu", resets=resets), exact, 1e-12)


@WRITES
def test_no_reset_in_resets_has_the_bits_of_none(write: str) -> None:
    for size in ("odd", "rows"):
        leaves = draw(write, size, torch.float32)
        none = torch.zeros(leaves["input"].shape[:2], dtype=torch.bool)
        found = everything(write, leaves, "cpu", resets=none)
        for name, one in everything(write, leaves, "cpu").items():
            assert torch.equal(found[name], one), name


@WRITES
def test_nothing_is_read_that_was_not_written(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(torch.nan))
    for size in ("channels", "odd", "rows", "one-thread"):
        leaves = draw(write, size)
        found = everything(write, leaves, "cpu", resets=resets_of(leaves))
        check(found, wanted(write, size), 1e-12)


def check_nan(write: str, backend: str, first: bool, size: str) -> None:
    """Check that NaN in a document leaves outputs and gradients of the others alone."""
    leaves = draw(write, size, torch.float32)
    resets = torch.zeros(leaves["input"].shape[:2], dtype=torch.bool)
    resets[:, 5] = True
    filled = slice(0, 5) if first else slice(5, None)
    others = torch.ones_like(resets)
    others[1, filled] = False
    found = []
    for number in (1.0, torch.nan):
        leaves["input"].data[1, filled] = number
        outputs = call(write, leaves, backend, resets)
        pulled = torch.stack([out.sin().sum() for out in outputs]).sum()
        found.append([outputs[0], *torch.autograd.grad(pulled, [leaves["input"]])])
    for one, other in zip(*found, strict=True):
        assert other[1, filled].isnan().any()
        assert torch.equal(one[others], other[others])


@WRITES
@BACKENDS
@pytest.mark.parametrize("first", [False, True], ids=["nan-behind", "nan-before"])
def test_nan_of_a_document_stays_in_it(write: str, backend: str, first: bool) -> None:
    check_nan(write, backend, first, "odd")


@WRITES
def test_it_is_a_good_operator(write: str) -> None:
    leaves = draw(write, "one-thread")
    matrix = torch.cat([leaves[name] for name in ("W_h", "W_r") if name in leaves]).detach()
    given = (leaves["input"], matrix, leaves["tape"], leaves["state"], resets_of(leaves))
    torch.library.opcheck(custom_op.TAPE.operator, (write, "cpu", True, *given))


@WRITES
def test_it_compiles_without_a_break(write: str) -> None:
    """One graph, with the bits of the plain call."""
    leaves = draw(write, "one-thread", torch.float32)
    resets = resets_of(leaves)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(leaves: Leaves, resets: Tensor) -> tuple[Tensor, ...]:
        return call(write, leaves, "cpu", resets)

    for one, other in zip(run(leaves, resets), call(write, leaves, "cpu", resets), strict=True):
        assert torch.equal(one, other)
