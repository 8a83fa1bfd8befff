"""Linear maps of the layers, which cast all weights of a model in one operation.

Autocast casts weights one by one. Every fp32 weight then costs two launches a step: one casts it,
and one casts its gradient back. On a slow host a launch takes as long as a GPU takes for a small
product. Here a pass through a model begins with one operation that casts every weight that the pass
before it read, and one operation casts their gradients back. Bits and gradients are autocast's own.

Shape legend: b batch, t time, i input channels, o output channels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.ops.common.padding import fill_of, filled_weight, is_padded, room_for
from elman.ops.common.precision import cast, compute_dtype
from elman.ops.common.transforms import backward_is_seen, watched

_Copies = dict[int, tuple[nn.Parameter, Tensor]]


def linear(x_bti: Tensor, weight_oi: Tensor, bias_o: Tensor | None = None) -> Tensor:
    """Return x W^T + b [..., o], as :func:`torch.nn.functional.linear` does.

    To the bit, but where zeros fill the factors up: then the same sums, perhaps in another order,
    and the output is a view of wider rows.

    Args:
        x_bti: Input, any leading axes.
        weight_oi: W; within :meth:`Weights.cast` its copy is read.
        bias_o: b, or None.
    """
    if is_padded(x_bti, weight_oi):
        return _padded(x_bti, weight_oi, bias_o)[..., : len(weight_oi)]
    return _plain(x_bti, weight_oi, bias_o)


def padded_linear(x_bti: Tensor, weight_oi: Tensor, bias_o: Tensor | None = None) -> Tensor:
    """Return :func:`linear`, on a GPU perhaps with columns of zeros behind it, up to 7.

    Who splits the output anyway lets the zeros be a last piece. The gradient then has their width,
    too, so that nothing copies it for its products.
    """
    product = _padded if is_padded(x_bti, weight_oi) else _plain
    return product(x_bti, weight_oi, bias_o)


def _plain(x_bti: Tensor, weight_oi: Tensor, bias_o: Tensor | None) -> Tensor:
    weight_oi = narrow(weight_oi)
    if bias_o is None and (few := _thread.few_rows) is not None and few.fits(x_bti, weight_oi):
        y_bto: Tensor = few.row_product(x_bti, weight_oi)
        return y_bto
    return functional.linear(x_bti, weight_oi, bias_o)


def _padded(x_bti: Tensor, weight_oi: Tensor, bias_o: Tensor | None) -> Tensor:
    if bias_o is not None:
        bias_o = functional.pad(bias_o, (0, fill_of(len(weight_oi))))
    return functional.linear(*padded_factors(x_bti, weight_oi), bias_o)


def padded_factors(x_bti: Tensor, weight_oi: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of a product that is padded, in its dtype and filled up with zeros."""
    copy_oi, dtype = _copy_of(weight_oi, filled=True), compute_dtype(x_bti, weight_oi.dtype)
    if copy_oi.shape == weight_oi.shape:
        copy_oi = filled_weight(copy_oi, dtype)
    if fill := fill_of(x_bti.shape[-1]):
        x_bti = functional.pad(cast(x_bti, compute_dtype(x_bti, x_bti.dtype)), (0, fill))
    return x_bti, copy_oi


def narrow(weight_oi: Tensor) -> Tensor:
    """Return a weight's copy in autocast's dtype if there is one, else the weight."""
    copy_oi = _copy_of(weight_oi)
    if copy_oi is weight_oi or copy_oi.shape == weight_oi.shape:
        return copy_oi
    return copy_oi[: weight_oi.shape[0], : weight_oi.shape[1]]


def _copy_of(weight_oi: Tensor, *, filled: bool = False) -> Tensor:
    """Return a weight's copy, perhaps filled up, or the weight.

    Args:
        weight_oi: W.
        filled: Whether a copy that is filled up is of use.
    """
    if torch.compiler.is_compiling() or (reads := _thread.reads) is None:
        return weight_oi
    return reads.copy_of(weight_oi, filled=filled)


def writes_text() -> bool:
    """Return whether products of few rows have a kernel of their own now, and no gradient flows."""
    return _thread.few_rows is not None


def joined(weights: Sequence[Tensor]) -> Tensor:
    """Return matrices of one width, one below the other, for one product instead of several.

    On a GPU rows of zeros fill the last one up, so that the output's rows begin where tensor cores
    can write vectors.
    """
    rows = sum(weight.shape[0] for weight in weights)
    copies = [narrow(weight) for weight in weights]
    if weights[0].is_cuda and (fill := fill_of(rows)):
        copies.append(copies[0].new_zeros(fill, copies[0].shape[1]))
    return torch.cat(copies)


class KeptCopies:
    """Copies of weights in autocast's dtype for as long as nothing changes the weights.

    A text reads every weight for every byte. Each is cast when it is first read, and the copies
    stay where they are, so that a CUDA graph may read them.

    Args:
        device: Type of the device.
        few_rows: Whether a kernel of its own computes products of a few rows on a GPU.
    """

    def __init__(self, device: str, *, few_rows: bool) -> None:
        self._device, self._few_rows = device, few_rows
        self._copies: _Copies = {}

    def copy_of(self, weight: Tensor, *, filled: bool = False) -> Tensor:
        """Return the copy of a weight, or the tensor itself where autocast casts nothing.

        It is never filled up: a text reads its weights for few rows at a time.
        """
        narrows = torch.is_autocast_enabled(self._device)
        if type(weight) is not nn.Parameter or not narrows or weight.dtype != torch.float32:
            return weight
        if id(weight) not in self._copies:
            copy = weight.detach().to(torch.get_autocast_dtype(self._device))
            self._copies[id(weight)] = (weight, copy)
        return self._copies[id(weight)][1]

    @contextmanager
    def read(self) -> Iterator[None]:
        """Let the linear maps of this thread read the copies; no gradient flows."""
        assert not torch.is_grad_enabled()
        before = _thread.reads, _thread.few_rows
        _thread.reads = self
        if self._few_rows:
            from elman.ops.decode import row_product

            _thread.few_rows = row_product
        try:
            yield
        finally:
            _thread.reads, _thread.few_rows = before


class Weights:
    """The weights that a model's linear maps read, known from the pass before.

    No layer declares its weights. A pass that reads a weight without a copy takes it as it is, and
    autocast casts it. Between the last gradient in autocast's dtype and the first one in fp32, the
    gradients of all weights are in memory at once, 2 bytes for each number.
    """

    def __init__(self) -> None:
        self._read: list[nn.Parameter] = []
        self._filled: list[nn.Parameter] = []
        self._held: list[Tensor] = []

    def cast(self, x: Tensor, *, hold: bool = False) -> AbstractContextManager[object]:
        """Return a context for a pass that begins with x; it casts if autocast does.

        Without gradients it does not cast, because autocast then keeps copies for many passes.

        Args:
            x: The pass's input.
            hold: Whether several streams read the copies. Their memory is then not used again
                before the next pass.
        """
        # Whatever looks at operators sees those of autocast.
        if watched((x,)) or not torch.is_grad_enabled():
            return nullcontext()
        kind = "cuda" if x.is_cuda else "cpu"
        return self._reading(kind, hold) if torch.is_autocast_enabled(kind) else nullcontext()

    @contextmanager
    def _reading(self, kind: str, hold: bool) -> Iterator[None]:
        outer, reads = _thread.reads, _Reads(kind, self._read, self._filled)
        self._held = reads.detached() if hold else []
        _thread.reads = reads
        try:
            yield
        finally:
            _thread.reads = outer
            self._read = list(reads.read.values())
            self._filled = list(reads.filled.values())


class _Reads:
    """One pass: the copies it may read, and the weights it did read.

    Args:
        kind: Type of the device.
        weights: The weights to cast.
        filled: Those whose copies are filled up with zeros.
    """

    def __init__(self, kind: str, weights: list[nn.Parameter], filled: list[nn.Parameter]) -> None:
        self._kind = kind
        self._dtype = torch.get_autocast_dtype(kind)
        weights = [weight for weight in weights if self._is_cast(weight)]
        in_room = set(map(id, filled))
        rooms = [id(weight) in in_room for weight in weights]
        copies = _Cast.apply(self._dtype, rooms, *weights) if weights else ()  # type: ignore[no-untyped-call]
        # The weight stays beside its copy: its id is its own only as long as it lives.
        self._copies: _Copies = {
            id(weight): (weight, copy) for weight, copy in zip(weights, copies, strict=True)
        }
        self.read: dict[int, nn.Parameter] = {}
        self.filled: dict[int, nn.Parameter] = {}

    def copy_of(self, weight: Tensor, *, filled: bool = False) -> Tensor:
        """Return the copy of a weight, perhaps filled up, or the weight; remember the read."""
        if type(weight) is not nn.Parameter or not torch.is_autocast_enabled(self._kind):
            return weight
        self.read[id(weight)] = weight
        if filled:
            self.filled[id(weight)] = weight
        return self._copies.get(id(weight), (weight, weight))[1]

    def detached(self) -> list[Tensor]:
        """Return the copies without their history."""
        return [copy.detach() for _, copy in self._copies.values()]

    def _is_cast(self, weight: nn.Parameter) -> bool:
        """Return whether autocast casts a weight, and its gradient back."""
        there = weight.is_cuda if self._kind == "cuda" else weight.is_cpu
        return there and weight.requires_grad and weight.dtype == torch.float32


class _Thread(threading.local):
    """What the thread's innermost pass reads, and the module for products of a few rows."""

    reads: _Reads | KeptCopies | None = None
    few_rows: ModuleType | None = None


_thread = _Thread()


class _Cast(torch.autograd.Function):
    """fp32 tensors in another dtype, and the gradients of those that have one back in fp32.

    A copy may have room for zeros that fill it up, and so has the gradient that comes back.
    """

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, rooms: Sequence[bool], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.shapes = [weight.shape for weight in weights]
        return tuple(_cast(weights, dtype, rooms))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [
            gradient if gradient.shape == shape else gradient[: shape[0], : shape[1]]
            for gradient, shape in zip(gradients, ctx.shapes, strict=True)
            if gradient is not None
        ]
        if backward_is_seen():
            wide = iter([gradient.to(torch.float32) for gradient in there])
        else:
            wide = iter(_cast(there, torch.float32))
        each = (None if gradient is None else next(wide) for gradient in gradients)
        return None, None, *each


def _cast(
    tensors: tuple[Tensor, ...] | list[Tensor], dtype: torch.dtype, rooms: Sequence[bool] = ()
) -> list[Tensor]:
    """Return copies in a dtype, on a GPU by as few launches as their addresses fill.

    Args:
        tensors: The tensors.
        dtype: The dtype.
        rooms: Which of them zeros fill up; none: no one.
    """
    if not any(rooms):
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(copies, list(tensors))
        return copies
    copies, places, zeros = [], [], []
    for tensor, room in zip(tensors, rooms, strict=True):
        copy, place, tails = room_for(tensor, dtype, filled=room)
        copies.append(copy)
        places.append(place)
        zeros += tails
    torch._foreach_zero_(zeros)
    torch._foreach_copy_(places, list(tensors))
    return copies
