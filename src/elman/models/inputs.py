"""Checks the arguments of a model and its layers.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ops.common.transforms import watched

_ID_DTYPES = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def check_layer_input(layer: str, x_btd: Tensor, dim: int) -> None:
    """Raise ValueError unless ``x_btd`` is [batch, time, dim] of a floating dtype.

    Args:
        layer: Name of the layer, for the error.
        x_btd: The layer's input.
        dim: The layer's width.
    """
    wanted = f"{layer}: x: expected a floating tensor [batch, time, {dim}]"
    if not isinstance(x_btd, Tensor):
        raise ValueError(f"{wanted}, not {type(x_btd).__name__}")
    shape = list(x_btd.shape)
    if len(shape) == 2 and shape[1] == dim:
        raise ValueError(f"{wanted}, not {shape}; one sequence is x.unsqueeze(0)")
    if len(shape) != 3:
        raise ValueError(f"{wanted}, not {shape}")
    if shape[2] != dim:
        made = f"{layer}({shape[2]})"
        raise ValueError(f"{wanted}, not {shape}; {made} makes a layer of that width")
    if not x_btd.is_floating_point():
        raise ValueError(f"{wanted}, not one of {x_btd.dtype}; pass x.float()")


def ids_dtype(vocab_size: int) -> torch.dtype:
    """Return the dtype of a batch of ids: uint8 where a byte holds each of them, else int32."""
    return torch.uint8 if vocab_size <= 256 else torch.int32


def check_ids(
    name: str, ids_bt: Tensor, vocab_size: int, steps: int = 0, *, values: bool = True
) -> None:
    """Raise ValueError unless ids are whole numbers [batch, time] below ``vocab_size``.

    The values of bytes are always valid. Other dtypes have their values checked, which waits for
    the GPU. Under a compiler, a dispatch mode or a CUDA graph's capture values cannot be read.

    Args:
        name: Name of the ids, for the error.
        ids_bt: The model's input.
        vocab_size: Number of tokens.
        steps: Smallest length.
        values: Whether to check values, too.
    """
    wanted = f"{name}: expected whole numbers [batch, time] of 0 to {vocab_size - 1}"
    if not isinstance(ids_bt, Tensor):
        raise ValueError(f"{wanted}, not {type(ids_bt).__name__}; pass a tensor of torch.long")
    if ids_bt.dtype not in _ID_DTYPES:
        raise ValueError(
            f"{wanted} in torch.long (or torch.uint8), not {ids_bt.dtype}; pass {name}.long()"
        )
    shape = list(ids_bt.shape)
    if len(shape) == 1:
        raise ValueError(f"{wanted}, not {shape}; one sequence is {name}.unsqueeze(0)")
    if len(shape) != 2 or shape[1] < steps:
        least = f", {steps} steps at least" if steps else ""
        raise ValueError(f"{wanted}{least}, not {shape}")
    if values and _may_be_outside(ids_bt, vocab_size) and ids_bt.numel():
        low, high = (int(end) for end in ids_bt.aminmax())
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            hint = "; a byte's id is its value" if vocab_size == 256 else ""
            raise ValueError(f"{wanted}, not {wrong}{hint}")


def _may_be_outside(ids_bt: Tensor, vocab_size: int) -> bool:
    """Return whether an id may be outside the vocabulary and the values can be read."""
    if ids_bt.dtype == torch.uint8 and vocab_size >= 256:
        return False
    if ids_bt.is_meta or watched([ids_bt]):
        return False
    return not (ids_bt.is_cuda and torch.cuda.is_current_stream_capturing())
