"""Resets of the dense engine: documents that share a row do not see each other."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from elman.ops.dense import cpu, custom_op
from elman.ops.dense.op import elman
from elman.ops.dense.recurrences import CELLS
from tests.ops.whole import compile_steps

from .test_dense_kernels import SIZES, TOLERANCE, Leaves, call, check, draw, everything

STEPS = pytest.mark.parametrize("step", CELLS)
BACKENDS = pytest.mark.parametrize("backend", ["reference", "cpu"])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
SOME = pytest.mark.parametrize(
    "step", ["tanh", "lstm", "slstm", "gru", "normalized_scalar", "two_gates"]
)
# But for one step from a zero state, whose norm hides the scale.
CASES = [(step, size) for step in CELLS for size in SIZES]
CASES.remove(("normalized_scalar", "one-row-one-step"))
pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "kernel_threads", lambda of_torch: 2)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile all kernels of this module at once."""
    for dtype in TOLERANCE:
        for resets in (False, True):
            compile_steps("dense", dtype, resets=resets)


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


def check_drops(step: str, backend: str, size: str) -> None:
    """Check that a reset before the first step drops what was given, NaN with it, to the bit."""
    leaves = draw(step, size, torch.float32)
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
@BACKENDS
def test_a_reset_before_the_first_step_drops_the_given_state(step: str, backend: str) -> None:
    check_drops(step, backend, "rows")


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


@cache
def wanted(step: str, size: str) -> Leaves:
    """Return what the reference computes in fp64."""
    leaves = draw(step, size)
    return everything(step, leaves, "reference", resets=resets_of(leaves))


@DTYPES
@pytest.mark.parametrize(("step", "size"), CASES)
def test_the_kernels_are_the_reference(step: str, size: str, dtype: torch.dtype) -> None:
    leaves = draw(step, size, dtype)
    found = everything(step, leaves, "cpu", resets=resets_of(leaves))
    check(found, wanted(step, size), TOLERANCE[dtype])


@SOME
def test_no_reset_in_resets_has_the_bits_of_none(step: str) -> None:
    for size in ("channels", "rows"):
        leaves = draw(step, size, torch.float32)
        none = torch.zeros(leaves["input 0"].shape[:2], dtype=torch.bool)
        found = everything(step, leaves, "cpu", resets=none)
        for name, one in everything(step, leaves, "cpu").items():
            if name in ("d matrix", "d extra"):  # products of another order
                torch.testing.assert_close(found[name], one, rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(found[name], one), name


@STEPS
def test_nothing_is_read_that_was_not_written(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty, empty_like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan))
    for size in ("channels", "channels-low-rank", "rows", "one-thread"):
        leaves = draw(step, size)
        found = everything(step, leaves, "cpu", resets=resets_of(leaves))
        check(found, wanted(step, size), 1e-12)


def check_nan(step: str, backend: str, first: bool, size: str) -> None:
    """Check that NaN in a document leaves outputs and gradients of the others alone."""
    leaves = draw(step, size, torch.float32)
    resets = torch.zeros(leaves["input 0"].shape[:2], dtype=torch.bool)
    resets[:, 2] = True
    filled = slice(0, 2) if first else slice(2, 4)
    others = torch.ones_like(resets)
    others[1, filled] = False
    sequences = [leaf for name, leaf in leaves.items() if name.startswith("input")]
    found = []
    for number in (1.0, torch.nan):
        leaves["input 0"].data[1, filled] = number
        y, *last = call(step, leaves, backend, resets)
        pulled = torch.stack([out.sin().sum() for out in (y, *last)]).sum()
        found.append([y, *torch.autograd.grad(pulled, sequences)])
    for one, other in zip(*found, strict=True):
        assert other[1, filled].isnan().any()
        assert torch.equal(one[others], other[others])


@STEPS
@BACKENDS
@pytest.mark.parametrize("first", [False, True], ids=["nan-behind", "nan-before"])
def test_nan_of_a_document_stays_in_it(step: str, backend: str, first: bool) -> None:
    check_nan(step, backend, first, "rows")


@SOME
def test_resets_are_read_as_they_lie(step: str) -> None:
    leaves = draw(step, "channels")
    resets = resets_of(leaves)
    apart = torch.stack([resets, ~resets], dim=-1).transpose(0, 1)[..., 0].transpose(0, 1)
    assert not apart.is_contiguous()
    found = everything(step, leaves, "cpu", resets=apart)
    check(found, wanted(step, "channels"), 1e-12)


@SOME
def test_it_is_a_good_operator(step: str) -> None:
    leaves, cell = draw(step, "one-thread"), CELLS[step]
    inputs = [leaf for name, leaf in leaves.items() if name.startswith("input")]
    parameters = [leaves[name] for name in ("scale", "extra") if name in leaves]
    state = torch.stack([leaves[f"state {n}"] for n in range(cell.states)]).detach()
    given = (inputs, [leaves["matrix"]], parameters, state, resets_of(leaves))
    torch.library.opcheck(custom_op.DENSE.operator, (step, "cpu", True, *given))


@SOME
def test_it_compiles_without_a_break(step: str) -> None:
    """One graph, with the bits of the plain call."""
    leaves = draw(step, "one-thread", torch.float32)
    resets = resets_of(leaves)
    plain = everything(step, leaves, "cpu", resets=resets)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(leaves: Leaves, resets: Tensor) -> tuple[Tensor, ...]:
        return call(step, leaves, "cpu", resets)

    for n, out in enumerate(run(leaves, resets)):
        assert torch.equal(out, plain[f"out {n}"])
