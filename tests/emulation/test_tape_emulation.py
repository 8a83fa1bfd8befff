"""The tape engine's CUDA kernels, run on a CPU from their own sources, against the reference."""

from __future__ import annotations

import re

import pytest
import torch

from elman.base.errors import UserError
from elman.kernels.sources import included_sources
from elman.ops.common import operator
from elman.ops.tape import custom_op, passes
from elman.ops.tape.cuda import stepwise
from elman.ops.tape.cuda.stepwise import StepConfig
from elman.ops.tape.op import dual_memory
from elman.ops.tape.recurrences import CELLS
from tests.emulation import emulator, tape_emulator
from tests.ops.recurrent import TAPE, check, check_drops, check_nan, same_bits
from tests.ops.tape.tape_cases import EMULATED, SIZES, Leaves, arguments, call, draw, resets_of

pytestmark = pytest.mark.compiler

WRITES = pytest.mark.parametrize("write", CELLS)
FP32, BF16 = 2e-5, 2e-2  # relative L2; bf16 rounds inputs, matrices, states and values to 2^-9


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    monkeypatch.setattr(stepwise, "STARTER", tape_emulator.starter)
    emulator.poison(monkeypatch.setattr)


def narrowed(write: str, size: str) -> Leaves:
    """Return tensors for bf16 products: the input in bf16, all else of its numbers."""
    leaves = {}
    for name, leaf in draw(write, size, torch.float32).items():
        narrow = leaf.detach().to(torch.bfloat16)
        leaves[name] = (narrow if name == "input" else narrow.float()).requires_grad_()
    return leaves


def of_bf16(write: str, leaves: Leaves, backend: str) -> Leaves:
    """Return outputs and gradients, those of the outputs being numbers that bf16 has."""
    outputs = call(write, leaves, backend)
    generator = torch.Generator().manual_seed(2)
    pulls = [
        torch.randn(out.shape, generator=generator).to(torch.bfloat16).to(out.dtype)
        for out in outputs
    ]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), pulls)
    found = {f"out {number}": out.detach() for number, out in enumerate(outputs)}
    return found | {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}


@WRITES
@pytest.mark.parametrize("size", ["odd-35", "step-alone", "one-slot-one-row", "even", "slots-35"])
def test_fp32_outputs_and_gradients_are_the_references(write: str, size: str) -> None:
    found = TAPE.everything(write, draw(write, size, torch.float32), "cuda")
    check(found, TAPE.reference(write, size), FP32)


def test_more_channels_than_a_block_takes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "_THREADS", (64,))
    found = TAPE.everything("shared", draw("shared", "wide", torch.float32), "cuda")
    check(found, TAPE.reference("shared", "wide"), FP32)


@pytest.mark.parametrize(
    ("write", "size"), [*((write, "even") for write in CELLS), ("full", "odd-35")]
)
def test_bf16_in_and_out(write: str, size: str) -> None:
    """Tapes, sums, states at the ends and gradients of weights are fp32."""
    leaves = narrowed(write, size)
    found = of_bf16(write, leaves, "cuda")
    narrow = {name for name, one in found.items() if one.dtype == torch.bfloat16}
    assert narrow == {"out 0", "d input"}
    assert {one.dtype for one in found.values()} == {torch.bfloat16, torch.float32}
    wide = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    check(found, of_bf16(write, wide, "reference"), BF16)


@WRITES
@pytest.mark.parametrize("reached", range(3))
def test_a_gradient_may_reach_one_output_alone(write: str, reached: int) -> None:
    one = slice(reached, reached + 1)
    found = TAPE.everything(write, draw(write, "even", torch.float32), "cuda", one)
    check(found, TAPE.reference(write, "even", one), FP32)


@WRITES
def test_repeats_agree_to_the_bit(write: str) -> None:
    first, second = (
        TAPE.everything(write, draw(write, "even", torch.float32), "cuda") for _ in "12"
    )
    assert same_bits(first, second)


@WRITES
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_any_distance_of_checkpoints_gives_the_same_bits(
    write: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tapes of a segment are those of the forward pass, in bf16 too."""
    leaves = narrowed(write, "even")
    plain = of_bf16(write, leaves, "cuda")
    monkeypatch.setattr(passes, "interval", lambda of: steps)
    assert same_bits(of_bf16(write, leaves, "cuda"), plain)


@WRITES
def test_without_gradients_the_numbers_are_the_same(write: str) -> None:
    leaves = narrowed(write, "even")
    kept = call(write, leaves, "cuda")
    with torch.no_grad():
        free = call(write, leaves, "cuda")
    assert all(torch.equal(one, other) for one, other in zip(kept, free, strict=True))


@WRITES
def test_sequences_and_tapes_may_lie_apart_and_begin_anywhere(write: str) -> None:
    """Parts of wider tensors, at odd places."""
    leaves = draw(write, "even", torch.float32)
    for name in ("input", "tape", "state"):
        whole = leaves[name].detach()
        room = torch.zeros(*whole.shape[:-1], whole.shape[-1] + 3)
        room[..., 1:-2] = whole
        leaves[name] = room[..., 1:-2].requires_grad_()
    check(TAPE.everything(write, leaves, "cuda"), TAPE.reference(write, "even"), FP32)


def test_a_tape_that_all_rows_share_gets_the_sum_of_their_gradients() -> None:
    """Layer E23 expands its initial tape over the batch."""
    both = []
    for backend, dtype in (("cuda", torch.float32), ("reference", torch.float64)):
        leaves = draw("full", "even", dtype)
        shared = leaves["tape"][:1].detach().requires_grad_()
        y, *_ = call("full", leaves | {"tape": shared.expand(2, -1, -1)}, backend)
        both += torch.autograd.grad(y.cos().sum(), [shared])
    torch.testing.assert_close(both[0].double(), both[1], rtol=1e-4, atol=1e-5)


@WRITES
def test_a_sequence_in_two_calls_is_the_same_sequence(write: str) -> None:
    """But for rounding: within a call the scores of a read follow from those of the write."""
    leaves = draw(write, "even", torch.float32)
    whole, *last = call(write, leaves, "cuda")
    halves, carried = [], leaves
    for begin, end in ((0, 3), (3, 7)):
        cut = carried | {"input": leaves["input"][:, begin:end]}
        y, tape, state = call(write, cut, "cuda")
        halves.append(y)
        carried = carried | {"tape": tape, "state": state}
    torch.testing.assert_close(torch.cat(halves, dim=1), whole, rtol=1e-5, atol=1e-5)
    for name, one in zip(("tape", "state"), last, strict=True):
        torch.testing.assert_close(carried[name], one, rtol=1e-5, atol=1e-5)


@WRITES
def test_it_is_a_good_operator(write: str) -> None:
    """Shapes and dtypes of fake tensors are those of the real ones, bf16 beside fp32."""
    leaves = {name: leaf.detach() for name, leaf in narrowed(write, "even").items()}
    *given, _ = arguments(write, leaves, None)
    given = [one.requires_grad_() for one in given]
    torch.library.opcheck(custom_op.TAPE.operator, (write, "cuda", True, *given, None))


def test_autocast_narrows_the_input_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; on a CPU, autocast widens what an operator reads."""
    monkeypatch.setattr(operator, "operators_are_seen", lambda tensors: False)
    leaves = narrowed("full", "even")
    plain = call("full", leaves, "cuda")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = call("full", leaves | {"input": leaves["input"].float()}, "cuda")
    assert [one.dtype for one in inside] == [torch.bfloat16, torch.float32, torch.float32]
    assert all(torch.equal(one, other) for one, other in zip(plain, inside, strict=True))


# ---- resets


@WRITES
@pytest.mark.parametrize("size", ["odd-35", "step-alone", "one-slot-one-row", "even", "slots-35"])
def test_with_resets_they_are_the_references(write: str, size: str) -> None:
    leaves = draw(write, size, torch.float32)
    for resets in (resets_of(leaves), resets_of(leaves).flip(0)):
        found = TAPE.everything(write, leaves, "cuda", resets=resets)
        exact = TAPE.everything(write, draw(write, size), "reference", resets=resets)
        check(found, exact, FP32)


@WRITES
def test_with_resets_any_distance_of_checkpoints_gives_the_same_bits(
    write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a checkpoint, beside it, and far from it; in fp32."""
    leaves = draw(write, "even", torch.float32)
    resets = resets_of(leaves)
    plain = TAPE.everything(write, leaves, "cuda", resets=resets)
    for steps in (1, 2, 20):
        monkeypatch.setattr(passes, "interval", lambda of, steps=steps: steps)
        assert same_bits(TAPE.everything(write, leaves, "cuda", resets=resets), plain)


@WRITES
def test_a_reset_before_the_first_step_drops_what_was_given(write: str) -> None:
    check_drops(TAPE, write, "cuda", "even")


@WRITES
@pytest.mark.parametrize("first", [False, True], ids=["nan-behind", "nan-before"])
def test_nan_of_a_document_stays_in_it(write: str, first: bool) -> None:
    check_nan(TAPE, write, "cuda", "even", first=first)


@WRITES
def test_no_reset_in_resets_has_the_bits_of_none(write: str) -> None:
    leaves = narrowed(write, "even")
    none = torch.zeros(leaves["input"].shape[:2], dtype=torch.bool)
    plain = TAPE.everything(write, leaves, "cuda")
    assert same_bits(TAPE.everything(write, leaves, "cuda", resets=none), plain)


@WRITES
def test_with_resets_it_is_a_good_operator(write: str) -> None:
    leaves = {name: leaf.detach() for name, leaf in narrowed(write, "even").items()}
    *read, resets = arguments(write, leaves, resets_of(leaves))
    given = (*(one.requires_grad_() for one in read), resets)
    torch.library.opcheck(custom_op.TAPE.operator, (write, "cuda", True, *given))


# ---- defects of the original (vector-state specification 3.4)


def test_gradients_of_matrices_are_not_transposed_and_have_the_first_step() -> None:
    """Of the right norm either way; where there is one step, all of W_h's comes by the first."""
    for size in ("step-alone", "even"):
        found = TAPE.everything("full", draw("full", size, torch.float32), "cuda")
        for name in ("d W_h", "d W_r"):
            right = TAPE.reference("full", size)[name]
            assert right.norm() > 0.01
            assert (found[name].double() - right).norm() <= FP32 * right.norm()
            assert (found[name].double() - right.T).norm() > 0.1 * right.norm()


# ---- the units


def test_what_is_emulated_is_what_nvrtc_compiles() -> None:
    """Same text, same sources: but for the one header that says what the machine answers."""
    config = StepConfig("full", torch.bfloat16, torch.float32, 2, 64)
    compiled, emulated = (stepwise.unit_text(config, *h) for h in ((), (emulator.HEADER,)))
    assert emulated == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    shared = {path for path in included_sources(emulated) if path.parent.name != "emulation"}
    assert shared == {path for path in included_sources(compiled) if path.name != "device.cuh"}
    (engine,) = [path for path in shared if path.match("cuda/tape/*.cuh")]
    assert "#if" not in engine.read_text()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_dtype_has_no_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STARTER", stepwise._starter)
    wide = torch.promote_types(dtype, torch.float32)
    matrix, tape, state = (torch.zeros(*s, dtype=wide) for s in ((6, 6), (2, 3, 6), (2, 6)))
    x = torch.zeros(2, 3, 6, dtype=dtype)
    with pytest.raises(UserError, match=f"computes on bfloat16 and float32, not on {dtype}"):
        dual_memory(x, matrix, None, tape, state, write="shared", backend="cuda")


def test_more_slots_than_a_block_has_room_for() -> None:
    """At most so many fit into the shared memory of the smallest GPU, 99 KB for a block."""
    most = StepConfig("full", torch.float32, torch.float32, 1, 512)
    assert most.launch("tape_forward", 1, 512, stepwise.MAX_SLOTS).shared_bytes <= 99 * 1024
    tape = torch.zeros(1, stepwise.MAX_SLOTS + 1, 2)
    said = "kernels.backend=cuda: the tape has 1025 slots, a block has room for 1024; use kernels"
    with pytest.raises(UserError, match=re.escape(said)):
        dual_memory(
            torch.zeros(1, 1, 2),
            torch.zeros(2, 2),
            None,
            tape,
            torch.zeros(1, 2),
            write="shared",
            backend="cuda",
        )


def test_no_size_of_the_cpu_is_meant_by_these_names() -> None:
    assert set(EMULATED).isdisjoint(SIZES)
