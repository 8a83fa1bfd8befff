"""Runs operations on the meta device faster than PyTorch does, and lets a subclass count them.

PyTorch computes many results on that device in Python. Each takes a tenth of a millisecond, and the
first imports Dynamo and sympy, which takes more than a second. The rules here answer the common
operations directly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_PRESERVE = torch.preserve_format


class MetaWalk(TorchDispatchMode):
    """Under this mode, operations on the meta device use the quick rules of this file."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The usual guard against torch.compile in a mode imports Dynamo; nothing compiles here.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an operation's result: from a rule if one applies, else from PyTorch."""
    made = by_rule(func, args, kwargs)
    return func(*args, **kwargs) if made is None else made


def by_rule(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an operation's result on the meta device, or None if no rule applies.

    Shapes, strides, dtypes and aliasing of arguments are the same as PyTorch's.
    """
    rule = RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def _pointwise(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return a new tensor of the arguments' common shape and floating dtype."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    return _laid_out(tensors, _common_dtype(tensors))


def _times(*args: Any) -> Tensor | None:
    """Return the result of mul, of complex numbers too."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    if tensors[0].is_complex() and _alike(tensors):
        return _laid_out(tensors, tensors[0].dtype)
    return _pointwise(*args)


def _polar(length: Tensor, angle: Tensor) -> Tensor | None:
    """Return complex numbers."""
    wide = {torch.float32: torch.complex64, torch.float64: torch.complex128}
    return _laid_out([length, angle], wide.get(length.dtype) if _alike([length, angle]) else None)


def _range(start: float, end: float, step: float = 1, **kwargs: Any) -> Tensor | None:
    """Return the result of arange of a dtype that is named."""
    dtype = kwargs.get("dtype")
    if dtype is None or torch.device(kwargs.get("device") or "cpu").type != "meta":
        return None
    return _empty((math.ceil((end - start) / step),), dtype)


def _where(condition: Tensor, *choices: Tensor) -> Tensor | None:
    return _laid_out([condition, *choices], _common_dtype(choices))


def _compared(*args: Any) -> Tensor | None:
    return _laid_out([one for one in args if isinstance(one, Tensor)], torch.bool)


def _laid_out(tensors: Sequence[Tensor], dtype: torch.dtype | None) -> Tensor | None:
    """Return a new tensor of the common shape, with the strides that PyTorch would choose."""
    if dtype is None or not all(one.is_meta for one in tensors):
        return None
    shape = tensors[0].shape
    if any(one.shape != shape for one in tensors[1:]):
        tensors = torch.broadcast_tensors(*tensors)
        shape = tensors[0].shape
    if len(shape) < 4 and all(one.is_contiguous() for one in tensors):
        return _empty(shape, dtype)
    strides = _strides(shape, [one.stride() for one in tensors])
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _strides(shape: Sequence[int], inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return dense strides with axes ordered as in the arguments; earlier arguments decide first.

    An insertion sort, as in TensorIterator, because some pairs of axes have no defined order.
    """
    axes = list(reversed(range(len(shape))))
    for end in range(1, len(axes)):
        place = end
        for before in reversed(range(end)):
            order = _order(shape, inputs, axes[before], axes[place])
            if order < 0:
                break
            if order > 0:
                axes[before], axes[place] = axes[place], axes[before]
                place = before
    strides, step = [0] * len(shape), 1
    for axis in axes:
        strides[axis] = step
        step *= max(1, shape[axis])
    return strides


def _order(shape: Sequence[int], inputs: Sequence[Sequence[int]], one: int, other: int) -> int:
    """Return 1 if axis ``one`` lies outside axis ``other``, -1 if inside, 0 if undecided."""
    for strides in inputs:
        here, there = strides[one], strides[other]
        if 0 in (here, there) or (here == there and shape[one] <= shape[other]):
            continue
        return -1 if here < there else 1
    return 0


def _common_dtype(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """Return the promoted dtype of tensors that have the same priority in type promotion."""
    dtypes = {one.dtype for one in tensors}
    if len(dtypes) > 1 and any(one.ndim == 0 for one in tensors):
        return None
    dtype = functools.reduce(torch.promote_types, dtypes)
    return dtype if dtype.is_floating_point else None


def _softplus_backward(gradient: Tensor, values: Tensor, *args: Any) -> Tensor | None:
    return _pointwise(values, gradient)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _in_place(changed: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    return changed if changed.is_meta else None


def _like_first(first: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    return _empty(first.shape, first.dtype) if first.is_meta and first.is_contiguous() else None


def _another(
    first: Tensor, memory_format: torch.memory_format | None = None, **kwargs: Any
) -> Tensor | None:
    """Return the result of clone and of the operations that make a tensor like another."""
    if {*kwargs.values()} - {None, False, first.dtype, first.device}:
        return None
    if memory_format == torch.contiguous_format and first.is_meta:
        return _empty(first.shape, first.dtype)
    return _laid_out([first], first.dtype) if memory_format in (None, _PRESERVE) else None


def _flipped(values: Tensor, dims: Sequence[int]) -> Tensor | None:
    return _laid_out([values], values.dtype)


def _of_whole(gradient: Tensor, shape: Sequence[int], *args: Any) -> Tensor | None:
    """Return the gradient of the tensor from which a slice or element was taken."""
    return _empty(shape, gradient.dtype) if gradient.is_meta else None


def _softmax(values: Tensor, dim: int, half_to_float: bool) -> Tensor | None:
    return None if half_to_float else _like_first(values)


def _softmax_backward(
    gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype
) -> Tensor | None:
    return _like_first(gradient) if dtype == gradient.dtype else None


def _like_second(_: Tensor, second: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    return _like_first(second)


def _product(*args: Tensor, **kwargs: Any) -> Tensor | None:
    """Return the result of [bias +] left @ right, a matrix, a vector or a number."""
    left, right = args[-2:]
    if not _alike(args):
        return None
    return _empty((*left.shape[:-1], *right.shape[1:]), left.dtype)


def _products(*args: Tensor, **kwargs: Any) -> Tensor | None:
    """Return the results of [bias +] left @ right for every matrix of a batch."""
    left, right = args[-2:]
    return _empty((*left.shape[:2], right.shape[2]), left.dtype) if _alike(args) else None


def _convolution(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    *args: Any,
) -> Tensor | None:
    """Return the result over one axis of time."""
    if values.ndim != 3 or transposed or not _alike([values, weight]):
        return None
    span = dilation[0] * (weight.shape[2] - 1) + 1
    steps = (values.shape[2] + 2 * padding[0] - span) // stride[0] + 1
    return _empty((values.shape[0], weight.shape[0], steps), values.dtype)


def _convolution_backward(
    gradient: Tensor,
    values: Tensor,
    weight: Tensor,
    bias_shape: Sequence[int] | None,
    *args: Any,
) -> tuple[Tensor | None, ...] | None:
    if values.ndim != 3 or not _alike([gradient, values, weight]):
        return None
    shapes = (values.shape, weight.shape, bias_shape or ())
    output_mask: Sequence[bool] = args[-1]
    return tuple(
        _empty(shape, values.dtype) if needed else None
        for shape, needed in zip(shapes, output_mask, strict=True)
    )


def _reduced(
    values: Tensor, dims: Sequence[int], keepdim: bool = False, **kwargs: Any
) -> Tensor | None:
    if kwargs or not dims or not (values.is_meta and values.is_floating_point()):
        return None
    reduced = {dim % values.ndim for dim in dims}
    shape = [1 if axis in reduced else size for axis, size in enumerate(values.shape)]
    sizes = [size for axis, size in enumerate(shape) if keepdim or axis not in reduced]
    return _empty(sizes, values.dtype)


def _norm(
    values: Tensor,
    order: float = 2,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    return _reduced(values, dims or (), keepdim, **kwargs)


def _layer_norm(
    values: Tensor, normalized: Sequence[int], *args: Any
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the results of native_layer_norm: normalized, mean, and 1 / standard deviation."""
    if not values.is_meta or values.dtype not in (torch.float32, torch.float64):
        return None
    rows = (*values.shape[: values.ndim - len(normalized)], *[1] * len(normalized))
    mean, scale = (_empty(rows, values.dtype) for _ in range(2))
    return _empty(values.shape, values.dtype), mean, scale


def _group_norm(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, rows: int, *args: Any
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the results of native_group_norm: normalized, mean, and 1 / standard deviation."""
    if not values.is_contiguous():
        return None
    given = [one for one in (values, weight, bias) if one is not None]
    if not _alike(given) or values.dtype not in (torch.float32, torch.float64):
        return None
    mean, scale = (_empty((rows, args[2]), values.dtype) for _ in range(2))
    return _empty(values.shape, values.dtype), mean, scale


def _running_sum(values: Tensor, dim: int) -> Tensor | None:
    return _empty(values.shape, values.dtype) if values.is_meta else None


def _embedding(weight: Tensor, tokens: Tensor, *args: Any) -> Tensor | None:
    if not (weight.is_meta and tokens.is_meta):
        return None
    return _empty((*tokens.shape, weight.shape[1]), weight.dtype)


def _embedding_backward(
    gradient: Tensor, tokens: Tensor, vocabulary: int, *args: Any
) -> Tensor | None:
    return _empty((vocabulary, gradient.shape[-1]), gradient.dtype) if gradient.is_meta else None


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Return the result of cat."""
    first = tensors[0]
    if not _alike(tensors) or any(one.ndim != first.ndim for one in tensors):
        return None
    if any(_like_images(one) for one in tensors):
        return None
    shape = list(first.shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    return _empty(shape, first.dtype)


def _like_images(tensor: Tensor) -> bool:
    """Whether PyTorch takes four or five axes for images or videos in channels-last layout."""
    if tensor.ndim not in (4, 5) or tensor.stride(1) == 0:
        return False
    shape, strides, least = tensor.shape, tensor.stride(), 0
    for axis in (1, *range(tensor.ndim - 1, 1, -1), 0):
        if strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(1, shape[axis])
    return True


def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    return _joined([one.unsqueeze(dim) for one in tensors], dim)


def _mean_loss(
    scores: Tensor, targets: Tensor, weight: Tensor | None, reduction: int, *args: Any
) -> tuple[Tensor, Tensor] | None:
    """Return the results of nll_loss_forward; no rule if it returns a loss for every row."""
    if reduction == 0 or not scores.is_meta:
        return None
    return _empty((), scores.dtype), _empty((), scores.dtype)


def _alike(tensors: Sequence[Tensor]) -> bool:
    """Whether all are on the meta device and have one dtype."""
    return all(one.is_meta and one.dtype == tensors[0].dtype for one in tensors)


RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        [
            _aten.abs.default,
            _aten.add.Tensor,
            _aten.addcmul.default,
            _aten.clamp.default,
            _aten.clamp_min.default,
            _aten.cos.default,
            _aten.div.Scalar,
            _aten.div.Tensor,
            _aten.exp.default,
            _aten.lerp.Tensor,
            _aten.log.default,
            _aten.mul.Scalar,
            _aten.neg.default,
            _aten.pow.Scalar,
            _aten.pow.Tensor_Scalar,
            _aten.reciprocal.default,
            _aten.remainder.Scalar,
            _aten.rsqrt.default,
            _aten.rsub.Scalar,
            _aten.sgn.default,
            _aten.sigmoid.default,
            _aten.sigmoid_backward.default,
            _aten.silu.default,
            _aten.sin.default,
            _aten.softplus.default,
            _aten.sqrt.default,
            _aten.sub.Tensor,
            _aten.tanh.default,
            _aten.tanh_backward.default,
        ],
        _pointwise,
    ),
    **dict.fromkeys(
        [
            _aten.add_.Tensor,
            _aten.addcmul_.default,
            _aten.exp_.default,
            _aten.logical_and_.default,
            _aten.masked_fill_.Scalar,
            _aten.mul_.Tensor,
            _aten.neg_.default,
            _aten.sigmoid_.default,
            _aten.sub_.Tensor,
            _aten.tanh_.default,
            _aten.tril_.default,
        ],
        _in_place,
    ),
    _aten.clone.default: _another,
    _aten.empty_like.default: _another,
    _aten.ones_like.default: _another,
    _aten.zeros_like.default: _another,
    _aten.flip.default: _flipped,
    _aten.tril.default: _like_first,
    _aten.triu.default: _like_first,
    _aten._log_softmax.default: _softmax,
    _aten._log_softmax_backward_data.default: _softmax_backward,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten.nll_loss_backward.default: _like_second,
    _aten.nll_loss_forward.default: _mean_loss,
    _aten.embedding.default: _embedding,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.where.self: _where,
    _aten.mul.Tensor: _times,
    _aten.polar.default: _polar,
    _aten.arange.start: _range,
    _aten.arange.start_step: _range,
    **dict.fromkeys(
        [
            _aten.eq.Scalar,
            _aten.eq.Tensor,
            _aten.ge.Scalar,
            _aten.gt.Scalar,
            _aten.le.Scalar,
            _aten.lt.Scalar,
        ],
        _compared,
    ),
    _aten.addmm.default: _product,
    _aten.mm.default: _product,
    _aten.mv.default: _product,
    _aten.dot.default: _product,
    _aten.bmm.default: _products,
    _aten.baddbmm.default: _products,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.linalg_vector_norm.default: _norm,
    _aten.mean.dim: _reduced,
    _aten.sum.dim_IntList: _reduced,
    _aten.slice_backward.default: _of_whole,
    _aten.select_backward.default: _of_whole,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_group_norm.default: _group_norm,
    _aten.cumsum.default: _running_sum,
    _aten.softplus_backward.default: _softplus_backward,
    _aten.cat.default: _joined,
    _aten.stack.default: _stacked,
}
