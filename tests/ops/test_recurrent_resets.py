"""Resets of the dense and tape engines: documents that share a row do not see each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.ops.common import scan
from tests.ops.recurrent import (
    CELLS,
    CELLS_AND_SIZES,
    DENSE,
    DTYPES,
    ENGINES,
    SOME,
    TAPE,
    TOLERANCE,
    Engine,
    Leaves,
    check,
    check_drops,
    check_nan,
    compile_all,
    is_sequence,
    poison,
    same_bits,
    set_threads,
)

BACKENDS = pytest.mark.parametrize("backend", ["reference", "cpu"])
pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 2)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_all(resets=True)


def documents(resets: Tensor) -> list[tuple[int, int, int]]:
    """Return row, first step and end of every document."""
    found = []
    for row, one in enumerate(resets.tolist()):
        starts = sorted({0, *(t for t, reset in enumerate(one) if reset)})
        found += [(row, *ends) for ends in zip(starts, [*starts[1:], len(one)], strict=True)]
    return found


@CELLS
@BACKENDS
def test_documents_of_a_row_are_those_run_apart(engine: Engine, cell: str, backend: str) -> None:
    leaves = {name: leaf.detach() for name, leaf in engine.draw(cell, engine.mixed).items()}
    resets = engine.resets_of(leaves)
    together, *last = engine.call(cell, leaves, backend, resets)
    for row, begin, end in documents(resets):
        apart = dict(leaves)
        for name, leaf in leaves.items():
            if is_sequence(name):
                apart[name] = leaf[row : row + 1, begin:end]
            elif name in engine.carried(leaves):
                first = leaf[row : row + 1]
                apart[name] = torch.zeros_like(first) if resets[row, begin] else first
        y, *state = engine.call(cell, apart, backend)
        close = {"rtol": max(engine.close[0], 1e-12), "atol": 1e-12}
        torch.testing.assert_close(together[row : row + 1, begin:end], y, **close)
        if end == resets.shape[1]:
            for one, part in zip(state, last, strict=True):
                torch.testing.assert_close(part[row : row + 1], one, **close)


@pytest.mark.parametrize(
    ("engine", "cell", "size"),
    [
        pytest.param(engine, cell, size, id=f"{engine.name}-{cell}-{size}")
        for engine in ENGINES.values()
        for cell in engine.cases.CELLS
        for size in engine.cases.TINY
    ],
)
def test_gradcheck(engine: Engine, cell: str, size: str) -> None:
    leaves = engine.draw(cell, size)
    resets = engine.resets_of(leaves)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        return engine.call(cell, dict(zip(leaves, given, strict=True)), "reference", resets)

    assert torch.autograd.gradcheck(run, list(leaves.values()))


@CELLS
@BACKENDS
def test_a_reset_before_the_first_step_drops_the_given_state(
    engine: Engine, cell: str, backend: str
) -> None:
    check_drops(engine, cell, backend, engine.mixed)


@CELLS
def test_segments_equal_the_plain_loop(
    engine: Engine, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = engine.draw(cell, "channels" if engine is DENSE else "odd")
    found = []
    for limit in (10**9, 0):
        monkeypatch.setattr(scan, "SAVED_STATES_LIMIT", limit)
        resets = engine.resets_of(leaves)
        found.append(engine.everything(cell, leaves, "reference", resets=resets))
    torch.testing.assert_close(found[1], found[0], rtol=1e-11, atol=1e-11)


@DTYPES
@CELLS_AND_SIZES
def test_the_kernels_are_the_reference(
    engine: Engine, cell: str, size: str, dtype: torch.dtype
) -> None:
    if (cell, size) == ("normalized_scalar", "one-row-one-step"):
        size = "one-thread"  # one step from a zero state hides the scale in its norm
    leaves = engine.draw(cell, size, dtype)
    found = engine.everything(cell, leaves, "cpu", resets=engine.resets_of(leaves))
    check(found, engine.reference(cell, size, resets=True), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("engine", "cell"),
    [(DENSE, "lstm"), (DENSE, "slstm"), *((TAPE, write) for write in TAPE.cases.CELLS)],
)
def test_a_reset_at_every_step_is_the_references(engine: Engine, cell: str) -> None:
    leaves = engine.draw(cell, engine.mixed)
    (sequence, *_) = leaves.values()
    resets = torch.ones(sequence.shape[:2], dtype=torch.bool)
    exact = engine.everything(cell, leaves, "reference", resets=resets)
    check(engine.everything(cell, leaves, "cpu", resets=resets), exact, 1e-12)


@SOME
def test_no_reset_in_resets_has_the_bits_of_none(engine: Engine, cell: str) -> None:
    for size in ("channels", "rows"):
        leaves = engine.draw(cell, size, torch.float32)
        none = torch.zeros(next(iter(leaves.values())).shape[:2], dtype=torch.bool)
        found = engine.everything(cell, leaves, "cpu", resets=none)
        for name, one in engine.everything(cell, leaves, "cpu").items():
            if name in engine.reordered:
                torch.testing.assert_close(found[name], one, rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(found[name], one), name


@CELLS
def test_nothing_is_read_that_was_not_written(
    engine: Engine, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    for size in engine.shared + engine.small:
        leaves = engine.draw(cell, size)
        found = engine.everything(cell, leaves, "cpu", resets=engine.resets_of(leaves))
        check(found, engine.reference(cell, size, resets=True), 1e-12)


@CELLS
@BACKENDS
@pytest.mark.parametrize("first", [False, True], ids=["nan-behind", "nan-before"])
def test_nan_of_a_document_stays_in_it(
    engine: Engine, cell: str, backend: str, first: bool
) -> None:
    check_nan(engine, cell, backend, engine.mixed, first=first)


@SOME
def test_resets_are_read_as_they_lie(engine: Engine, cell: str) -> None:
    leaves = engine.draw(cell, "channels")
    resets = engine.resets_of(leaves)
    apart = torch.stack([resets, ~resets], dim=-1).transpose(0, 1)[..., 0].transpose(0, 1)
    assert not apart.is_contiguous()
    found = engine.everything(cell, leaves, "cpu", resets=apart)
    check(found, engine.reference(cell, "channels", resets=True), 1e-12)


@SOME
def test_it_is_a_good_operator(engine: Engine, cell: str) -> None:
    leaves = engine.draw(cell, "one-thread")
    given = engine.cases.arguments(cell, leaves, engine.resets_of(leaves))
    torch.library.opcheck(engine.cases.OPERATOR, (cell, "cpu", True, *given))


@SOME
def test_the_first_state_is_read_as_it_lies(engine: Engine, cell: str) -> None:
    """Its gradient, too: the operator is called with it by whoever traces or exports a layer."""
    leaves = engine.draw(cell, "one-thread")
    given = engine.cases.arguments(cell, leaves, None)
    found = []
    for lies in (lambda one: one, lambda one: one.mT.contiguous().mT):
        first = lies(given[-2].detach()).requires_grad_()
        y, *_ = engine.cases.OPERATOR(cell, "cpu", True, *given[:-2], first, None)
        found.append([y, *torch.autograd.grad(y.sin().sum(), first)])
    assert not first.is_contiguous()
    torch.testing.assert_close(*found, rtol=0, atol=0)


@SOME
def test_it_compiles_without_a_break(engine: Engine, cell: str) -> None:
    """One graph, with the bits of the plain call."""
    torch._dynamo.reset()  # all cells share the code that is compiled
    leaves = engine.draw(cell, "one-thread", torch.float32)
    resets = engine.resets_of(leaves)
    plain = engine.everything(cell, leaves, "cpu", resets=resets)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(leaves: Leaves, resets: Tensor) -> tuple[Tensor, ...]:
        return engine.call(cell, leaves, "cpu", resets)

    outputs = {f"out {n}": out for n, out in enumerate(run(leaves, resets))}
    assert same_bits(outputs, plain)
