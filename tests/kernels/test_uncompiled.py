"""The decorators that keep torch.compile out do what PyTorch's own do, without importing Dynamo."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from elman.kernels.uncompiled import traced_as_constant, uncompiled

Decorator = Callable[[Any], Any]
SEEN: list[str] = []


def sine(x: Tensor) -> Tensor:
    """Return sin x; a helper that a function left alone calls."""
    return x.sin()


def compiled(decorate: Decorator, *, method: bool) -> tuple[Any, list[list[str]], list[Tensor]]:
    """Return counts and warnings, the graphs of a module around a decorated loop, gradients."""

    def loop(x: Tensor, times: int) -> Tensor:
        for _ in range(times):
            x = sine(x)
        return x

    class Inner(nn.Module):
        @decorate
        def run(self, x: Tensor, *, times: int) -> Tensor:
            return loop(x, times)

        def forward(self, x: Tensor) -> Tensor:
            return (self.run(x * 2, times=3) if method else alone(x * 2, 3)) + 1

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Inner(), Inner()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.first(x).cos())
            return y

    alone = decorate(loop)
    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        forward: Callable[..., Any] = graph.forward
        return forward

    torch._dynamo.reset()
    counters.clear()
    module, gradients = torch.compile(Outer(), backend=keep), []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for size in (3, 3, 4):
            x = torch.linspace(0, 1, size, requires_grad=True)
            module(x).sum().backward()
            gradients.append(x.grad)
    breaks, said = sum(counters["graph_break"].values()), {str(one.message) for one in warned}
    return (breaks, dict(counters["frames"]), said), graphs, gradients


@pytest.mark.parametrize("method", [False, True], ids=["function", "method"])
def test_graphs_break_around_it_as_around_pytorchs_own(method: bool) -> None:
    counts, graphs, gradients = compiled(uncompiled, method=method)
    wanted = compiled(torch.compiler.disable, method=method)
    assert (counts, graphs) == wanted[:2]
    assert counts[0] > 0
    assert not any("sin" in target for graph in graphs for target in graph)
    torch.testing.assert_close(gradients, wanted[2])


def test_it_stays_itself_and_bears_the_mark_of_pytorchs_own() -> None:
    def function(x: int) -> int:
        return x + 1

    assert uncompiled(function) is function
    assert function(1) == 2
    theirs = torch.compiler.disable(sine)
    assert theirs._torchdynamo_disable is function._torchdynamo_disable is True


def test_one_graph_is_refused_where_it_stands() -> None:
    @uncompiled
    def function(x: Tensor) -> Tensor:
        return x.sin()

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.compiler\.disable"):
        torch.compile(lambda x: function(x) + 1, fullgraph=True, backend="eager")(torch.ones(2))


def test_a_constant_is_asked_for_once_while_tracing() -> None:
    @traced_as_constant
    def machine() -> int:
        SEEN.append("asked")  # of a list that no graph can hold: subprocess, files
        return int(subprocess.call([sys.executable, "-c", ""])) + 3

    def plain() -> int:
        return 3

    torch._dynamo.reset()
    SEEN.clear()
    whole = torch.compile(lambda x: x * machine(), fullgraph=True, backend="eager")
    assert [whole(torch.ones(2)).tolist() for _ in range(3)] == [[3, 3]] * 3
    assert SEEN == ["asked"]
    theirs = torch.compiler.assume_constant_result(plain)
    assert {*vars(theirs)} == {*vars(machine)}
    assert vars(theirs) == vars(machine)


def test_layers_are_imported_and_run_without_dynamo() -> None:
    code = "import sys, torch, elman.layers\n"
    code += "elman.layers.E1(16)(torch.randn(1, 4, 16))[0].sum().backward()\n"
    code += "print('torch._dynamo' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180
    )
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr


def test_a_torch_without_these_names_decorates_by_itself(monkeypatch) -> None:
    names = "torch._C._dynamo.eval_frame"
    monkeypatch.setitem(sys.modules, names, types.ModuleType(names))

    def loop(x: Tensor) -> Tensor:
        return x.sin()

    decorated: Any = uncompiled(loop)
    assert decorated is not loop
    assert decorated._torchdynamo_disable
    assert torch.equal(decorated(torch.ones(2)), torch.ones(2).sin())
