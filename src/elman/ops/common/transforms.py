"""Who looks at a call of a kernel, and what PyTorch's transforms get: right numbers or a refusal.

A kernel has a forward and a backward pass, and PyTorch's transforms ask for more. It has no
forward-mode derivative and no second derivative: both are refused in one line. Without this module
both would be zeros, without a word. Plain PyTorch has all of them, so whoever can take another way
asks :func:`transformed` first.

Every function of autograd around a kernel is a :class:`KernelFunction`, or the
:class:`OperatorFunction` of an :class:`elman.ops.common.operator.Operator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from elman.base.errors import UserError

_ELSE = 'use backend="reference", or "torch" for GRU, LSTM and Llama'
_FORWARD = (
    "kernels have no forward-mode derivative (torch.func.jvp, jacfwd, torch.autograd.forward_ad)"
)
_SECOND = "kernels have no second derivative (create_graph=True, torch.func.hessian)"
_TRANSFORMS = "a package's kernels know no torch.func and no forward-mode derivative"
_BATCHED = "this kernel has no batched backward pass (is_grads_batched=True, vectorize=True)"

# What torch.autograd.grad(..., is_grads_batched=True) runs a backward pass under: an older vmap.
_BATCHED_GRADIENTS: Any = torch._C._parse_dispatch_key("VmapMode")

_PLAIN = frozenset({Tensor, Parameter, type(None)})


def transformed() -> bool:
    """Return whether a transform of torch.func or forward-mode differentiation is active.

    Never while torch.compile traces: it cannot trace the question.
    """
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def backward_is_seen() -> bool:
    """Return whether anybody differentiates or transforms the backward pass that runs now."""
    return torch.is_grad_enabled() or transformed() or _batched()


def _batched() -> bool:
    """Return whether vmap runs a backward pass for several gradients at once."""
    if torch.compiler.is_compiling():
        return False
    included = torch._C._dispatch_tls_is_dispatch_key_included
    return torch._C._are_functorch_transforms_active() or included(_BATCHED_GRADIENTS)


def keeps(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether a backward pass may follow a call on tensors.

    Args:
        tensors: What the call reads.
    """
    if not torch.is_grad_enabled():
        return False
    # A tensor that vmap has wrapped does not say what the transform around it wants.
    return any(one is not None and one.requires_grad for one in tensors) or transformed()


# ------------------------------------------------------------------------- who sees operators


def operators_are_seen(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a call on tensors has to be an operator.

    It has to where something looks at it (see :func:`watched`), where the tensors lie on a device
    without kernels, and where autocast on a CPU widens them.

    Args:
        tensors: The tensors of the call, all on the device of the first; None is no tensor.
    """
    if watched(tensors):
        return True
    first = tensors[0]
    assert first is not None
    return not first.is_cuda and (not first.is_cpu or torch.is_autocast_enabled("cpu"))


def backward_is_plain(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a plain call may compute a backward pass on tensors.

    It may not where it has to be an operator, and where somebody differentiates it again: then the
    operator says that it has no derivative.

    Args:
        tensors: As for :func:`operators_are_seen`.
    """
    return not backward_is_seen() and not operators_are_seen(tensors)


def watched(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether anything looks at the operators of a call on tensors.

    This is so while torch.compile, torch.export or torch.jit.trace traces, while a dispatch mode
    counts or replaces operators, while a transform of torch.func or forward-mode differentiation is
    active, and for tensors of a class of their own, such as fake tensors.
    """
    # The compiler comes first, because torch.compile cannot trace the other questions.
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or not _PLAIN.issuperset(map(type, tensors))
    )


def in_a_cuda_kernel(
    backend: str, tensors: Sequence[Tensor], dtypes: Collection[torch.dtype]
) -> bool:
    """Return whether a kernel without an operator computes a call; others see PyTorch's operators.

    Args:
        backend: Name of the layer's backend; ``cuda`` has kernels.
        tensors: The tensors of the call.
        dtypes: Those that the kernel reads.
    """
    return (
        backend == "cuda"
        and not watched(tensors)
        and all(one.dtype in dtypes and one.numel() for one in tensors)
    )


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a function of autograd in a call that nothing looks at (see :func:`watched`).

    ``Function.apply`` first looks for wrappers of torch.func's transforms, which takes 2 us. For a
    function with a ``setup_context`` it also reads the signature, 25 us. Neither is needed here.
    """
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


# ------------------------------------------------------------------------- refusals


def _refuse(name: str, why: str) -> NoReturn:
    raise UserError(f"{name}: {why}; {_ELSE}")


def refuse_transforms(name: str) -> None:
    """Raise a UserError if a transform of torch.func or forward-mode differentiation is active.

    Args:
        name: The kernel, for people.
    """
    if transformed():
        _refuse(name, _TRANSFORMS)


def refuse_backward(name: str) -> None:
    """Raise a UserError if a backward pass that runs now is transformed or differentiated.

    Args:
        name: The kernel, for people.
    """
    refuse_transforms(name)
    if torch.is_grad_enabled():
        _refuse(name, _SECOND)
    if _batched():
        _refuse(name, _BATCHED)


def refuse_tangents(name: str, tensors: Iterable[Any]) -> None:
    """Raise a UserError if a tensor has a tangent, which a kernel would drop.

    Args:
        name: The kernel, for people.
        tensors: What it reads; whatever is no tensor has none.
    """
    if forward_ad._current_level < 0:
        return
    for one in tensors:
        if isinstance(one, Tensor) and forward_ad.unpack_dual(one).tangent is not None:
            _refuse(name, _FORWARD)


def refuse_second_derivative(name: str) -> NoReturn:
    """Raise a UserError: a kernel's backward pass has no derivative.

    Args:
        name: The kernel, for people.
    """
    _refuse(name, _SECOND)


def refuse_batched_gradients(name: str) -> NoReturn:
    """Raise a UserError: a kernel computes no batch of gradients at once.

    Args:
        name: The kernel, for people.
    """
    _refuse(name, _BATCHED)


# ------------------------------------------------------------------------- functions of autograd


class OperatorFunction(torch.autograd.Function):
    """A custom operator where nobody looks; its backward pass leaves refusals to the operator.

    A backward pass that somebody looks at, or whose gradient is to have one, calls an operator.
    """

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        """Refuse forward-mode differentiation."""
        _refuse("a layer's kernel", _FORWARD)


class KernelFunction(OperatorFunction):
    """A function of autograd whose passes no transform sees into: kernels, and casts in place.

    A gradient of its gradient is refused. ``once_differentiable`` of PyTorch looks only at the
    gradients that come in: where these are constants, it returns a second derivative of zero.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        name = f"{cls.__module__.removeprefix('elman.ops.')}.{cls.__name__}"
        cls.backward = staticmethod(_once(name, cls.backward))  # type: ignore[method-assign]


def _once(name: str, backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward pass whose results cannot be differentiated, and say so if they are."""

    @wraps(backward)
    def refusing(ctx: Any, *gradients: Any) -> Any:
        if not backward_is_seen():
            return backward(ctx, *gradients)
        refuse_tangents(name, gradients)
        if _batched():
            _refuse(name, _BATCHED)
        read = SavedOnce(ctx)
        with torch.no_grad():
            found = backward(read, *gradients)
        if not torch.is_grad_enabled():
            return found
        many = found if isinstance(found, tuple) else (found,)
        of = [one for one in (*read.saved_tensors, *gradients) if one is not None]
        given = [one for one in many if one is not None]
        marked = iter(_Last.apply(name, len(of), *of, *given))  # type: ignore[no-untyped-call]
        many = tuple(None if one is None else next(marked) for one in many)
        return many if isinstance(found, tuple) else many[0]

    return refusing


class SavedOnce:
    """The context of a backward pass, whose saved tensors are read once: checkpoints allow no more.

    Args:
        ctx: The context.
    """

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors: tuple[Tensor | None, ...] = ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Last(torch.autograd.Function):
    """Gradients as they are, made of tensors whose share in them is refused."""

    @staticmethod
    def forward(ctx: Any, name: str, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        return tuple(gradient.view_as(gradient) for gradient in tensors[n:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        _refuse(ctx.name, _SECOND)
