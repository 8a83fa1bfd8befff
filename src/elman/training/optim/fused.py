"""The schedule-free update on an NVIDIA GPU: all weights of a group in one kernel, in place.

It moves 28 bytes for each weight: weight, z, mean square and gradient are read, and all but the
gradient are written. What the host gives a launch is in its arguments, so a launch copies nothing
to the device and a CUDA graph can hold it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from elman.kernels.launching import Launch
from elman.ops.common.abi_check import layout_assertions, same
from elman.ops.common.cuda_kernels import CudaKernels, Launching
from elman.ops.common.transforms import watched

# As in csrc/cuda/schedule_free/schedule_free.cuh.
_GROUPS, _TENSORS = 8, 80
_THREADS, _ITEMS = 256, 2
_BLOCKS = 4  # of a multiprocessor, at least
_CHUNK = 4 * _THREADS * _ITEMS  # numbers of a block
SCALARS = 5
"""Numbers, fp32, that the count of a group's update leaves for the update itself."""


class Clipping(NamedTuple):
    """Gradients are multiplied by ``min(1, limit / (norm + 1e-6))``.

    Args:
        norm: Norm of all gradients, fp32, a scalar on the device.
        limit: Its limit; infinity leaves the gradients as they are.
    """

    norm: Tensor
    limit: float


class Moved(NamedTuple):
    """A weight and what moves it: fp32, contiguous, of one shape.

    Args:
        weight: The trained weight, y.
        z: The end of the steps, without the average.
        square: Mean square of the gradients.
        gradient: The gradient, which is only read.
    """

    weight: Tensor
    z: Tensor
    square: Tensor
    gradient: Tensor


class Group(NamedTuple):
    """A group of weights that share their settings.

    Args:
        settings: As the library ``schedulefree`` has them.
        counts: Updates, sum of the average's weights, largest rate: [3], fp64, on the device.
        scalars: Room for :data:`SCALARS` numbers, fp32, on the device.
        moved: The weights that have a gradient.
    """

    settings: dict[str, Any]
    counts: Tensor
    scalars: Tensor
    moved: Sequence[Moved]


class CountArgs(ctypes.Structure):
    """One count, as csrc/cuda/schedule_free/schedule_free.cuh declares it."""

    _fields_ = (
        ("blocked", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("counts", ctypes.c_void_p * _GROUPS),
        ("scalars", ctypes.c_void_p * _GROUPS),
        ("lr", ctypes.c_double * _GROUPS),
        ("warmup_steps", ctypes.c_double * _GROUPS),
        ("weight_power", ctypes.c_double * _GROUPS),
        ("beta1", ctypes.c_double * _GROUPS),
        ("beta2", ctypes.c_double * _GROUPS),
        ("limit", ctypes.c_double),
        ("groups", ctypes.c_int64),
    )


class UpdateArgs(ctypes.Structure):
    """One update, as the same file declares it."""

    _fields_ = (
        ("blocked", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p * _TENSORS),
        ("weight", ctypes.c_void_p * _TENSORS),
        ("z", ctypes.c_void_p * _TENSORS),
        ("square", ctypes.c_void_p * _TENSORS),
        ("sizes", ctypes.c_int64 * _TENSORS),
        ("ends", ctypes.c_int64 * _TENSORS),
        ("beta2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("decay", ctypes.c_double),
        ("tensors", ctypes.c_int64),
    )


def takes(moved: Iterable[Moved]) -> bool:
    """Return whether the kernel updates these weights: all are plain, contiguous and fp32."""
    tensors = [tensor for one in moved for tensor in one]
    return not watched(tensors) and all(
        tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors
    )


def update(groups: Sequence[Group], blocked: Tensor, clipping: Clipping | None) -> None:
    """Count an update of every group and apply it; change nothing if ``blocked`` is true.

    Args:
        groups: The groups, on one device; :func:`takes` is true for their weights.
        blocked: Bool, a scalar on that device.
        clipping: What the gradients are multiplied by; None: nothing.
    """
    text, device = unit_text(), blocked.device
    count = [Launch("schedule_free_count", 1, 32)]
    for at in range(0, len(groups), _GROUPS):
        LAUNCH(text, count, _count(groups[at : at + _GROUPS], blocked, clipping), device)
    for group in groups:
        filled = [one for one in group.moved if one.weight.numel() > 0]
        for at in range(0, len(filled), _TENSORS):
            args, blocks = _update(group, filled[at : at + _TENSORS], blocked)
            LAUNCH(text, [Launch("schedule_free_update", blocks, _THREADS)], args, device)
        # As PyTorch's operations do, so that autograd refuses weights that changed under it.
        increment_version([one.weight for one in group.moved])


def prepare(device: torch.device) -> None:
    """Compile the kernels for a GPU, if that was not done before."""
    COMPILED.loaded(unit_text(), device.index)


def _count(groups: Sequence[Group], blocked: Tensor, clipping: Clipping | None) -> CountArgs:
    args = CountArgs(blocked=blocked.data_ptr(), groups=len(groups), limit=math.inf)
    if clipping is not None and clipping.limit < math.inf:
        args.norm, args.limit = clipping.norm.data_ptr(), clipping.limit
    for n, (settings, counts, scalars, _) in enumerate(groups):
        args.counts[n], args.scalars[n] = counts.data_ptr(), scalars.data_ptr()
        args.lr[n], args.warmup_steps[n] = settings["lr"], settings["warmup_steps"]
        args.weight_power[n] = settings["weight_lr_power"]
        args.beta1[n], args.beta2[n] = settings["betas"]
    return args


def _update(group: Group, moved: Sequence[Moved], blocked: Tensor) -> tuple[UpdateArgs, int]:
    """Return the arguments of an update, and its blocks."""
    settings, count = group.settings, len(moved)
    args = UpdateArgs(
        blocked=blocked.data_ptr(),
        scalars=group.scalars.data_ptr(),
        beta2=settings["betas"][1],
        eps=settings["eps"],
        decay=settings["weight_decay"],
        tensors=count,
    )
    for name in Moved._fields:
        getattr(args, name)[:count] = [getattr(one, name).data_ptr() for one in moved]
    sizes = [one.weight.numel() for one in moved]
    ends = [*accumulate(math.ceil(size / _CHUNK) for size in sizes)]
    args.sizes[:count], args.ends[:count] = sizes, ends
    return args, ends[-1]


@cache
def unit_text(device: str = "cuda/common/device.cuh") -> str:
    """Return the text of the translation unit, both kernels in one.

    Args:
        device: Header that says what the kernels ask of the machine.
    """
    limits = {
        "SCHEDULE_FREE_GROUPS": _GROUPS,
        "SCHEDULE_FREE_TENSORS": _TENSORS,
        "SCHEDULE_FREE_SCALARS": SCALARS,
    }
    return "\n".join(
        [
            f'#include "{device}"',
            '#include "cuda/schedule_free/schedule_free.cuh"',
            layout_assertions("elman::ScheduleFreeCountArgs", CountArgs)
            + layout_assertions("elman::ScheduleFreeArgs", UpdateArgs),
            *(
                same(f"elman::{name}", value, f"fused.py has {value} for {name}")
                for name, value in limits.items()
            ),
            "ELMAN_KERNEL(schedule_free_count, 32, 1, elman::ScheduleFreeCountArgs, "
            "elman::schedule_free_count(a))",
            f"ELMAN_KERNEL(schedule_free_update, {_THREADS}, {_BLOCKS}, elman::ScheduleFreeArgs, "
            f"(elman::schedule_free_update<{_THREADS}, {_ITEMS}>(a)))",
            "",
        ]
    )


COMPILED: CudaKernels[str] = CudaKernels(str, "schedule-free update")
"""By the text of their translation unit."""
LAUNCH: Launching[str] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
