"""No operator and no function of autograd is left without the rules of transforms."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import elman.ops
from elman.base.errors import UserError
from elman.ops.common import packages
from elman.ops.common.operator import INCOMING, OPERATORS, Operator
from elman.ops.common.transforms import KernelFunction, OperatorFunction

for _module in pkgutil.walk_packages(elman.ops.__path__, "elman.ops."):
    if ".triton." not in _module.name:  # Triton may be missing
        importlib.import_module(_module.name)

DIFFERENTIABLE = {"_ShiftedSum", "_CutSum", "_UnitLowerInverse", "_SiluLinear", "_Cast"}
"""Functions of plain PyTorch, which every transform passes: the table of layers has them."""


def subclasses(of: type) -> set[type]:
    below = {one for child in of.__subclasses__() for one in {child} | subclasses(child)}
    return {one for one in below if one.__module__.startswith("elman.ops.")}


def test_every_operator_has_the_rules() -> None:
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("elman::")}
    assert names == {f"elman::{name}" for name in OPERATORS}
    assert len(names) >= 14


def test_every_function_of_autograd_has_the_rules() -> None:
    found = subclasses(torch.autograd.Function)
    own = {one.__name__ for one in found if not issubclass(one, OperatorFunction)}
    # Two never run under a transform: padding.py then leaves products as they are (_Filled), and
    # the language model takes the loss of whole logits (_InChunks).
    assert own == DIFFERENTIABLE | {"_WatchedFunction", "_Last", "_Filled", "_InChunks"}
    kernels = {one.__name__ for one in subclasses(KernelFunction)}
    assert kernels >= {"_Conv", "_Gate", "_SwiGLU", "_Turn", "_Biased", "_Normalized", "_Into"}
    beside = {one.__name__ for one in found if issubclass(one, OperatorFunction)} - kernels
    assert beside == {"KernelFunction", "OperatorFunction", "_Plain"} | {
        name.title().replace("_", "") for name in OPERATORS if not name.endswith("_backward")
    }


def stand_in(argument: Any, tensor: Tensor) -> Any:
    """Return a value for an argument of an operator, which no kernel will read."""
    kind = str(argument.type)
    if "List[Tensor]" in kind or "List[Optional[Tensor]]" in kind:
        return [tensor]
    if "Tensor" in kind:
        return tensor
    return {"str": "cuda", "bool": True, "int": 1, "float": 1.0, "Optional[int]": 1}[kind]


@pytest.mark.parametrize("name", list(OPERATORS))
def test_no_operator_drops_a_tangent_whatever_its_backend(name: str) -> None:
    schema = getattr(torch.ops.elman, name).default._schema
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        given = [stand_in(argument, dual) for argument in schema.arguments]
        with pytest.raises(UserError, match=f"elman::{name}: kernels have no forward-mode"):
            OPERATORS[name](*given)


class Cube(NamedTuple):
    tensors: list[Tensor]
    scale: float


class Saved(NamedTuple):
    gradient: Tensor
    copies: list[Tensor]
    first: Tensor
    scale: float


def cube(call: Cube) -> tuple[Tensor, list[Tensor]]:
    """Return the cube of the first tensor, scaled, and copies of all."""
    return call.tensors[0] ** 3 * call.scale, [one.clone() for one in call.tensors]


def cube_backward(saved: Saved) -> list[Tensor]:
    """Return the gradients of all tensors."""
    first = saved.gradient * 3 * saved.first**2 * saved.scale + saved.copies[0]
    return [first, *(one.clone() for one in saved.copies[1:])]


def cube_gradients(saved: Saved, run: Callable[[Saved], Any]) -> list[Any]:
    """Return the gradients of the only list, with zeros for copies that nobody reads."""
    copies = [torch.zeros_like(saved.first) if one is None else one for one in saved.copies]
    return [run(saved._replace(copies=copies))]


cubed = Operator(
    "test_cubed",
    Cube,
    Saved,
    forward=cube,
    fake=cube,
    save=lambda call, results: Saved(INCOMING, INCOMING, call.tensors[0], call.scale),
    backward=cube_backward,
    fake_backward=cube_backward,
    incoming=("gradient", "copies"),
    gradients=("tensors",),
    differentiate=cube_gradients,
).operator


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Any:
    yield
    for name in ("test_cubed", "test_cubed_backward"):
        OPERATORS.pop(name)


X, W = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)


def summed(x: Tensor, w: Tensor) -> Tensor:
    cube, copies = cubed([x, w], 2.0)
    return cube.sum() + (copies[1] * 5).sum()


def test_a_new_operator_has_gradients_and_vmap_for_free() -> None:
    dx, dw = func.grad(summed, (0, 1))(X, W)
    torch.testing.assert_close(dx, 6 * X**2)
    torch.testing.assert_close(dw, torch.full_like(W, 5))
    rows = func.vmap(func.grad(summed), (0, None))(X, W[0])
    torch.testing.assert_close(rows, 6 * X**2)
    whole = func.jacrev(lambda x: cubed([x, W[0]], 2.0)[0])(X[0])
    torch.testing.assert_close(whole, torch.diag(6 * X[0] ** 2))


def leaf() -> Tensor:
    return X.clone().requires_grad_()


def twice() -> None:
    x = leaf()
    (first,) = torch.autograd.grad(summed(x, W), x, create_graph=True)
    first.sum().backward()


def in_batches() -> None:
    x = leaf()
    y = cubed([x, W], 2.0)[0]
    torch.autograd.grad(y, x, torch.ones(2, *y.shape), is_grads_batched=True)


@pytest.mark.parametrize(
    "refused",
    [
        twice,
        in_batches,
        lambda: func.jvp(lambda x: summed(x, W), (X,), (X,)),
        lambda: func.hessian(lambda x: summed(x, W))(X),
        lambda: func.jacrev(func.jacrev(lambda x: summed(x, W)))(X),
        lambda: func.jvp(func.grad(lambda x: summed(x, W)), (X,), (X,)),
        lambda: func.jvp(lambda x: func.vmap(lambda r: summed(r, r))(x), (X,), (X,)),
    ],
)
def test_a_new_operator_refuses_the_rest(refused: Any) -> None:
    with pytest.raises(UserError, match=r'elman::test_cubed.*use backend="reference"'):
        refused()


class Squared(KernelFunction):
    """A kernel that PyTorch cannot look into: y = x^2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(2 * x.detach().numpy() * gradient.detach().numpy())


def test_a_constant_gradient_hides_no_second_derivative() -> None:
    """once_differentiable of PyTorch gives zero here, since the incoming gradient is constant."""
    x = leaf()
    (first,) = torch.autograd.grad(Squared.apply(x).sum() + x.sum(), x, create_graph=True)
    with pytest.raises(UserError, match="Squared: kernels have no second derivative"):
        torch.autograd.grad(first.sum(), x, allow_unused=True)
    twice_read = checkpoint(Squared.apply, x, use_reentrant=False)
    (first,) = torch.autograd.grad(twice_read.sum(), x, create_graph=True)
    torch.testing.assert_close(first.detach(), 2 * X)


def test_tangents_and_batches_of_gradients_are_refused() -> None:
    x = leaf()
    with pytest.raises(UserError, match="no batched backward pass"):
        torch.autograd.grad(Squared.apply(x), x, torch.ones(2, 3, 4), is_grads_batched=True)
    with forward_ad.dual_level():
        with pytest.raises(UserError, match="no forward-mode derivative"):
            Squared.apply(forward_ad.make_dual(X, X))
        y = Squared.apply(x)
        with pytest.raises(UserError, match="no forward-mode derivative"):
            torch.autograd.grad(y, x, forward_ad.make_dual(X, X))


def test_kernels_of_a_package_refuse_what_they_cannot_know(monkeypatch) -> None:
    class Hidden(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.detach() * 2)
        backward = staticmethod(lambda ctx, g: g.detach() * 2)

    module = SimpleNamespace(scan=lambda x: (Hidden.apply(x), None))
    monkeypatch.setattr(packages, "import_kernels", lambda *_: module)
    scan = packages.package_kernels("fla", "ops.scan").scan
    x = leaf()
    torch.testing.assert_close(torch.autograd.grad(scan(x)[0].sum(), x)[0], torch.full_like(X, 2))
    with pytest.raises(UserError, match="fla: scan: kernels have no second derivative"):
        torch.autograd.grad(scan(x)[0].sum(), x, create_graph=True)
    for transform in (func.grad, func.vmap, lambda run: func.jvp(run, (X,), (X,))):
        with pytest.raises(UserError, match=r"fla: scan: a package's kernels know no torch\.func"):
            transform(lambda x: scan(x)[0].sum())(X)
