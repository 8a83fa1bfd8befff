"""The dense engine's CPU kernels: against the fp64 reference, and as operators of PyTorch."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.dense import cpu, custom_op, source
from elman.ops.dense.op import dense_recurrence
from elman.ops.dense.recurrences import CELLS
from tests.ops.whole import compile_steps

# Batch, steps, channels, rank; 0 is one matrix. With two threads the first two share a step by
# channels, the third by rows of the batch.
SIZES = {
    "channels": (3, 7, 200, 0),
    "channels-low-rank": (9, 3, 150, 70),
    "rows": (37, 4, 66, 0),
    "one-thread": (2, 5, 21, 0),
    "one-row-one-step": (1, 1, 5, 0),
    "rank-1": (2, 3, 9, 1),
    "rows-low-rank": (35, 2, 120, 40),
}
# Sizes of the emulated CUDA kernels; the second has more channels than a block.
EMULATED = {"even": (3, 4, 22, 0), "wide": (2, 2, 300, 0), "even-low-rank": (2, 3, 8, 4)}
# A block-diagonal matrix: the last number is that of its heads. With two threads the first size
# shares a step by channels; in the third a thread of a GPU has two channels.
HEADS = {
    "heads": (3, 5, 200, 0, 4),
    "heads-rows": (37, 3, 66, 0, 3),
    "even-heads": (3, 4, 20, 0, 5),
    "odd-heads": (2, 3, 21, 0, 7),
    "one-head": (1, 1, 5, 0, 1),
}
# For finite differences.
TINY = {"tiny": (3, 4, 2, 0), "tiny-low-rank": (3, 4, 3, 2)}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
STEPS = pytest.mark.parametrize("step", CELLS)
SOME = pytest.mark.parametrize(
    "step", ["tanh", "lstm", "slstm", "gru", "normalized_scalar", "two_gates"]
)
Leaves = dict[str, Tensor]
pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile all kernels of this module at once."""
    for dtype in TOLERANCE:
        compile_steps("dense", dtype)


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "kernel_threads", lambda of_torch: 2)


def draw(step: str, size: str, dtype: torch.dtype = torch.float64) -> Leaves:
    """Return the tensors of a call by name; no matrix is symmetric."""
    cell, (b, t, i, rank, *of) = CELLS[step], (SIZES | EMULATED | TINY | HEADS)[size]
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, over: float = 1.0) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator) / over

    leaves = {"input 0": normal(b, t, cell.blocks * i)}
    leaves |= {f"input {n + 1}": normal(b, t, i) for n in range(cell.others)}
    if rank:
        leaves["outer"] = normal(cell.blocks * i, rank, over=rank**0.5)
        leaves["inner"] = normal(rank, i, over=i**0.5)
    elif of:
        shape = (of[0], cell.blocks * i // of[0], i // of[0])
        leaves["matrix"] = normal(*shape, over=shape[2] ** 0.5)
    else:
        leaves["matrix"] = normal(cell.blocks * i, i, over=i**0.5)
    leaves |= {"scale": normal(1)} if cell.scale else {}
    leaves |= {"extra": normal(i, i, over=i**0.5)} if cell.extra else {}
    leaves |= {f"state {n}": normal(b, i) for n in range(cell.states)}
    if step == "slstm":  # n, a sum of weights, is positive
        leaves["state 2"].abs_().add_(0.5)
    return {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}


def call(
    step: str, leaves: Leaves, backend: str, resets: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the states of all steps and the parts of the last one."""

    def of(*words: str) -> list[Tensor]:
        return [leaf for name, leaf in leaves.items() if name.split()[0] in words]

    y, last = dense_recurrence(
        step,
        of("input"),
        of("matrix", "outer", "inner"),
        of("state"),
        parameters=of("scale", "extra"),
        backend=backend,
        resets_bt=resets,
    )
    return y, *last


def everything(
    step: str,
    leaves: Leaves,
    backend: str,
    reached: str = "both",
    resets: Tensor | None = None,
) -> Leaves:
    """Return outputs and gradients by name; ``reached`` outputs have a gradient."""
    outputs = call(step, leaves, backend, resets)
    generator = torch.Generator().manual_seed(2)
    pulls = [
        torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out.dtype)
        for out in outputs
    ]
    chosen = {"both": slice(None), "output": slice(1), "last": slice(1, None)}[reached]
    gradients = torch.autograd.grad(
        outputs[chosen], list(leaves.values()), pulls[chosen], allow_unused=True
    )
    found = {f"out {n}": out.detach() for n, out in enumerate(outputs)}
    zeros = {f"d {name}": torch.zeros_like(leaf) for name, leaf in leaves.items()}
    pairs = zip(leaves, gradients, strict=True)
    return found | zeros | {f"d {name}": g for name, g in pairs if g is not None}


@cache
def wanted(step: str, size: str, reached: str = "both") -> Leaves:
    """Return what the reference computes in fp64."""
    return everything(step, draw(step, size), "reference", reached)


def check(found: Leaves, exact: Leaves, tolerance: float) -> None:
    """Compare tensors in relative L2."""
    assert found.keys() == exact.keys()
    for name, tensor in found.items():
        error = (tensor.double() - exact[name]).norm()
        assert error <= tolerance * (exact[name].norm() + 1e-30), (name, error)


@STEPS
@DTYPES
@pytest.mark.parametrize("size", SIZES)
def test_outputs_and_gradients_are_the_references(step: str, size: str, dtype: torch.dtype) -> None:
    check(everything(step, draw(step, size, dtype), "cpu"), wanted(step, size), TOLERANCE[dtype])


@pytest.mark.parametrize("step", ["tanh", "lstm", "slstm", "two_gates"])
@DTYPES
@pytest.mark.parametrize("size", HEADS)
def test_heads_are_the_references(step: str, size: str, dtype: torch.dtype) -> None:
    check(everything(step, draw(step, size, dtype), "cpu"), wanted(step, size), TOLERANCE[dtype])


@pytest.mark.parametrize("step", ["tanh", "slstm", "two_gates"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_head_is_a_recurrence_of_its_own(step: str, backend: str) -> None:
    leaves, heads = draw(step, "even-heads"), HEADS["even-heads"][-1]
    together = call(step, leaves, backend)
    for head in range(heads):
        alone = {
            name: leaf[head] if name == "matrix" else leaf.chunk(heads, dim=-1)[head]
            for name, leaf in leaves.items()
        }
        for one, whole in zip(call(step, alone, backend), together, strict=True):
            # Sums in another order differ by the last bit of their terms, which are about 1.
            torch.testing.assert_close(
                one, whole.chunk(heads, dim=-1)[head], rtol=1e-12, atol=1e-15
            )


@STEPS
@pytest.mark.parametrize("reached", ["output", "last"])
def test_a_gradient_may_reach_one_output_alone(step: str, reached: str) -> None:
    found = everything(step, draw(step, "channels"), "cpu", reached)
    check(found, wanted(step, "channels", reached), 1e-12)


@SOME
@pytest.mark.parametrize("size", ["channels", "rows", "channels-low-rank"])
def test_repeats_agree_to_the_bit(step: str, size: str) -> None:
    first, second = (everything(step, draw(step, size, torch.float32), "cpu") for _ in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@SOME
@pytest.mark.parametrize("size", ["channels", "channels-low-rank", "rows"])
def test_more_threads_than_cores_agree_with_one(
    step: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for threads in (1, 5):
        monkeypatch.setattr(cpu, "kernel_threads", lambda of_torch, n=threads: n)
        check(everything(step, draw(step, size), "cpu"), wanted(step, size), 1e-12)


@STEPS
def test_nothing_is_read_that_was_not_written(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty, empty_like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan))
    for size in ("channels", "channels-low-rank", "rows", "one-thread"):
        check(everything(step, draw(step, size), "cpu"), wanted(step, size), 1e-12)


@SOME
def test_a_sequence_in_two_calls_is_the_same_sequence(step: str) -> None:
    leaves = draw(step, "channels")
    whole, *last = call(step, leaves, "cpu")
    halves, carried = [], leaves
    for begin, end in ((0, 3), (3, 7)):
        cut = {
            name: leaf[:, begin:end] if name.startswith("input") else leaf
            for name, leaf in carried.items()
        }
        y, *state = call(step, cut, "cpu")
        halves.append(y)
        carried = carried | {f"state {n}": part for n, part in enumerate(state)}
    assert torch.equal(torch.cat(halves, dim=1), whole)
    for n, part in enumerate(last):
        assert torch.equal(carried[f"state {n}"], part)


@SOME
def test_views_and_columns_apart_are_read_as_they_lie(step: str) -> None:
    leaves = draw(step, "channels")
    apart = {
        name: leaf.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()
        for name, leaf in leaves.items()
    }
    check(everything(step, apart, "cpu"), wanted(step, "channels"), 1e-12)


@SOME
def test_it_is_a_good_operator(step: str) -> None:
    leaves = draw(step, "one-thread")
    cell = CELLS[step]
    inputs = [leaf for name, leaf in leaves.items() if name.startswith("input")]
    parameters = [leaves[name] for name in ("scale", "extra") if name in leaves]
    state = torch.stack([leaves[f"state {n}"] for n in range(cell.states)])
    arguments = (step, "cpu", True, inputs, [leaves["matrix"]], parameters, state.detach(), None)
    torch.library.opcheck(custom_op.DENSE.operator, arguments)


@SOME
def test_watched_calls_have_the_same_bits(step: str) -> None:
    """torch.func looks at operators, so that the call goes by one."""
    leaves = draw(step, "channels")
    plain = everything(step, leaves, "cpu")
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        watched = everything(step, leaves, "cpu")
    assert {"elman.dense.default", "elman.dense_backward.default"} <= set(seen)
    assert all(torch.equal(tensor, watched[name]) for name, tensor in plain.items())


def test_autocast_leaves_the_state_wide() -> None:
    leaves = draw("tanh", "one-thread", torch.float32)
    plain, *_ = call("tanh", leaves, "cpu")
    narrow = dict(leaves)
    narrow["input 0"] = leaves["input 0"].bfloat16().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, last = call("tanh", leaves, "cpu")
    assert y.dtype == last.dtype == torch.float32
    assert (y - plain).norm() <= 0.02 * plain.norm()


@SOME
@pytest.mark.parametrize("size", ["channels", "channels-low-rank"])
def test_a_backward_pass_inside_of_autocast_is_as_exact(step: str, size: str) -> None:
    plain = everything(step, draw(step, size, torch.float32), "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = everything(step, draw(step, size, torch.float32), "cpu")
    assert all(torch.equal(tensor, inside[name]) for name, tensor in plain.items())


def test_no_rows_and_no_steps_give_the_first_state_back() -> None:
    leaves = draw("lstm", "one-thread")
    for cut in (slice(0, 0), slice(None)):
        rows = {
            name: leaf[cut] if name.split()[0] in ("input", "state") else leaf
            for name, leaf in leaves.items()
        }
        given = {
            name: leaf[:, :0] if name.startswith("input") else leaf for name, leaf in rows.items()
        }
        y, h, c = call("lstm", given, "cpu")
        assert y.shape[:2] == (rows["state 0"].shape[0], 0)
        assert torch.equal(h, rows["state 0"])
        assert torch.equal(c, rows["state 1"])


def test_wrong_tensors_are_refused_at_the_operators_door() -> None:
    leaves = draw("tanh", "one-thread")
    inputs, matrix, state = [leaves["input 0"]], leaves["matrix"], leaves["state 0"].unsqueeze(0)
    with pytest.raises(ValueError, match=r"dense tanh: 1 of parameter, expected 0"):
        custom_op.DENSE.operator("tanh", "cpu", False, inputs, [matrix], [state[0, 0]], state, None)
    with pytest.raises(ValueError, match=r"state 0 of dense tanh: shape"):
        custom_op.DENSE.operator("tanh", "cpu", False, inputs, [matrix], [], state[:, :1], None)
    with pytest.raises(ValueError, match=r"source 0 of dense tanh: shape"):
        custom_op.DENSE.operator(
            "tanh", "cpu", False, [inputs[0][..., :3]], [matrix], [], state, None
        )


WRONG = {
    "a narrow second input": ("mix", {"input 1": (2, 5, 3)}),
    "a wide first input": ("tanh", {"input 0": (2, 5, 30)}),
    "a matrix of other rows": ("lstm", {"input 0": (2, 5, 42), "matrix": (42, 21)}),
    "another U": ("gru", {"extra": (20, 21)}),
    "a matrix of rank 0": ("tanh", {"matrix": (21, 0), "inner": (0, 21)}),
    "factors that do not fit": ("tanh", {"matrix": (21, 4), "inner": (3, 21)}),
    "heads that are wider than the state": ("tanh", {"matrix": (3, 7, 8)}),
    "heads of a norm": ("normalized_sum", {"matrix": (3, 7, 7)}),
    "no c": ("lstm", {"state 1": None}),
    "no second input": ("mix", {"input 1": None}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_kernel_reads_nothing_beside_its_tensors(what: str) -> None:
    step, changes = WRONG[what]
    leaves = draw(step, "one-thread")
    for name, shape in changes.items():
        leaves.pop(name, None)
        if shape is not None:
            leaves[name] = torch.zeros(shape, dtype=torch.float64)
    # The tensors of a group stand in the order of their names.
    ordered = {name: leaves[name] for name in sorted(leaves, key=lambda name: name == "inner")}
    with pytest.raises(ValueError, match=f"dense {step}"):
        call(step, ordered, "cpu")


def test_another_dtype_has_no_kernel() -> None:
    with pytest.raises(UserError, match=r"computes in float32 and float64, not in torch.float16"):
        source.kernel_for("tanh", torch.float16)


@pytest.mark.parametrize("size", SIZES)
@STEPS
def test_nothing_is_written_behind_the_workspace(monkeypatch, step, size) -> None:
    """The original's workspaces were too small for some sizes (vector-state specification 5)."""
    guards: list[Tensor] = []

    def run(self, function) -> None:
        like = self.kept[0]
        asked = self.kernel.workspace(self.args) // like.element_size()
        whole = like.new_full((asked + 4096,), 7.0)
        self.point(workspace=whole)
        function(self.args)
        guards.append(whole[asked:])

    monkeypatch.setattr(cpu._Call, "run", run)
    everything(step, draw(step, size), "cpu")
    assert len(guards) == 2
    assert all(bool((guard == 7).all()) for guard in guards)
