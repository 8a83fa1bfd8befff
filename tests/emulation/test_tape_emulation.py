"""What the tape engine's stepwise CUDA kernels alone have, run on a CPU from their own sources."""

from __future__ import annotations

import re

import pytest
import torch

from elman.base.errors import UserError
from elman.ops.common import operator
from elman.ops.tape import passes
from elman.ops.tape.cuda import stepwise
from elman.ops.tape.cuda.stepwise import StepConfig
from elman.ops.tape.op import dual_memory
from elman.ops.tape.recurrences import CELLS
from tests.emulation import emulator, tape_emulator
from tests.emulation.test_recurrent_emulation import FP32
from tests.emulation.test_recurrent_emulation import TAPE as STEPWISE
from tests.ops.recurrent import TAPE, check, same_bits
from tests.ops.tape.tape_cases import call, draw, resets_of

pytestmark = pytest.mark.compiler

WRITES = pytest.mark.parametrize("write", CELLS)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    monkeypatch.setattr(stepwise, "STARTER", tape_emulator.starter)
    emulator.poison(monkeypatch.setattr)


def test_more_channels_than_a_block_takes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "_THREADS", (64,))
    found = TAPE.everything("shared", draw("shared", "wide", torch.float32), "cuda")
    check(found, TAPE.reference("shared", "wide"), FP32)


@WRITES
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_any_distance_of_checkpoints_gives_the_same_bits(
    write: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tapes of a segment are those of the forward pass, in bf16 too."""
    leaves = STEPWISE.narrowed(write, "even")
    plain = STEPWISE.of_bf16(write, leaves, "cuda")
    monkeypatch.setattr(passes, "interval", lambda of: steps)
    assert same_bits(STEPWISE.of_bf16(write, leaves, "cuda"), plain)


def test_a_tape_that_all_rows_share_gets_the_sum_of_their_gradients() -> None:
    """Layer E23 expands its initial tape over the batch."""
    both = []
    for backend, dtype in (("cuda", torch.float32), ("reference", torch.float64)):
        leaves = draw("full", "even", dtype)
        shared = leaves["tape"][:1].detach().requires_grad_()
        y, *_ = call("full", leaves | {"tape": shared.expand(2, -1, -1)}, backend)
        both += torch.autograd.grad(y.cos().sum(), [shared])
    torch.testing.assert_close(both[0].double(), both[1], rtol=1e-4, atol=1e-5)


def test_autocast_narrows_the_input_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; on a CPU, autocast widens what an operator reads."""
    monkeypatch.setattr(operator, "operators_are_seen", lambda tensors: False)
    leaves = STEPWISE.narrowed("full", "even")
    plain = call("full", leaves, "cuda")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = call("full", leaves | {"input": leaves["input"].float()}, "cuda")
    assert [one.dtype for one in inside] == [torch.bfloat16, torch.float32, torch.float32]
    assert all(torch.equal(one, other) for one, other in zip(plain, inside, strict=True))


# ---- resets


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
