"""An operator with a backward pass: one declaration, and the two ways in which a call runs.

Autograd, autocast, torch.compile and dispatch modes see PyTorch's custom operators. A custom
operator with gradients takes 200 to 300 us of Python for a call and its backward pass. A GPU
computes the result in the same time. So a call is an operator only where something looks at it. All
other calls run the same functions through a plain ``torch.autograd.Function``, with the same bits
and the same gradients.

:class:`Operator` makes both from one declaration: two NamedTuples, which are what a call reads and
what its backward pass reads, and functions of these two.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.autograd import forward_ad

from elman.ops.common.transforms import (
    OperatorFunction,
    apply,
    backward_is_plain,
    operators_are_seen,
    refuse_batched_gradients,
    refuse_second_derivative,
    refuse_tangents,
)

Call = TypeVar("Call", bound=tuple[Any, ...])
Saved = TypeVar("Saved", bound=tuple[Any, ...])
Values = Sequence[Any]
"""Arguments or results of an operator: tensors, lists of tensors, None, and constants."""
Lengths = tuple[int | None, ...]

INCOMING: Any = None
"""Stands among what a call saves for the gradient of a result, which comes in later."""
OPERATORS: dict[str, CustomOpDef] = {}
"""Every custom operator of this project, by its name without ``elman::``."""
_LIBRARY = torch.library.Library("elman", "FRAGMENT")
_SCHEMA_TYPES: dict[Any, str] = {
    str: "str",
    bool: "bool",
    float: "float",
    torch.dtype: "ScalarType",
    torch.dtype | None: "ScalarType?",
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    Sequence[Tensor]: "Tensor[]",
    list[Tensor]: "Tensor[]",
}
"""By the type of an argument or a result: its type in an operator's schema."""


class Operator(Generic[Call, Saved]):
    """The operator ``elman::name`` and that of its backward pass, ``elman::name_backward``.

    vmap runs both once for each item. What they cannot compute is refused: second derivatives,
    forward-mode derivatives and batches of gradients.

    Args:
        name: Name of the operator.
        call: What a call reads, in the order of the operator's arguments. A field ``keep`` says
            whether a backward pass follows.
        saved: What a backward pass reads, in the order of its operator's arguments. The first
            tensor that is saved is never None.
        forward: Computes the results of a call. It checks nothing.
        fake: Returns room for these results.
        save: Returns what a backward pass will read, of a call and its results, with
            :data:`INCOMING` for every field of ``incoming``.
        backward: Computes gradients in the order of ``gradients``; None where the argument is None.
        fake_backward: Returns room for these gradients.
        incoming: Fields of ``saved`` that are gradients of results, in the order of the results.
            :meth:`run` returns these results. The others are only kept for the backward pass.
        gradients: Fields of ``call`` that have a gradient; all lists have.
        check: Compares the tensors of an operator's call with what the kernels read.
        differentiate: Returns the gradients from what was saved and a function that runs
            ``backward``. Without it they are what this function returns.
        widens: Types of devices on which autocast widens what the operator reads.

    Attributes:
        named: Makes what ``forward`` returns of the results of the custom operator.
        operator: The custom operator.
        backward_operator: That of the backward pass, which nothing differentiates.
    """

    def __init__(
        self,
        name: str,
        call: type[Call],
        saved: type[Saved],
        *,
        forward: Callable[[Call], Values],
        fake: Callable[[Call], Values],
        save: Callable[[Call, Any], Saved],
        backward: Callable[[Saved], Values],
        fake_backward: Callable[[Saved], Values],
        incoming: Sequence[str],
        gradients: Sequence[str],
        check: Callable[[Call], None] | None = None,
        differentiate: Callable[[Saved, Callable[[Saved], Any]], Values] | None = None,
        widens: Sequence[str] = (),
    ) -> None:
        self.forward, self._save, self._backward = forward, save, backward
        self._differentiate = differentiate
        self._call, self._saved = _Fields(call), _Fields(saved, incoming)
        self._returned = len(incoming)
        self.named = getattr(get_type_hints(forward)["return"], "_make", tuple)
        self._gradients = self._call.tensors_of(gradients)
        names = list(get_type_hints(call))
        self._keep = names.index("keep") if "keep" in names else None
        # Profiles and printed graphs show the name of the function.
        self._function = _named(name.title().replace("_", ""), _Plain)
        self.operator = _register(name, call, forward, fake, check, self)
        self.backward_operator = _register(f"{name}_backward", saved, backward, fake_backward)
        self._seen, self._seen_backward = _overload(name), _overload(f"{name}_backward")
        for device in widens:
            self.operator.register_autocast(device, torch.float32)

    def run(self, call: Call) -> tuple[Any, ...]:
        """Return the first results of a call, by an operator only where it is seen."""
        # The compiler comes first, because it cannot trace the other questions.
        if torch.compiler.is_compiling():
            return tuple(self._seen(*call)[: self._returned])
        tensors = self._call.tensors(call)
        if operators_are_seen(tensors):
            return tuple(self._seen(*call)[: self._returned])
        if self._keep is None:
            keep = torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors)
        else:
            keep = call[self._keep]
        if keep:
            results: tuple[Any, ...] = apply(self._function, self, call, *tensors)
            return results
        return tuple(self.forward(call)[: self._returned])

    def save(self, ctx: Any, call: Call, results: Any) -> None:
        """Let a function of autograd keep what its backward pass reads."""
        saved = self._save(call, results)
        ctx.operator, ctx.rest = self, self._saved.rest(saved)
        ctx.save_for_backward(*self._saved.tensors(saved))
        ctx.set_materialize_grads(False)

    def differentiate(
        self, ctx: Any, incoming: Values, *, plain: bool
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors of a call, those of lists one by one.

        Args:
            ctx: As :meth:`save` left it.
            incoming: Gradients of the results, in their order.
            plain: Whether a plain call may compute them, where no operator is seen.
        """
        tensors, incoming = ctx.saved_tensors, incoming[: self._returned]
        saved: Any = self._saved.made(ctx.rest, incoming, tensors)
        plain = plain and backward_is_plain((*tensors, *incoming))
        run = self._backward if plain else self._backward_as_operator
        found = run(saved) if self._differentiate is None else self._differentiate(saved, run)
        flat: tuple[Tensor | None, ...] = self._gradients(found)
        if plain:
            return flat
        # An operator returns a tensor without numbers where the argument is None.
        needed = ctx.needs_input_grad[-len(flat) :]
        return tuple(one if needs else None for one, needs in zip(flat, needed, strict=True))

    def _backward_as_operator(self, saved: Saved) -> Values:
        gradients: Values = self._seen_backward(*saved)
        return gradients


class _Plain(OperatorFunction):
    """A call of an operator that nothing looks at. What is kept stays inside."""

    @staticmethod
    def forward(ctx: Any, operator: Operator[Any, Any], call: Any, *tensors: Any) -> Values:
        results = operator.forward(call)
        operator.save(ctx, call, results)
        return tuple(results[: operator._returned])

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.operator.differentiate(ctx, incoming, plain=True)


def _named(name: str, function: type[_Plain]) -> type[_Plain]:
    """Return a function of autograd with a name of its own, which profiles show."""
    return types.new_class(name, (function,), exec_body=lambda own: own.update(__module__=__name__))


class _Fields:
    """How tensors are taken out of a NamedTuple and put back.

    A loop over the fields takes 5 us, a tenth of a call. So these functions are expressions written
    for the NamedTuple, as the functions of a NamedTuple are themselves.

    Args:
        of: The NamedTuple.
        incoming: Its fields that are neither saved nor constants.

    Attributes:
        tensors: Returns the tensors of its values, those of lists one by one.
        rest: Returns the constants, and how many tensors each list has.
        made: Returns the NamedTuple of this rest, the incoming values and the tensors.
    """

    def __init__(self, of: Any, incoming: Sequence[str] = ()) -> None:
        kinds = {name: _SCHEMA_TYPES[kind] for name, kind in get_type_hints(of).items()}
        tensors, rest = "", ""
        offset, n_tensors, n_rest, made = "0", 0, 0, ""
        self._names: list[tuple[str, bool]] = []
        for at, (name, kind) in enumerate(kinds.items()):
            if name in incoming:
                made += f"incoming[{incoming.index(name)}], "
            elif kind == "Tensor[]":
                begin, end = f"{offset} + {n_tensors}", f"{offset} + rest[{n_rest}] + {n_tensors}"
                tensors, rest = f"{tensors}*values[{at}], ", f"{rest}len(values[{at}]), "
                made += f"tensors[{begin} : {end}], "
                offset, n_rest = f"{offset} + rest[{n_rest}]", n_rest + 1
            elif kind.startswith("Tensor"):
                tensors += f"values[{at}], "
                made += f"tensors[{offset} + {n_tensors}], "
                n_tensors += 1
            else:
                rest += f"values[{at}], "
                made += f"rest[{n_rest}], "
                n_rest += 1
            if name not in incoming and kind.startswith("Tensor"):
                self._names.append((name, kind == "Tensor[]"))
        self.tensors: Callable[[Values], tuple[Any, ...]] = _written(f"lambda values: ({tensors})")
        self.rest: Callable[[Values], tuple[Any, ...]] = _written(f"lambda values: ({rest})")
        self.made: Callable[[Values, Values, Values], Any] = _written(
            f"lambda rest, incoming, tensors: make(({made}))", make=of._make
        )

    def tensors_of(self, names: Sequence[str]) -> Callable[[Values], tuple[Any, ...]]:
        """Return what takes values of some fields apart, in the order of all tensors' fields.

        Args:
            names: The fields whose values there are, in their order. The others have None.
        """
        parts = (
            f"{'*' if is_list else ''}values[{names.index(name)}], " if name in names else "None, "
            for name, is_list in self._names
        )
        taken: Callable[[Values], tuple[Any, ...]] = _written(f"lambda values: ({''.join(parts)})")
        return taken


def _written(expression: str, **names: Any) -> Any:
    """Return the function that an expression of this file is."""
    return eval(expression, names)


# ------------------------------------------------------------------------- custom operators


def _register(
    name: str,
    call: Any,
    run: Callable[[Any], Values],
    fake: Callable[[Any], Values],
    check: Callable[[Any], None] | None = None,
    gradient: Operator[Any, Any] | None = None,
) -> CustomOpDef:
    """Make a pass a custom operator ``elman::name``.

    It does what ``torch.library.custom_op`` does, for a pass that changes none of its arguments.

    Args:
        name: See above.
        call: The NamedTuple of its arguments.
        run: The pass.
        fake: Returns room for its results.
        check: As for :class:`Operator`.
        gradient: How it is differentiated; one without this refuses it.
    """

    def checked(*given: Any) -> Any:
        values = call._make(given)
        if check is not None:
            check(values)
        return _complete(run(values))

    schema = f"{_schema_of_arguments(call)} -> {_schema_of_results(run)}"
    made = torch.library.custom_op(f"elman::{name}", checked, mutates_args=(), schema=schema)
    made.register_fake(lambda *given: _complete(fake(call._make(given))))
    made.register_vmap(_one_by_one(made))
    with warnings.catch_warnings():
        # PyTorch's own rule drops tangents, and fails inside torch.func.grad.
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        rule = _rule(name, call, gradient)
        _LIBRARY.impl(name, rule, "Autograd", with_keyset=True, allow_override=True)
    _LIBRARY.impl(name, lambda *_: refuse_batched_gradients(f"elman::{name}"), "Batched")
    OPERATORS[name] = made
    return made


def _overload(name: str) -> Any:
    return getattr(torch.ops.elman, name).default


def _schema_of_arguments(call: Any) -> str:
    hints = get_type_hints(call)
    return f"({', '.join(f'{_SCHEMA_TYPES[kind]} {name}' for name, kind in hints.items())})"


def _schema_of_results(run: Callable[[Any], Values]) -> str:
    returned = get_type_hints(run)["return"]
    if returned in _SCHEMA_TYPES:
        return _SCHEMA_TYPES[returned]
    several = get_type_hints(returned).values() if hasattr(returned, "_fields") else None
    # A gradient that is None where its argument is None has a tensor in its place; see _complete.
    kinds = (_SCHEMA_TYPES[kind].rstrip("?") for kind in several or get_args(returned))
    return f"({', '.join(kinds)})"


def _complete(results: Any) -> Any:
    """Return results with a tensor of no numbers for None, which no operator returns."""
    if not isinstance(results, tuple):
        return results
    if all(one is not None for one in results):
        return tuple(results)
    like = next(one for one in _flat(results) if one is not None)
    return tuple(like.new_empty(0) if one is None else one for one in results)


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


def _rule(name: str, call: Any, gradient: Operator[Any, Any] | None) -> Callable[..., Any]:
    """Return an operator's rule of autograd."""
    overload, fields = _overload(name), _Fields(call)

    def rule(keyset: Any, *given: Any) -> Any:
        tensors = fields.tensors(given)
        refuse_tangents(f"elman::{name}", tensors)
        run = partial(_below, overload, keyset)
        if not torch.is_grad_enabled() or not torch._C._any_requires_grad(*given):
            return run(*given)
        watched = _Watched(f"elman::{name}", gradient, run)
        with _single_level():
            function: Any = super(torch.autograd.Function, _WatchedFunction)
            found = function.apply(watched, call._make(given), *tensors)
        results = tuple(_packed(found, watched.lengths))
        return results if watched.several else results[0]

    return rule


def _below(overload: Any, keyset: Any, *given: Any) -> Any:
    """Run an operator below autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return overload.redispatch(keyset & torch._C._after_autograd_keyset, *given)


def _single_level() -> AbstractContextManager[object]:
    """Return a context in which a rule may apply a function of autograd inside a transform."""
    if not torch._C._are_functorch_transforms_active():
        return nullcontext()
    from torch._functorch.utils import enable_single_level_autograd_function

    context: AbstractContextManager[object] = enable_single_level_autograd_function()
    return context


@dataclass
class _Watched:
    """One call of a custom operator under autograd.

    Args:
        name: The operator's name.
        gradient: How it is differentiated, or None.
        run: Computes the results from the arguments.
        lengths: How many tensors each list among the results has, once they are there; None where
            there is no list.
        several: Whether the operator has several results.
    """

    name: str
    gradient: Operator[Any, Any] | None
    run: Callable[..., Any]
    lengths: Lengths = ()
    several: bool = False


class _WatchedFunction(torch.autograd.Function):
    """A custom operator with its gradient: arguments and results without their lists."""

    @staticmethod
    def forward(ctx: Any, watched: _Watched, call: Any, *tensors: Any) -> tuple[Tensor, ...]:
        # PyTorch turns both off in here, but the transforms outside this one go on below.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            found = watched.run(*call)
        watched.several = isinstance(found, tuple)
        results = found if watched.several else (found,)
        watched.lengths = _lengths(results)
        ctx.name, ctx.lengths, ctx.operator = watched.name, watched.lengths, watched.gradient
        if watched.gradient is not None:
            watched.gradient.save(ctx, call, watched.gradient.named(found))
        return tuple(_flat(results))

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        if ctx.operator is None:
            refuse_second_derivative(ctx.name)
        packed = _packed(incoming, ctx.lengths)
        return None, None, *ctx.operator.differentiate(ctx, packed, plain=False)


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
