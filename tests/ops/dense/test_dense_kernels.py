"""What the dense engine's CPU kernels alone have: heads, and the groups of tensors they read.

What holds for the tape engine too is in ops/test_recurrent_kernels.py.
"""

from __future__ import annotations

import pytest
import torch

from elman.base.errors import UserError
from elman.ops.dense import custom_op, source
from elman.ops.dense.op import elman
from tests.ops.dense.dense_cases import HEADS, call, draw, resets_of
from tests.ops.recurrent import DENSE, DTYPES, TOLERANCE, check, compile_all, set_threads

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_all()


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 2)


@pytest.mark.parametrize("step", ["tanh", "lstm", "slstm", "two_gates"])
@DTYPES
@pytest.mark.parametrize("size", HEADS)
def test_heads_are_the_references(step: str, size: str, dtype: torch.dtype) -> None:
    found = DENSE.everything(step, draw(step, size, dtype), "cpu")
    check(found, DENSE.reference(step, size), TOLERANCE[dtype])


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


def test_autocast_leaves_the_state_wide() -> None:
    leaves = draw("tanh", "one-thread", torch.float32)
    plain, *_ = call("tanh", leaves, "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, last = call("tanh", leaves, "cpu")
    assert y.dtype == last.dtype == torch.float32
    assert (y - plain).norm() <= 0.02 * plain.norm()


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


def test_the_plain_recurrence_has_the_keyword() -> None:
    leaves = draw("tanh", "channels")
    resets = resets_of(leaves)
    given = (leaves["input 0"], leaves["matrix"], leaves["state 0"])
    h, _ = elman(*given, linear=False, backend="reference", resets_bt=resets)
    assert torch.equal(h, call("tanh", leaves, "reference", resets)[0])
    assert not torch.equal(h, call("tanh", leaves, "reference")[0])
