"""The tape engine's CPU kernels: against the fp64 reference, and as operators of PyTorch."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.tape import cpu, custom_op, results, source
from elman.ops.tape.op import dual_memory
from elman.ops.tape.recurrences import CELLS
from tests.ops.whole import compile_steps

# Batch, steps, slots, channels. With two threads those of `rows` share a step by rows of the batch;
# `one-thread` and `one-step` are too small to share; the others are shared by channels. A segment
# between checkpoints has about sqrt(steps) steps, so that most sizes end within one.
SIZES = {
    "channels": (3, 7, 4, 200),
    "odd": (9, 11, 5, 131),
    "many-slots": (5, 6, 13, 120),
    "one-slot": (4, 5, 1, 136),
    "one-row": (1, 9, 8, 280),
    "rows": (37, 4, 3, 66),
    "one-thread": (2, 5, 3, 21),
    "one-step": (1, 1, 2, 5),
}
# For finite differences; a segment has three steps.
TINY = {"tiny": (3, 7, 3, 2)}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
WRITES = pytest.mark.parametrize("write", CELLS)
OUTPUTS = ("states", "last tape", "last state")
Leaves = dict[str, Tensor]
pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile all kernels of this module at once."""
    for dtype in TOLERANCE:
        compile_steps("tape", dtype)


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "kernel_threads", lambda of_torch: 2)


def draw(write: str, size: str, dtype: torch.dtype = torch.float64) -> Leaves:
    """Return the tensors of a call by name; no matrix is symmetric, no slot is another's."""
    b, t, n, i = (SIZES | TINY)[size]
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, over: float = 1.0) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator) / over

    leaves = {"input": normal(b, t, i), "W_h": normal(i, i, over=i**0.5)}
    if write == "full":
        leaves["W_r"] = normal(i, i, over=i**0.5)
    leaves |= {"tape": normal(b, n, i), "state": normal(b, i)}
    return {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}


def call(
    write: str, leaves: Leaves, backend: str, resets: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states of all steps, the last tape and the last state."""
    given = (leaves.get(name) for name in ("input", "W_h", "W_r"))
    return dual_memory(
        *given,  # type: ignore[arg-type]
        leaves["tape"],
        leaves["state"],
        write=write,  # type: ignore[arg-type]
        backend=backend,
        resets_bt=resets,
    )


def everything(
    write: str,
    leaves: Leaves,
    backend: str,
    reached: tuple[str, ...] = OUTPUTS,
    resets: Tensor | None = None,
) -> Leaves:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    outputs = dict(zip(OUTPUTS, call(write, leaves, backend, resets), strict=True))
    generator = torch.Generator().manual_seed(2)
    pulls = {
        name: torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
        for name, out in outputs.items()
    }
    gradients = torch.autograd.grad(
        [outputs[name] for name in reached],
        list(leaves.values()),
        [pulls[name] for name in reached],
    )
    found = {name: out.detach() for name, out in outputs.items()}
    return found | {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}


@cache
def wanted(write: str, size: str, reached: tuple[str, ...] = OUTPUTS) -> Leaves:
    """Return what the reference computes in fp64."""
    return everything(write, draw(write, size), "reference", reached)


def check(found: Leaves, exact: Leaves, tolerance: float) -> None:
    """Compare tensors in relative L2."""
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        error = (tensor.double() - exact[name]).norm()
        assert error <= tolerance * (exact[name].norm() + 1e-30), (name, error)


def same_bits(found: Leaves, other: Leaves) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in found.items())


@WRITES
@DTYPES
@pytest.mark.parametrize("size", SIZES)
def test_outputs_and_gradients_are_the_references(
    write: str, size: str, dtype: torch.dtype
) -> None:
    found = everything(write, draw(write, size, dtype), "cpu")
    check(found, wanted(write, size), TOLERANCE[dtype])


@WRITES
@pytest.mark.parametrize("reached", OUTPUTS)
def test_a_gradient_may_reach_one_output_alone(write: str, reached: str) -> None:
    found = everything(write, draw(write, "channels"), "cpu", (reached,))
    check(found, wanted(write, "channels", (reached,)), 1e-12)


@WRITES
@pytest.mark.parametrize("size", ["odd", "rows"])
def test_repeats_agree_to_the_bit(write: str, size: str) -> None:
    first, second = (everything(write, draw(write, size, torch.float32), "cpu") for _ in range(2))
    assert same_bits(first, second)


@WRITES
@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("size", ["odd", "rows"])
def test_any_number_of_threads_computes_the_same(
    write: str, size: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "kernel_threads", lambda of_torch: threads)
    first, second = (everything(write, draw(write, size), "cpu") for _ in range(2))
    check(first, wanted(write, size), 1e-12)
    assert same_bits(first, second)


@WRITES
@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_any_distance_of_checkpoints_gives_the_same_bits(
    write: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tapes of a segment are those of the forward pass, whatever its length is."""
    leaves = draw(write, "odd", torch.float32)
    plain = everything(write, leaves, "cpu")
    monkeypatch.setattr(results, "interval", lambda of: steps)
    assert same_bits(everything(write, leaves, "cpu"), plain)


@WRITES
def test_nothing_is_read_that_was_not_written(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(torch.nan))
    for size in ("channels", "odd", "rows", "one-thread", "one-step"):
        check(everything(write, draw(write, size), "cpu"), wanted(write, size), 1e-12)


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
        given = results.Inputs(leaves["input"], matrix, leaves["tape"], leaves["state"])
        left = cpu.forward("full", given, keep=False)
    assert not any(one.numel() for one in left[3:])
    plain = everything("full", leaves, "cpu")
    for name, one in zip(OUTPUTS, left, strict=False):
        assert torch.equal(one, plain[name])


@WRITES
def test_a_sequence_in_two_calls_is_the_same_sequence(write: str) -> None:
    """But for rounding: within a call the scores of a read follow from those of the write."""
    leaves = draw(write, "channels")
    whole, *last = call(write, leaves, "cpu")
    halves, carried = [], leaves
    for begin, end in ((0, 3), (3, 7)):
        cut = carried | {"input": leaves["input"][:, begin:end]}
        y, tape, state = call(write, cut, "cpu")
        halves.append(y)
        carried = carried | {"tape": tape, "state": state}
    torch.testing.assert_close(torch.cat(halves, dim=1), whole, rtol=1e-11, atol=1e-12)
    for name, one in zip(("tape", "state"), last, strict=True):
        torch.testing.assert_close(carried[name], one, rtol=1e-11, atol=1e-12)


@WRITES
def test_views_and_columns_apart_are_read_as_they_lie(write: str) -> None:
    leaves = draw(write, "channels")
    apart = {
        name: leaf.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()
        for name, leaf in leaves.items()
    }
    check(everything(write, apart, "cpu"), wanted(write, "channels"), 1e-12)


def test_a_tape_that_all_rows_share_gets_the_sum_of_their_gradients() -> None:
    """Layer E23 expands its initial tape over the batch."""
    leaves = draw("full", "channels")
    shared = leaves["tape"][:1].detach().requires_grad_()
    both = []
    for backend in ("cpu", "reference"):
        y, *_ = call("full", leaves | {"tape": shared.expand(3, -1, -1)}, backend)
        both += torch.autograd.grad(y.cos().sum(), [shared])
    torch.testing.assert_close(both[0], both[1], rtol=1e-11, atol=1e-12)


@WRITES
def test_it_is_a_good_operator(write: str) -> None:
    leaves = draw(write, "one-thread")
    matrix = torch.cat([leaves[name] for name in ("W_h", "W_r") if name in leaves])
    arguments = (
        write,
        "cpu",
        True,
        leaves["input"],
        matrix.detach(),
        leaves["tape"],
        leaves["state"],
        None,
    )
    torch.library.opcheck(custom_op.TAPE.operator, arguments)


@WRITES
def test_watched_calls_have_the_same_bits(write: str) -> None:
    """A dispatch mode looks at operators, so that the call goes by one."""
    leaves = draw(write, "channels")
    plain = everything(write, leaves, "cpu")
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        watched = everything(write, leaves, "cpu")
    assert {"elman.tape.default", "elman.tape_backward.default"} <= set(seen)
    assert same_bits(plain, watched)


@WRITES
def test_a_call_inside_of_autocast_has_the_same_bits(write: str) -> None:
    plain = everything(write, draw(write, "channels", torch.float32), "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = everything(write, draw(write, "channels", torch.float32), "cpu")
    assert inside["states"].dtype == torch.float32
    assert same_bits(plain, inside)


def test_a_second_derivative_is_refused() -> None:
    leaves = draw("full", "one-thread")
    y, *_ = call("full", leaves, "cpu")
    (first,) = torch.autograd.grad(y.square().sum(), [leaves["input"]], create_graph=True)
    with pytest.raises(UserError, match=r"elman::tape_backward: kernels have no second derivative"):
        torch.autograd.grad(first.sum(), [leaves["W_h"]])


def test_an_empty_batch_and_no_steps_give_the_first_state_back() -> None:
    leaves = draw("full", "one-thread")
    for rows, steps in ((0, 5), (2, 0)):
        given = {name: one[:rows] if name[0] != "W" else one for name, one in leaves.items()}
        given["input"] = given["input"][:, :steps]
        y, tape, state = call("full", given, "cpu")
        assert y.shape == (rows, steps, 21)
        assert torch.equal(tape, given["tape"])
        assert torch.equal(state, given["state"])


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


@pytest.mark.parametrize("size", SIZES)
@WRITES
def test_nothing_is_written_behind_the_workspace(monkeypatch, write, size) -> None:
    """The original's workspaces were too small for some sizes (vector-state specification 5)."""
    guards: list[Tensor] = []

    def run(self, function) -> None:
        asked = self.kernel.workspace(self.args) // self.like.element_size()
        whole = self.like.new_full((asked + 4096,), 7.0)
        self.point(workspace=whole)
        function(self.args)
        guards.append(whole[asked:])

    monkeypatch.setattr(cpu._Call, "run", run)
    everything(write, draw(write, size), "cpu")
    assert len(guards) == 2
    assert all(bool((guard == 7).all()) for guard in guards)
