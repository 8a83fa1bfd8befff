"""What holds for the stepwise CUDA kernels of the dense and of the tape engine, run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from elman.base.errors import UserError
from elman.kernels.sources import included_sources
from elman.ops.dense.cuda import stepwise as dense_stepwise
from elman.ops.dense.op import dense_recurrence
from elman.ops.tape.cuda import stepwise as tape_stepwise
from elman.ops.tape.op import dual_memory
from tests.emulation import dense_emulator, emulator, tape_emulator
from tests.ops.recurrent import DENSE as DENSE_ENGINE
from tests.ops.recurrent import TAPE as TAPE_ENGINE
from tests.ops.recurrent import (
    Engine,
    Leaves,
    check,
    check_drops,
    check_nan,
    is_sequence,
    same_bits,
)

pytestmark = pytest.mark.compiler

FP32 = 2e-5  # relative L2


@dataclass(frozen=True)
class Stepwise:
    """An engine's stepwise kernels, and what differs between the two engines.

    Args:
        engine: The engine.
        module: That of the kernels.
        emulator: What runs them here.
        some: Cells of all kinds.
        sizes: For fp32.
        narrow: Cells and sizes for bf16.
        reset: Sizes for resets.
        bf16: Relative L2; inputs, matrices and what is kept are rounded to 2^-9.
        reached: Outputs that have a gradient alone.
        cut: Where a sequence is cut in two, of the size ``even``.
        close: By how much the pieces may differ; in bf16 if they may not.
        wide: The size for the operator's own checks.
        unit: What a translation unit is compiled for.
        zeros: Calls it with zeros of a dtype, and those of the states' dtype.
    """

    engine: Engine
    module: ModuleType
    emulator: ModuleType
    some: tuple[str, ...]
    sizes: tuple[str, ...]
    narrow: tuple[tuple[str, str], ...]
    reset: tuple[str, ...]
    bf16: float
    reached: tuple[slice, ...]
    cut: int
    close: float
    wide: str
    unit: Any
    zeros: Callable[[torch.dtype, torch.dtype], Any]

    def narrowed(self, cell: str, size: str) -> Leaves:
        """Return tensors for bf16 products: inputs in bf16, all else of its numbers."""
        leaves = {}
        for name, leaf in self.engine.draw(cell, size, torch.float32).items():
            narrow = leaf.detach().to(torch.bfloat16)
            leaves[name] = (narrow if is_sequence(name) else narrow.float()).requires_grad_()
        return leaves

    def of_bf16(
        self, cell: str, leaves: Leaves, backend: str, resets: Tensor | None = None
    ) -> Leaves:
        """Return outputs and gradients, those of the outputs being numbers that bf16 has."""
        outputs = self.engine.call(cell, leaves, backend, resets)
        generator = torch.Generator().manual_seed(2)
        pulls = [
            torch.randn(out.shape, generator=generator).to(torch.bfloat16).to(out.dtype)
            for out in outputs
        ]
        gradients = torch.autograd.grad(outputs, list(leaves.values()), pulls)
        found = {f"out {number}": out.detach() for number, out in enumerate(outputs)}
        return found | {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}

    def check_bf16(self, cell: str, size: str, *, resets: bool = False) -> None:
        """Compare a call in bf16 with the reference in fp64, dtypes included."""
        leaves = self.narrowed(cell, size)
        mask = self.engine.resets_of(leaves) if resets else None
        found = self.of_bf16(cell, leaves, "cuda", mask)
        narrow = {name for name, one in found.items() if one.dtype == torch.bfloat16}
        assert narrow == {"out 0", *(f"d {name}" for name in leaves if is_sequence(name))}
        assert {one.dtype for one in found.values()} == {torch.bfloat16, torch.float32}
        check(found, _exact(self.engine.name, cell, size, resets), self.bf16)


@cache
def _exact(name: str, cell: str, size: str, resets: bool) -> Leaves:
    one = STEPWISE[name]
    leaves = one.narrowed(cell, size)
    wide = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    mask = one.engine.resets_of(leaves) if resets else None
    return one.of_bf16(cell, wide, "reference", mask)


def _dense(io: torch.dtype, wide: torch.dtype) -> Any:
    x, matrix, state = (torch.zeros(*s) for s in ((2, 3, 6), (6, 6), (2, 6)))
    rest = ([matrix.to(wide)], [state.to(wide)])
    return dense_recurrence("tanh", [x.to(io)], *rest, backend="cuda")


def _tape(io: torch.dtype, wide: torch.dtype) -> Any:
    matrix, tape, state = (torch.zeros(*s, dtype=wide) for s in ((6, 6), (2, 3, 6), (2, 6)))
    x = torch.zeros(2, 3, 6, dtype=io)
    return dual_memory(x, matrix, None, tape, state, write="shared", backend="cuda")


_STEPS, _WRITES = tuple(DENSE_ENGINE.cases.CELLS), tuple(TAPE_ENGINE.cases.CELLS)
_TAPE_SIZES = ("odd-35", "step-alone", "one-slot-one-row", "even", "slots-35")
DENSE = Stepwise(
    DENSE_ENGINE,
    dense_stepwise,
    dense_emulator,
    # Plain, more parts of the state, a second product, a norm with a number of its own.
    some=("tanh", "lstm", "slstm", "gru", "gru_reset_after", "normalized_scalar"),
    sizes=("one-thread", "one-row-one-step", "rank-1"),
    narrow=tuple((step, size) for step in _STEPS for size in ("even", "even-low-rank")),
    reset=("one-thread", "even", "rank-1"),
    bf16=1.2e-2,
    reached=(slice(0, 1), slice(1, None)),
    cut=1,
    close=0.0,
    wide="even-low-rank",
    unit=dense_stepwise.StepConfig("gru", torch.bfloat16, torch.float32, 2),
    zeros=_dense,
)
TAPE = Stepwise(
    TAPE_ENGINE,
    tape_stepwise,
    tape_emulator,
    some=_WRITES,
    sizes=_TAPE_SIZES,
    narrow=(*((write, "even") for write in _WRITES), ("full", "odd-35")),
    reset=_TAPE_SIZES,
    bf16=2e-2,
    reached=tuple(slice(n, n + 1) for n in range(3)),
    cut=3,
    close=1e-5,  # within a call the scores of a read follow from those of the write
    wide="even",
    unit=tape_stepwise.StepConfig("full", torch.bfloat16, torch.float32, 2, 64),
    zeros=_tape,
)
STEPWISE = {"dense": DENSE, "tape": TAPE}


def params(of: Callable[[Stepwise], Any]) -> list[Any]:
    """Return parameters: an engine, and what it has of something."""
    return [
        pytest.param(one, *given, id="-".join(map(str, (name, *given))))
        for name, one in STEPWISE.items()
        for given in of(one)
    ]


ALL = pytest.mark.parametrize("one", STEPWISE.values(), ids=STEPWISE)
SOME = pytest.mark.parametrize(("one", "cell"), params(lambda one: [(c,) for c in one.some]))


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    for one in STEPWISE.values():
        monkeypatch.setattr(one.module, "STARTER", one.emulator.starter)
    emulator.poison(monkeypatch.setattr)


@pytest.mark.parametrize(
    ("one", "cell", "size"),
    params(lambda one: [(c, s) for c in one.engine.cases.CELLS for s in one.sizes]),
)
def test_fp32_outputs_and_gradients_are_the_references(one: Stepwise, cell: str, size: str) -> None:
    """With an odd number of channels, every thread has one."""
    found = one.engine.everything(cell, one.engine.draw(cell, size, torch.float32), "cuda")
    check(found, one.engine.reference(cell, size), FP32)


@pytest.mark.parametrize(("one", "cell", "size"), params(lambda one: one.narrow))
def test_bf16_in_and_out(one: Stepwise, cell: str, size: str) -> None:
    """Tapes, sums, states at the ends and gradients of weights are fp32."""
    one.check_bf16(cell, size)


@pytest.mark.parametrize(
    ("one", "cell", "n"),
    params(lambda one: [(c, n) for c in one.some for n in range(len(one.reached))]),
)
def test_a_gradient_may_reach_one_output_alone(one: Stepwise, cell: str, n: int) -> None:
    leaves, reached = one.engine.draw(cell, "even", torch.float32), one.reached[n]
    found = one.engine.everything(cell, leaves, "cuda", reached)
    check(found, one.engine.reference(cell, "even", reached), FP32)


@SOME
def test_repeats_agree_to_the_bit(one: Stepwise, cell: str) -> None:
    leaves = one.engine.draw(cell, "even", torch.float32)
    assert same_bits(*(one.engine.everything(cell, leaves, "cuda") for _ in "12"))


@SOME
def test_without_gradients_the_numbers_are_the_same(one: Stepwise, cell: str) -> None:
    leaves = one.narrowed(cell, "even")
    kept = one.engine.call(cell, leaves, "cuda")
    with torch.no_grad():
        free = one.engine.call(cell, leaves, "cuda")
    assert all(torch.equal(left, right) for left, right in zip(kept, free, strict=True))


@SOME
def test_sequences_and_states_may_lie_apart_and_begin_anywhere(one: Stepwise, cell: str) -> None:
    """Parts of wider tensors, at odd places: then a thread has one channel."""
    leaves = one.engine.draw(cell, "even", torch.float32)
    for name in [*filter(is_sequence, leaves), *one.engine.carried(leaves)]:
        whole = leaves[name].detach()
        room = torch.zeros(*whole.shape[:-1], whole.shape[-1] + 3)
        room[..., 1:-2] = whole
        leaves[name] = room[..., 1:-2].requires_grad_()
    found = one.engine.everything(cell, leaves, "cuda")
    check(found, one.engine.reference(cell, "even"), FP32)


@SOME
def test_a_sequence_in_two_calls_is_the_same_sequence(one: Stepwise, cell: str) -> None:
    """The state between the calls is what a step reads inside of one."""
    engine = one.engine
    leaves = engine.draw(cell, "even", torch.float32)
    if not one.close:
        leaves = one.narrowed(cell, "even")
    whole, *last = engine.call(cell, leaves, "cuda")
    halves, state = [], {}
    for begin, end in ((0, one.cut), (one.cut, whole.shape[1])):
        y, *parts = engine.call(cell, engine.steps(leaves | state, begin, end), "cuda")
        halves.append(y)
        state = dict(zip(engine.carried(leaves), parts, strict=True))
    for found, expected in zip((torch.cat(halves, dim=1), *parts), (whole, *last), strict=True):
        torch.testing.assert_close(found, expected, rtol=one.close, atol=one.close)


@SOME
@pytest.mark.parametrize("with_resets", [False, True], ids=["plain", "resets"])
def test_it_is_a_good_operator(one: Stepwise, cell: str, with_resets: bool) -> None:
    """Shapes and dtypes of fake tensors are those of the real ones, bf16 beside fp32."""
    leaves, cases = one.narrowed(cell, one.wide), one.engine.cases
    *read, resets = cases.arguments(
        cell, leaves, one.engine.resets_of(leaves) if with_resets else None
    )
    read = tree_map(lambda tensor: tensor.detach().requires_grad_(), read)
    torch.library.opcheck(cases.OPERATOR, (cell, "cuda", True, *read, resets))


# ---- resets


@pytest.mark.parametrize(
    ("one", "cell", "size"),
    params(lambda one: [(c, s) for c in one.engine.cases.CELLS for s in one.reset]),
)
def test_with_resets_they_are_the_references(one: Stepwise, cell: str, size: str) -> None:
    engine = one.engine
    leaves = engine.draw(cell, size, torch.float32)
    resets = engine.resets_of(leaves)
    for mask in (resets, resets.flip(0)) if one is TAPE else (resets,):
        found = engine.everything(cell, leaves, "cuda", resets=mask)
        exact = engine.everything(cell, engine.draw(cell, size), "reference", resets=mask)
        check(found, exact, FP32)


@SOME
def test_with_resets_bf16_in_and_out(one: Stepwise, cell: str) -> None:
    one.check_bf16(cell, "even", resets=True)


@SOME
def test_a_reset_before_the_first_step_drops_what_was_given(one: Stepwise, cell: str) -> None:
    check_drops(one.engine, cell, "cuda", "even")


@SOME
@pytest.mark.parametrize("first", [False, True], ids=["nan-behind", "nan-before"])
def test_nan_of_a_document_stays_in_it(one: Stepwise, cell: str, first: bool) -> None:
    check_nan(one.engine, cell, "cuda", "even", first=first)


@SOME
def test_no_reset_in_resets_has_the_bits_of_none(one: Stepwise, cell: str) -> None:
    leaves = one.narrowed(cell, "even")
    none = torch.zeros(one.engine.resets_of(leaves).shape, dtype=torch.bool)
    plain = one.engine.everything(cell, leaves, "cuda")
    assert same_bits(one.engine.everything(cell, leaves, "cuda", resets=none), plain)


# ---- the units


@ALL
def test_what_is_emulated_is_what_nvrtc_compiles(one: Stepwise) -> None:
    """Same text, same sources: but for the one header that says what the machine answers."""
    compiled, emulated = (one.module.unit_text(one.unit, *h) for h in ((), (emulator.HEADER,)))
    assert emulated == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    assert ("dense_candidate" in compiled) == (one is DENSE)
    shared = {path for path in included_sources(emulated) if path.parent.name != "emulation"}
    assert shared == {path for path in included_sources(compiled) if path.name != "device.cuh"}
    (engine,) = [path for path in shared if path.match(f"cuda/{one.engine.name}/*.cuh")]
    assert "#if" not in engine.read_text()


@ALL
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_dtype_has_no_kernel(
    one: Stepwise, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one.module, "STARTER", one.module._starter)
    with pytest.raises(UserError, match=f"computes on bfloat16 and float32, not on {dtype}"):
        one.zeros(dtype, torch.promote_types(dtype, torch.float32))


@ALL
def test_no_size_of_the_cpu_is_meant_by_the_names_of_the_emulated(one: Stepwise) -> None:
    assert set(one.engine.cases.EMULATED).isdisjoint(one.engine.cases.SIZES)
