"""Dtypes: autocast's for products, and fp32 or wider for states and statistics."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

# Computed once, because torch.compile cannot trace this call.
_AUTOCASTS = frozenset(t for t in ("cpu", "cuda") if torch.amp.is_autocast_available(t))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of states and statistics beside ``dtype``: fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def compute_dtype(x: Tensor, model_dtype: torch.dtype) -> torch.dtype:
    """Return autocast's dtype where it is on for the device of ``x``, else the model's own."""
    device_type = x.device.type
    if device_type in _AUTOCASTS and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return model_dtype


def io_dtype(input_btc: Tensor) -> torch.dtype:
    """Return autocast's dtype for fp32 inputs where it is on, else that of the inputs.

    A layer may widen what a projection gave it, to add a bias.
    """
    if input_btc.dtype != torch.float32:
        return input_btc.dtype
    return compute_dtype(input_btc, torch.float32)


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which operations on the device of ``x`` keep their inputs' dtypes."""
    device_type = x.device.type
    if device_type in _AUTOCASTS:
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a dtype. ``to`` does the same, but takes 1 us to find nothing to do."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)
