"""Muon's update on a CPU in one kernel: all matrices of one shape, in place.

The iteration's products are of symmetric matrices, of which the kernel computes one half. Moving
averages, decay and step are in it, too.

Shapes: matrices of m rows and n columns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from elman.kernels.build import load_library
from elman.kernels.threads import kernel_threads
from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.transforms import watched

MOST = 1024
"""Rows or columns, the fewer of the two. Up to here the kernel was compared with PyTorch's products
and took two thirds of their time. It keeps seven squares of so many numbers for each matrix."""
_COUNTS = ("count", "rows", "columns", "steps", "threads")
_NUMBERS = ("momentum", "rate", "kept", "a", "b", "c", "eps")


class Moved(NamedTuple):
    """A matrix and what moves it, [m, n], fp32, contiguous.

    Args:
        weight: The matrix.
        gradient: Its gradient, which is only read.
        momentum: The moving average of its gradients.
    """

    weight: Tensor
    gradient: Tensor
    momentum: Tensor


class MuonMatrix(ctypes.Structure):
    """A matrix, as csrc/cpu/muon/engine.h declares it."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in Moved._fields)


class MuonCall(ctypes.Structure):
    """One call, as csrc/cpu/muon/engine.h declares it."""

    _fields_ = (
        ("matrices", ctypes.POINTER(MuonMatrix)),
        ("workspace", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_double) for name in _NUMBERS),
    )


def takes(moved: Sequence[Moved]) -> bool:
    """Return whether the kernel updates these matrices: plain, contiguous, fp32 and small."""
    tensors = [tensor for one in moved for tensor in one]
    return (
        not watched(tensors)
        and min(moved[0].weight.shape) <= MOST
        and all(
            one.is_cpu and one.dtype == torch.float32 and one.is_contiguous() for one in tensors
        )
    )


def update(moved: Sequence[Moved], group: dict[str, Any], rate: float) -> None:
    """Update matrices of one shape, and their moving averages.

    Args:
        moved: The matrices; :func:`takes` is true for them.
        group: The settings, as ``torch.optim.Muon`` has them.
        rate: What the orthogonal matrix is multiplied by.

    Raises:
        UserError: the kernel cannot be compiled.
    """
    run, workspace_bytes = _kernel()
    rows, columns = moved[0].weight.shape
    a, b, c = group["ns_coefficients"]
    call = MuonCall(
        matrices=(MuonMatrix * len(moved))(
            *(MuonMatrix(*(tensor.data_ptr() for tensor in one)) for one in moved)
        ),
        count=len(moved),
        rows=rows,
        columns=columns,
        steps=group["ns_steps"],
        threads=kernel_threads(torch.get_num_threads()),
        momentum=group["momentum"],
        rate=rate,
        kept=1 - group["lr"] * group["weight_decay"],
        a=a,
        b=b,
        c=c,
        eps=group["eps"],
    )
    workspace = torch.empty(workspace_bytes(call) // 4)
    call.workspace = workspace.data_ptr()
    run(call)
    for one in moved:
        increment_version([one.weight, one.momentum])


def prepare() -> None:
    """Compile the kernel if it was not compiled before.

    Raises:
        UserError: it cannot be compiled.
    """
    _kernel()


@cache
def _kernel() -> tuple[Any, Any]:
    """Return the functions that run a call, and that return the bytes of its workspace."""
    text = f'#include "cpu/muon/engine.h"\n\n{_layouts()}'
    library = load_library(text, "muon")
    run, workspace_bytes = library["muon_run"], library["muon_workspace"]
    for function in (run, workspace_bytes):
        function.argtypes = (ctypes.POINTER(MuonCall),)
    run.restype, workspace_bytes.restype = None, ctypes.c_int64
    return run, workspace_bytes


def _layouts() -> str:
    mirrors = {"elman::MuonMatrix": MuonMatrix, "elman::MuonCall": MuonCall}
    return "".join(layout_assertions(name, mirror) for name, mirror in mirrors.items())
