"""The CPU kernels of the dense and tape engines: against the fp64 reference, and as operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from tests.ops.recurrent import (
    CELLS,
    CELLS_AND_SIZES,
    DTYPES,
    ENGINES,
    SOME,
    TOLERANCE,
    Engine,
    check,
    compile_all,
    poison,
    same_bits,
    set_threads,
)

pytestmark = pytest.mark.compiler
REACHED = {
    "states": slice(0, 1),
    "last": slice(1, None),
    "first part of last": slice(1, 2),
    "last part of last": slice(-1, None),
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_all()


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 2)


@CELLS_AND_SIZES
@DTYPES
def test_outputs_and_gradients_are_the_references(
    engine: Engine, cell: str, size: str, dtype: torch.dtype
) -> None:
    found = engine.everything(cell, engine.draw(cell, size, dtype), "cpu")
    check(found, engine.reference(cell, size), TOLERANCE[dtype])


@CELLS
@pytest.mark.parametrize("reached", REACHED.values(), ids=REACHED)
def test_a_gradient_may_reach_some_outputs_alone(engine: Engine, cell: str, reached: slice) -> None:
    found = engine.everything(cell, engine.draw(cell, "channels"), "cpu", reached)
    check(found, engine.reference(cell, "channels", reached), 1e-12)


@SOME
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_computes_the_same_and_repeats_agree_to_the_bit(
    engine: Engine, cell: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more threads than cores, too."""
    set_threads(monkeypatch, threads)
    for size in engine.shared:
        check(
            engine.everything(cell, engine.draw(cell, size), "cpu"),
            engine.reference(cell, size),
            1e-12,
        )
        leaves = engine.draw(cell, size, torch.float32)
        first, second = (engine.everything(cell, leaves, "cpu") for _ in range(2))
        assert same_bits(first, second)


@CELLS
def test_nothing_is_read_that_was_not_written(
    engine: Engine, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    for size in engine.shared + engine.small:
        found = engine.everything(cell, engine.draw(cell, size), "cpu")
        check(found, engine.reference(cell, size), 1e-12)


@SOME
def test_a_sequence_in_two_calls_is_the_same_sequence(engine: Engine, cell: str) -> None:
    leaves = engine.draw(cell, "channels")
    whole, *last = engine.call(cell, leaves, "cpu")
    halves, carried = [], leaves
    for begin, end in ((0, 3), (3, 7)):
        y, *state = engine.call(cell, engine.steps(carried, begin, end), "cpu")
        halves.append(y)
        carried = carried | dict(zip(engine.carried(leaves), state, strict=True))
    rtol, atol = engine.close
    torch.testing.assert_close(torch.cat(halves, dim=1), whole, rtol=rtol, atol=atol)
    for name, part in zip(engine.carried(leaves), last, strict=True):
        torch.testing.assert_close(carried[name], part, rtol=rtol, atol=atol)


@SOME
def test_views_and_columns_apart_are_read_as_they_lie(engine: Engine, cell: str) -> None:
    apart = {
        name: leaf.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()
        for name, leaf in engine.draw(cell, "channels").items()
    }
    check(engine.everything(cell, apart, "cpu"), engine.reference(cell, "channels"), 1e-12)


@SOME
def test_it_is_a_good_operator(engine: Engine, cell: str) -> None:
    given = engine.cases.arguments(cell, engine.draw(cell, "one-thread"), None)
    torch.library.opcheck(engine.cases.OPERATOR, (cell, "cpu", True, *given))


@SOME
def test_watched_calls_have_the_same_bits(engine: Engine, cell: str) -> None:
    """A dispatch mode, as torch.func, looks at operators, so that the call goes by one."""
    leaves = engine.draw(cell, "channels")
    plain = engine.everything(cell, leaves, "cpu")
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        watched = engine.everything(cell, leaves, "cpu")
    name = engine.name
    assert {f"elman.{name}.default", f"elman.{name}_backward.default"} <= set(seen)
    assert same_bits(plain, watched)


@SOME
def test_a_call_inside_of_autocast_has_the_same_bits(engine: Engine, cell: str) -> None:
    for size in engine.shared:
        leaves = engine.draw(cell, size, torch.float32)
        plain = engine.everything(cell, leaves, "cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = engine.everything(cell, leaves, "cpu")
        assert inside["out 0"].dtype == torch.float32
        assert same_bits(plain, inside)


@pytest.mark.parametrize(("name", "cell"), [("dense", "lstm"), ("tape", "full")])
@pytest.mark.parametrize(("rows", "steps"), [(0, 5), (0, 0), (2, 0)])
def test_no_rows_and_no_steps_give_the_first_state_back(
    name: str, cell: str, rows: int, steps: int
) -> None:
    engine = ENGINES[name]
    leaves = engine.draw(cell, "one-thread")
    for part in leaves:
        if part in engine.carried(leaves) or part.startswith("input"):
            leaves[part] = leaves[part][:rows]
    y, *last = engine.call(cell, engine.steps(leaves, 0, steps), "cpu")
    assert y.shape[:2] == (rows, steps)
    assert all(
        torch.equal(one, leaves[n]) for n, one in zip(engine.carried(leaves), last, strict=True)
    )


@pytest.mark.parametrize(("name", "cell"), [("dense", "tanh"), ("tape", "full")])
def test_a_second_derivative_is_refused(name: str, cell: str) -> None:
    engine = ENGINES[name]
    leaves = engine.draw(cell, "one-thread")
    y, *_ = engine.call(cell, leaves, "cpu")
    matrix = leaves["matrix" if name == "dense" else "W_h"]
    (first,) = torch.autograd.grad(y.square().sum(), [matrix], create_graph=True)
    said = f"elman::{name}_backward: kernels have no second derivative"
    with pytest.raises(UserError, match=said):
        torch.autograd.grad(first.sum(), [matrix])


@CELLS_AND_SIZES
def test_nothing_is_written_behind_the_workspace(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, cell: str, size: str
) -> None:
    """The original's workspaces were too small for some sizes (vector-state specification 5)."""
    guards: list[Tensor] = []
    leaves = engine.draw(cell, size)

    def run(self, function) -> None:  # type: ignore[no-untyped-def]
        like = next(iter(leaves.values())).detach()
        asked = self.compiled.workspace(self.args) // like.element_size()
        whole = like.new_full((asked + 4096,), 7.0)
        self.point(workspace=whole)
        function(self.args)
        guards.append(whole[asked:])

    monkeypatch.setattr(engine.cpu._KernelCall, "run", run)
    engine.everything(cell, leaves, "cpu")
    assert len(guards) == 2
    assert all(bool((guard == 7).all()) for guard in guards)
