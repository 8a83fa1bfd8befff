"""The dense and the tape engine, as tests that hold for both call them.

A cell is a step of the dense engine, or what the tape engine writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.ops.dense import cpu as dense_cpu
from elman.ops.tape import cpu as tape_cpu
from tests.ops.dense import dense_cases
from tests.ops.tape import tape_cases
from tests.ops.whole import compile_steps

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
Leaves = dict[str, Tensor]


@dataclass(frozen=True)
class Engine:
    """An engine, and what differs between the two.

    Args:
        name: Of the engine and of its operator.
        cases: Sizes, random tensors and calls.
        cpu: The module that calls its kernels for a CPU.
        mixed: A size whose rows and channels are no whole vectors.
        shared: Sizes whose steps threads share, by rows of the batch and by channels.
        small: Sizes whose steps they do not share.
        close: Relative and absolute difference of a sequence in pieces: what a dense step reads is
            the same, while scores of a tape follow from one another within a call.
        reordered: Gradients that are other sums where there are resets.
    """

    name: str
    cases: ModuleType
    cpu: ModuleType
    mixed: str
    shared: tuple[str, ...]
    small: tuple[str, ...]
    close: tuple[float, float]
    reordered: frozenset[str] = frozenset()

    def draw(self, cell: str, size: str, dtype: torch.dtype = torch.float64) -> Leaves:
        """Return the tensors of a call by name."""
        leaves: Leaves = self.cases.draw(cell, size, dtype)
        return leaves

    def call(
        self, cell: str, leaves: Leaves, backend: str, resets: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the states of all steps and the parts of the last one."""
        outputs: tuple[Tensor, ...] = self.cases.call(cell, leaves, backend, resets)
        return outputs

    def everything(
        self,
        cell: str,
        leaves: Leaves,
        backend: str,
        reached: slice = slice(None),
        resets: Tensor | None = None,
    ) -> Leaves:
        """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
        outputs = self.call(cell, leaves, backend, resets)
        generator = torch.Generator().manual_seed(2)
        pulls = [
            torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
            for out in outputs
        ]
        gradients = torch.autograd.grad(
            outputs[reached], list(leaves.values()), pulls[reached], materialize_grads=True
        )
        found = {f"out {n}": out.detach() for n, out in enumerate(outputs)}
        return found | {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}

    def reference(
        self, cell: str, size: str, reached: slice = slice(None), *, resets: bool = False
    ) -> Leaves:
        """Return what the reference computes in fp64."""
        return _reference(self.name, cell, size, (reached.start, reached.stop), resets)

    def resets_of(self, leaves: Leaves) -> Tensor:
        """Return where rows begin anew, [batch, steps]."""
        resets: Tensor = self.cases.resets_of(leaves)
        return resets

    def steps(self, leaves: Leaves, begin: int, end: int) -> Leaves:
        """Return a part of the steps."""
        return {n: one[:, begin:end] if is_sequence(n) else one for n, one in leaves.items()}

    def carried(self, leaves: Leaves) -> list[str]:
        """Return the names of the parts of the first state, as a call returns the last one's."""
        return [name for name in leaves if name.split()[0] in ("tape", "state")]


def is_sequence(name: str) -> bool:
    """Return whether a tensor has steps."""
    return name.startswith("input")


DENSE = Engine(
    "dense",
    dense_cases,
    dense_cpu,
    mixed="rows",
    shared=("rows", "channels", "channels-low-rank"),
    small=("one-thread",),
    close=(0.0, 0.0),
    reordered=frozenset({"d matrix", "d extra"}),
)
TAPE = Engine(
    "tape",
    tape_cases,
    tape_cpu,
    mixed="odd",
    shared=("rows", "channels", "odd"),
    small=("one-thread", "one-step"),
    close=(1e-11, 1e-12),
)
ENGINES = {"dense": DENSE, "tape": TAPE}


@cache
def _reference(
    name: str, cell: str, size: str, reached: tuple[int | None, int | None], resets: bool
) -> Leaves:
    engine = ENGINES[name]
    leaves = engine.draw(cell, size)
    mask = engine.resets_of(leaves) if resets else None
    return engine.everything(cell, leaves, "reference", slice(*reached), mask)


def _params(attribute: str) -> Iterator[Any]:
    for engine in ENGINES.values():
        for cell in getattr(engine.cases, attribute):
            yield pytest.param(engine, cell, id=f"{engine.name}-{cell}")


CELLS = pytest.mark.parametrize(("engine", "cell"), list(_params("CELLS")))
SOME = pytest.mark.parametrize(("engine", "cell"), list(_params("SOME")))
CELLS_AND_SIZES = pytest.mark.parametrize(
    ("engine", "cell", "size"),
    [
        pytest.param(engine, cell, size, id=f"{engine.name}-{cell}-{size}")
        for engine in ENGINES.values()
        for cell in engine.cases.CELLS
        for size in engine.cases.SIZES
    ],
)


def check(found: Leaves, exact: Leaves, tolerance: float) -> None:
    """Compare tensors in relative L2."""
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        error = (tensor.double() - exact[name]).norm()
        assert error <= tolerance * (exact[name].norm() + 1e-30), (name, error)


def same_bits(found: Leaves, other: Leaves) -> bool:
    """Return whether tensors of the same names are equal."""
    return all(torch.equal(tensor, other[name]) for name, tensor in found.items())


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every new tensor be NaN until something is written to it."""
    new_empty, empty_like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan))


def compile_all(*, resets: bool = False) -> None:
    """Compile all kernels for a CPU at once."""
    for engine in ENGINES:
        for dtype in TOLERANCE:
            compile_steps(engine, dtype)
            if resets:
                compile_steps(engine, dtype, resets=True)


def set_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Let kernels for a CPU run in so many threads."""
    for engine in ENGINES.values():
        monkeypatch.setattr(engine.cpu, "kernel_threads", lambda of_torch: threads)


def check_drops(engine: Engine, cell: str, backend: str, size: str) -> None:
    """Check that a reset before the first step drops what was given, NaN with it, to the bit."""
    leaves = engine.draw(cell, size, torch.float32)
    resets = engine.resets_of(leaves)
    dropped = resets[:, 0]
    found = engine.everything(cell, leaves, backend, resets=resets)
    for name in engine.carried(leaves):
        assert not found[f"d {name}"][dropped].any()
        leaves[name].data[dropped] = torch.nan
    assert same_bits(engine.everything(cell, leaves, backend, resets=resets), found)


def check_nan(engine: Engine, cell: str, backend: str, size: str, *, first: bool) -> None:
    """Check that NaN in a document leaves outputs and gradients of the others alone."""
    leaves = engine.draw(cell, size, torch.float32)
    sequences = [leaf for name, leaf in leaves.items() if is_sequence(name)]
    resets = torch.zeros(sequences[0].shape[:2], dtype=torch.bool)
    half = resets.shape[1] // 2
    resets[:, half] = True
    filled = slice(0, half) if first else slice(half, None)
    others = torch.ones_like(resets)
    others[1, filled] = False
    found = []
    for number in (1.0, torch.nan):
        sequences[0].data[1, filled] = number
        outputs = engine.call(cell, leaves, backend, resets)
        pulled = torch.stack([out.sin().sum() for out in outputs]).sum()
        found.append([outputs[0], *torch.autograd.grad(pulled, sequences)])
    for one, other in zip(*found, strict=True):
        assert other[1, filled].isnan().any()
        assert torch.equal(one[others], other[others])
