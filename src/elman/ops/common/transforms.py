"""What PyTorch's transforms get from a kernel: the right numbers, or one line that refuses.

A kernel has a forward and a backward pass, and PyTorch's transforms ask for more. vmap runs it
once for each item. It has no forward-mode derivative and no second derivative: both are refused.
Without this module both would be zeros, without a word. Plain PyTorch has all of them, so whoever
can take another way asks :func:`transformed` first.

Every operator of this project is made by :func:`operator`. Every function of autograd around a
kernel is a :class:`KernelFunction`, or an :class:`OperatorFunction` beside an operator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.autograd import forward_ad

from elman.base.errors import UserError

_ELSE = 'use backend="reference", or "torch" for Llama'
_FORWARD = (
    "kernels have no forward-mode derivative (torch.func.jvp, jacfwd, torch.autograd.forward_ad)"
)
_SECOND = "kernels have no second derivative (create_graph=True, torch.func.hessian)"
_TRANSFORMS = "a package's kernels know no torch.func and no forward-mode derivative"
_BATCHED = "this kernel has no batched backward pass (is_grads_batched=True, vectorize=True)"

# What torch.autograd.grad(..., is_grads_batched=True) runs a backward pass under: an older vmap.
_BATCHED_GRADIENTS: Any = torch._C._parse_dispatch_key("VmapMode")

Values = Sequence[Any]
"""Arguments or results of an operator: tensors, lists of tensors, None, and constants."""
Lengths = tuple[int | None, ...]


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


# ------------------------------------------------------------------------- functions of autograd


class OperatorFunction(torch.autograd.Function):
    """An operator of :func:`operator` where nobody looks; its backward pass leaves refusals to it.

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
        read = _Read(ctx)
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


class _Read:
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


# ------------------------------------------------------------------------- operators


class _Gradient(NamedTuple):
    """How an operator is differentiated, as ``torch.library.register_autograd`` takes it."""

    backward: Callable[..., Any]
    setup_context: Callable[..., None]


_LIBRARY = torch.library.Library("elman", "FRAGMENT")
_GRADIENTS: dict[str, _Gradient] = {}
OPERATORS: dict[str, CustomOpDef] = {}
"""Every operator of this project, by its name without ``elman::``."""


def operator(
    name: str,
) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Return a decorator that makes a kernel's pass an operator ``elman::name``.

    It does what ``torch.library.custom_op`` does, for a pass that changes none of its arguments.
    vmap then works, and what cannot be differentiated is refused.

    Args:
        name: See above.
    """

    def made(run: Callable[..., Any]) -> CustomOpDef:
        made = torch.library.custom_op(f"elman::{name}", mutates_args=())(run)
        made.register_vmap(_one_by_one(made))
        with warnings.catch_warnings():
            # PyTorch's own rule drops tangents, and fails inside torch.func.grad.
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            rule = _rule(name)
            _LIBRARY.impl(name, rule, "Autograd", with_keyset=True, allow_override=True)
        _LIBRARY.impl(name, partial(_refuse_batch, name), "Batched")
        OPERATORS[name] = made
        return made

    return made


def register_gradient(
    name: str, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> None:
    """Say how an operator is differentiated; one without this refuses it.

    Args:
        name: As for :func:`operator`.
        backward: As ``torch.library.register_autograd`` takes it.
        setup_context: Likewise.
    """
    assert name in OPERATORS, name
    _GRADIENTS[name] = _Gradient(backward, setup_context)


def _one_by_one(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of vmap: one call for each item, and the results behind one another."""

    def rule(info: Any, in_dims: Values, *given: Any) -> tuple[Any, Any]:
        items = range(info.batch_size)
        found = [run(*_chosen(given, in_dims, item)) for item in items]
        if not isinstance(found[0], tuple):
            stacked = _stacked(found)
            return stacked, _zeros(stacked)
        results = tuple(_stacked(parts) for parts in zip(*found, strict=True))
        return results, tuple(map(_zeros, results))

    return rule


def _chosen(given: Values, dims: Values, item: int) -> list[Any]:
    """Return one item's arguments."""

    def chosen(one: Any, dim: Any) -> Any:
        if isinstance(one, (list, tuple)):
            return _chosen(one, dim, item) if isinstance(dim, (list, tuple)) else one
        return one if dim is None else one.select(dim, item)

    return [chosen(one, dim) for one, dim in zip(given, dims, strict=True)]


def _stacked(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], (list, tuple)):
        return [torch.stack(one) for one in zip(*parts, strict=True)]
    return torch.stack(tuple(parts))


def _zeros(one: Any) -> Any:
    return [0] * len(one) if isinstance(one, list) else 0


def _rule(name: str) -> Callable[..., Any]:
    """Return an operator's rule of autograd."""
    overload = getattr(torch.ops.elman, name).default

    def rule(keyset: Any, *given: Any) -> Any:
        refuse_tangents(f"elman::{name}", _flat(given))
        call = _Call(name, _lengths(given), partial(_below, overload, keyset))
        if not torch.is_grad_enabled() or not torch._C._any_requires_grad(*given):
            return call.run(given)
        with _single_level():
            function: Any = super(torch.autograd.Function, _Operator)
            found = function.apply(call, *_flat(given))
        results = tuple(_packed(found, call.found))
        return results if call.several else results[0]

    return rule


def _below(overload: Any, keyset: Any, given: Values) -> Any:
    """Run an operator below autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return overload.redispatch(keyset & torch._C._after_autograd_keyset, *given)


def _refuse_batch(name: str, *given: Any) -> NoReturn:
    _refuse(f"elman::{name}", _BATCHED)


def _single_level() -> AbstractContextManager[object]:
    """Return a context in which a rule may apply a function of autograd inside a transform."""
    if not torch._C._are_functorch_transforms_active():
        return nullcontext()
    from torch._functorch.utils import enable_single_level_autograd_function

    context: AbstractContextManager[object] = enable_single_level_autograd_function()
    return context


@dataclass
class _Call:
    """One call of an operator under autograd.

    Args:
        name: The operator's name.
        given: How many tensors each list among the arguments has; None where there is no list.
        run: Computes the results from the arguments.
        found: As ``given``, for the results, once they are there.
        several: Whether the operator has several results.
    """

    name: str
    given: Lengths
    run: Callable[[Values], Any]
    found: Lengths = ()
    several: bool = False


class _Operator(torch.autograd.Function):
    """An operator with its gradient: arguments and results without their lists."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *flat: Any) -> tuple[Tensor, ...]:
        given = _packed(flat, call.given)
        # PyTorch turns both off in here, but the transforms outside this one go on below.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            found = call.run(given)
        call.several = isinstance(found, tuple)
        results = found if call.several else (found,)
        call.found = _lengths(results)
        ctx.name, ctx.given, ctx.found = call.name, call.given, call.found
        if call.name in _GRADIENTS:
            _GRADIENTS[call.name].setup_context(ctx, tuple(given), found)
        return tuple(_flat(results))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        if ctx.name not in _GRADIENTS:
            _refuse(f"elman::{ctx.name}", _SECOND)
        found = _GRADIENTS[ctx.name].backward(ctx, *_packed(gradients, ctx.found))
        return None, *_flat(found)


def _lengths(values: Values) -> Lengths:
    return tuple(len(one) if isinstance(one, (list, tuple)) else None for one in values)


def _flat(values: Values) -> list[Any]:
    """Return values with those of lists one by one."""
    flat: list[Any] = []
    for one in values:
        flat.extend(one) if isinstance(one, (list, tuple)) else flat.append(one)
    return flat


def _packed(flat: Iterable[Any], lengths: Lengths) -> list[Any]:
    """Return values with the lists that :func:`_flat` took apart."""
    left = iter(flat)
    return [next(left) if n is None else list(islice(left, n)) for n in lengths]
