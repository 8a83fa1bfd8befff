"""What the tape engine's CPU kernels alone have: checkpoints, and the tensors they read.

What holds for the dense engine too is in ops/test_recurrent_kernels.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.tape import cpu, custom_op, passes, source
from elman.ops.tape.op import dual_memory
from elman.ops.tape.passes import Call
from elman.ops.tape.recurrences import CELLS
from tests.ops.recurrent import TAPE, compile_all, same_bits, set_threads
from tests.ops.tape.tape_cases import call, draw

WRITES = pytest.mark.parametrize("write", CELLS)
pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_all()


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 2)


@WRITES
@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_any_distance_of_checkpoints_gives_the_same_bits(
    write: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tapes of a segment are those of the forward pass, whatever its length is."""
    leaves = draw(write, "odd", torch.float32)
    plain = TAPE.everything(write, leaves, "cpu")
    monkeypatch.setattr(passes, "interval", lambda of: steps)
    assert same_bits(TAPE.everything(write, leaves, "cpu"), plain)


def test_a_call_keeps_no_tape_of_every_step() -> None:
    b, t, n, i = 2, 100, 16, 24
    drawn = [torch.randn(*shape).requires_grad_() for shape in ((b, t, i), (i, i), (i, i))]
    tape, state = torch.randn(b, n, i), torch.randn(b, i)
    kept: list[Tensor] = []

    def keep(one: Tensor) -> Tensor:
        kept.append(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        dual_memory(*drawn, tape, state, write="full", backend="cpu")
    numbers = sum(one.numel() for one in kept)
    read = 2 * i * i + b * n * i + b * i  # matrices, first tape, first state; not the input
    states_and_values, weights, checkpoints = 2 * b * t * i, 2 * b * t * n, 9 * b * n * i
    assert numbers == read + states_and_values + weights + checkpoints
    assert checkpoints < 0.1 * b * t * n * i  # which all tapes are


def test_nothing_is_kept_where_nobody_differentiates() -> None:
    leaves = draw("full", "channels")
    with torch.no_grad():
        matrix = torch.cat([leaves["W_h"], leaves["W_r"]])
        read = (leaves["input"], matrix, leaves["tape"], leaves["state"])
        left = cpu.forward(Call("full", "cpu", False, *read, None))
    assert not any(one.numel() for one in left[3:])
    plain = TAPE.everything("full", leaves, "cpu")
    for number, one in enumerate(left[:3]):
        assert torch.equal(one, plain[f"out {number}"])


def test_a_tape_that_all_rows_share_gets_the_sum_of_their_gradients() -> None:
    """Layer E23 expands its initial tape over the batch."""
    leaves = draw("full", "channels")
    shared = leaves["tape"][:1].detach().requires_grad_()
    both = []
    for backend in ("cpu", "reference"):
        y, *_ = call("full", leaves | {"tape": shared.expand(3, -1, -1)}, backend)
        both += torch.autograd.grad(y.cos().sum(), [shared])
    torch.testing.assert_close(both[0], both[1], rtol=1e-11, atol=1e-12)


WRONG = {
    "a matrix with a column too many": ("full", {"W_h": (21, 22), "W_r": (21, 22)}),
    "a matrix of other rows": ("shared", {"W_h": (20, 21)}),
    "a matrix for the write that nobody needs": ("identity", {"W_h": (42, 21)}),
    "a short matrix for the write": ("full", {"W_r": (20, 21)}),
    "no slots": ("full", {"tape": (2, 0, 21)}),
    "narrow slots": ("full", {"tape": (2, 3, 20)}),
    "a tape of other rows": ("full", {"tape": (3, 3, 21)}),
    "a narrow state": ("full", {"state": (2, 20)}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_kernel_reads_nothing_beside_its_tensors(what: str) -> None:
    write, changes = WRONG[what]
    leaves = draw(write, "one-thread")
    leaves |= {name: torch.zeros(shape).double() for name, shape in changes.items()}
    with pytest.raises(ValueError, match=r"(tape \w+|dual_memory)(:|.*expected)"):
        call(write, leaves, "cpu")


def test_wrong_tensors_are_refused_at_the_operators_door() -> None:
    leaves = draw("shared", "one-thread")
    x, matrix, tape, state = (leaves[name] for name in ("input", "W_h", "tape", "state"))
    with pytest.raises(ValueError, match=r"matrices of tape full: shape \[21, 21\], expected"):
        custom_op.TAPE.operator("full", "cpu", False, x, matrix, tape, state, None)
    with pytest.raises(ValueError, match=r"tape of tape shared: shape"):
        custom_op.TAPE.operator("shared", "cpu", False, x, matrix, tape[:1], state, None)
    with pytest.raises(ValueError, match=r"parameters of tape shared: dtype float32"):
        custom_op.TAPE.operator("shared", "cpu", False, x, matrix.float(), tape, state, None)
    with pytest.raises(ValueError, match=r"source 0 of tape shared: .* expected rows and steps"):
        custom_op.TAPE.operator("shared", "cpu", False, x[:, :0], matrix, tape, state, None)


def test_another_dtype_or_write_has_no_kernel() -> None:
    with pytest.raises(UserError, match=r"computes in float32 and float64, not in torch.float16"):
        source.kernel_for("full", torch.float16)
    with pytest.raises(UserError, match=r"kernels.backend=cpu: write twice has no kernel; use"):
        source.kernel_for("twice", torch.float32)
