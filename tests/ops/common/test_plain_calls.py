"""Calls without an operator: the same bits and the same gradients as the operator's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import elman.layers
from elman.base.errors import UserError
from elman.ops.channel import op as channel_op
from elman.ops.channel.custom_op import CHANNEL
from elman.ops.common.operator import Operator
from elman.ops.common.transforms import operators_are_seen
from elman.ops.dense.custom_op import DENSE
from elman.ops.dense.op import dense_recurrence
from elman.ops.matrix_state import op as matrix_op
from elman.ops.matrix_state.custom_op import MATRIX_STATE
from elman.ops.matrix_state.slots.custom_op import SLOTS
from elman.ops.matrix_state.slots.op import slot_recurrence
from elman.ops.tape.custom_op import TAPE
from elman.ops.tape.op import dual_memory

Run = Callable[..., tuple[Tensor, Tensor]]


@dataclass
class Engine:
    """An engine with a small call of it.

    Args:
        name: Of its operator.
        operator: Its operator.
        run: Computes output and last state from the tensors below.
        tensors: Source, parameters and first state.
        saved: Number of a tensor that the backward pass reads.
    """

    name: str
    operator: Operator[Any, Any]
    run: Run
    tensors: list[Tensor]
    saved: int = 0

    def results(self, reached: str = "out and last", run: Run | None = None) -> list[Tensor]:
        """Return outputs and gradients; ``reached`` outputs have a gradient."""
        outputs = dict(zip(("out", "last"), (run or self.run)(*self.tensors), strict=True))
        chosen = [outputs[name] for name in reached.split(" and ")]
        leaves = [tensor for tensor in self.tensors if tensor.requires_grad]
        gradients = torch.autograd.grad(chosen, leaves, [out.sin() for out in chosen])
        return [out.detach() for out in outputs.values()] + list(gradients)


def matrix_engine() -> Engine:
    layer = elman.layers.E88(16, n_heads=2, n_state=4, use_gate=True, gate_activation="silu")
    plan = layer.plan

    def run(source: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(plan.parameter_names, rest[:-1], strict=True))
        return matrix_op.run(plan, [source], given, rest[-1], backend="cpu")

    shapes = [plan.parameter_shape(name) for name in plan.parameter_names]
    tensors = [(2, 35, sum(layer.rows.values())), *shapes, (2, 2, plan.rows, 4)]
    return Engine("elman::matrix_state", MATRIX_STATE, run, drawn(tensors))


def channel_engine() -> Engine:
    layer = elman.layers.E61(8)
    names, channels = list(layer.step_parameters()), layer.channels

    def run(source: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(names, rest[:-1], strict=True))
        return channel_op.run(layer.plan, [source], given, rest[-1], backend="cpu")

    tensors = [(2, 35, 2 * channels), *[(channels,)] * len(names), (2, channels)]
    return Engine("elman::channel", CHANNEL, run, drawn(tensors))


def dense_engine() -> Engine:
    def run(first: Tensor, second: Tensor, matrix: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        given = ([first, second], [matrix], [state])
        out, (last,) = dense_recurrence("mix", *given, backend="cpu")
        return out, last

    sequence = (2, 35, 8)
    return Engine("elman::dense", DENSE, run, drawn([sequence, sequence, (8, 8), (2, 8)]), saved=2)


def tape_engine() -> Engine:
    def run(
        x: Tensor, recurrent: Tensor, write: Tensor, tape: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = (x, recurrent, write, tape, state)
        out, last, _ = dual_memory(*given, write="full", backend="cpu")
        return out, last

    shapes = [(2, 35, 8), (8, 8), (8, 8), (2, 3, 8), (2, 8)]
    return Engine("elman::tape", TAPE, run, drawn(shapes), saved=4)


def slots_engine() -> Engine:
    def run(
        k: Tensor, q: Tensor, value: Tensor, row: Tensor, mix: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = {"k": k, "q": q, "input": value, "row": row}
        return slot_recurrence(given, mix, state, backend="cpu")

    wide, narrow = (2, 35, 1, 8), (2, 35, 1, 3)
    shapes = [wide, wide, narrow, narrow, (3, 3), (2, 1, 3, 8)]
    return Engine("elman::slots", SLOTS, run, drawn(shapes))


def drawn(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


ENGINES = [matrix_engine, channel_engine, dense_engine, tape_engine, slots_engine]


@pytest.fixture(params=ENGINES, ids=["matrix_state", "channel", "dense", "tape", "slots"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param()


class Names(TorchDispatchMode):
    """Notes the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_operator(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators be an error."""
    for name in ("_seen", "_seen_backward"):
        monkeypatch.delattr(engine.operator, name)


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


# ------------------------------------------------------------------------- the same results


@pytest.mark.parametrize("reached", ["out", "last", "out and last"])
def test_plain_calls_have_the_operators_bits(engine, reached) -> None:
    plain = engine.results(reached)
    with Names() as names:
        watched = engine.results(reached)
    assert names.seen >= {engine.name, f"{engine.name}_backward"}
    assert_same(plain, watched)


def nodes(tensor: Tensor) -> set[Any]:
    """Return the functions of autograd behind a tensor."""
    found, left = set(), [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [following for following, _ in node.next_functions]
    return found


def test_nobody_pays_for_an_operator_that_nobody_sees(engine, no_operator) -> None:
    out, last = engine.run(*engine.tensors)
    names = {type(node).__name__ for node in nodes(out)}
    assert f"{engine.operator.operator._name.title().replace('_', '')}Backward" in names
    assert names.isdisjoint({"_WatchedFunctionBackward"})
    engine.results()
    with torch.no_grad():
        assert not engine.run(*engine.tensors)[0].requires_grad
    with torch.inference_mode():
        assert_same(list(engine.run(*engine.tensors)), [out.detach(), last.detach()])


def test_without_gradients_nothing_is_saved(engine) -> None:
    wanted = [tensor.detach() for tensor in engine.run(*engine.tensors)]
    with torch.no_grad():
        assert_same(list(engine.run(*engine.tensors)), wanted)
    found = engine.run(*(tensor.detach() for tensor in engine.tensors))
    assert not any(tensor.requires_grad for tensor in found)
    assert_same(list(found), wanted)


def test_one_tensor_alone_may_have_a_gradient(engine) -> None:
    all_of_them = engine.results()[2:]
    for number, wanted in enumerate(all_of_them):
        for at, tensor in enumerate(engine.tensors):
            engine.tensors[at] = tensor.detach().requires_grad_(at == number)
        assert_same(engine.results()[2:], [wanted])


def test_a_call_computed_again_has_the_same_gradients(engine) -> None:
    """With the operator in one of the two passes, too: what they save is the same."""
    wanted = engine.results()

    def again(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return checkpoint(engine.run, *tensors, use_reentrant=False)

    assert_same(engine.results(run=again), wanted)

    def watched(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        with Names():
            return again(*tensors)

    assert_same(engine.results(run=watched), wanted)


def test_saved_tensors_are_the_operators(engine) -> None:
    def saved() -> list[tuple[torch.Size, int | None]]:
        found: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
            engine.run(*engine.tensors)
        given = {tensor.data_ptr() for tensor in engine.tensors}
        return [(t.shape, t.data_ptr() if t.data_ptr() in given else None) for t in found]

    plain = saved()
    with Names():
        assert plain == saved()


# ------------------------------------------------------------------------- the same refusals


def test_a_second_derivative_is_an_error(engine) -> None:
    out, _ = engine.run(*engine.tensors)
    (first,) = torch.autograd.grad(out.square().sum(), engine.tensors[:1], create_graph=True)
    with pytest.raises(UserError, match=r'no second derivative .*use backend="reference"'):
        first.sum().backward()


def test_a_tensor_that_was_changed_since_is_an_error(engine) -> None:
    changed = engine.tensors[engine.saved] = engine.tensors[engine.saved].detach().clone()
    out, _ = engine.run(*engine.tensors)
    changed.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_backward_pass_alone_may_be_watched(engine) -> None:
    wanted = engine.results("out")[2:]
    out, _ = engine.run(*engine.tensors)
    with Names() as names:
        found = torch.autograd.grad(out, engine.tensors, out.detach().sin())
    assert f"{engine.name}_backward" in names.seen
    assert_same(list(found), wanted)


# ------------------------------------------------------------------------- who sees operators


def test_autocast_on_a_cpu_widens_as_the_operator_does(engine) -> None:
    """By calling the operator, which has the rule."""
    wanted = [tensor.detach() for tensor in engine.run(*engine.tensors)]
    with torch.autocast("cpu", torch.bfloat16):
        assert operators_are_seen(engine.tensors)
        found = engine.results()
    assert_same(found[:2], wanted)
    assert_same(found, engine.results())


def test_a_compiled_call_is_one_graph_with_the_operator(engine) -> None:
    graphs: list[set[str]] = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    compiled = torch.compile(engine.run, fullgraph=True, backend=note)
    assert_same(engine.results(run=compiled), engine.results())
    (targets,) = graphs
    assert any(engine.name.replace("::", ".") in target for target in targets)


class Own(Tensor):
    """A class of tensors that may do anything with an operator."""


def test_tensors_of_another_class_or_device_have_operators() -> None:
    plain = torch.zeros(3)
    assert not operators_are_seen((plain, None, torch.nn.Parameter(plain)))
    assert operators_are_seen((plain, plain.as_subclass(Own)))
    assert operators_are_seen((torch.zeros(3, device="meta"),))
    with FakeTensorMode() as mode:
        assert operators_are_seen((plain,))
    assert operators_are_seen((mode.from_tensor(plain),))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_transforms_and_traces_have_operators() -> None:
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(operators_are_seen((x,)))
        return x.sum()

    torch.func.grad(look)(torch.zeros(3))
    torch.func.vmap(look)(torch.zeros(3, 2))
    torch.jit.trace(look, torch.zeros(3), check_trace=False)
    assert seen == [True] * 3
    look(torch.zeros(3))
    assert not seen[-1]
