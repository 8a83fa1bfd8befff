"""One call of the add-and-norm kernel on the CPU.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from elman.kernels.threads import kernel_threads
from elman.ops.add_norm.reference import EPS
from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.backend import require_cpu
from elman.ops.common.cpu_kernels import Kernel, StepKernels
from elman.ops.common.native import C_TYPES

_INPUTS = ("stream", "branch", "gain", "sum", "normed", "rstd")
_GRADIENTS = ("dsum", "dnormed", "dstream", "dgain", "workspace")


class AddNormCall(ctypes.Structure):
    """One call, as csrc/cpu/add_norm/engine.h declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_INPUTS, *_GRADIENTS)),
        *((name, ctypes.c_int64) for name in ("rows", "width", "threads")),
        ("eps", ctypes.c_double),
    )


def forward(
    stream_btd: Tensor,
    branch_btd: Tensor | None,
    gain_d: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Compute sum, normed and rstd; everything is in one dtype, float32 or float64.

    Raises:
        UserError: the tensors do not lie on the CPU, or the kernel cannot be compiled.
    """
    sum_btd, normed_btd, rstd_bt = outputs
    tensors = {
        "stream": stream_btd.contiguous(),
        "gain": gain_d.contiguous(),
        "normed": normed_btd,
        "rstd": rstd_bt,
    }
    if branch_btd is not None:
        tensors |= {"branch": branch_btd.contiguous(), "sum": sum_btd}
    kernel, call = _call(tensors)
    kernel.forward(call)


def backward(
    dsum_btd: Tensor | None,
    dnormed_btd: Tensor,
    sum_btd: Tensor,
    rstd_bt: Tensor,
    gain_d: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Compute the gradients of stream and gain; that of the branch is the stream's.

    Raises:
        UserError: as :func:`forward`.
    """
    dstream_btd, dbranch_btd, dgain_d = gradients
    assert not dbranch_btd.numel(), "a branch has the dtype of the stream"
    tensors = {
        "dnormed": dnormed_btd.contiguous(),
        "sum": sum_btd.contiguous(),
        "rstd": rstd_bt,
        "gain": gain_d.contiguous(),
        "dstream": dstream_btd,
        "dgain": dgain_d,
    }
    if dsum_btd is not None:
        tensors["dsum"] = dsum_btd.contiguous()
    kernel, call = _call(tensors)
    workspace = gain_d.new_empty(kernel.workspace(call) // gain_d.element_size())
    call.workspace = workspace.data_ptr()
    kernel.backward(call)


def _call(tensors: dict[str, Tensor]) -> tuple[Kernel, AddNormCall]:
    """Return the kernel of the tensors' dtype, and the arguments that point to them."""
    gain_d, rstd_bt = tensors["gain"], tensors["rstd"]
    require_cpu(gain_d)
    assert {tensor.dtype for tensor in tensors.values()} == {gain_d.dtype}
    sizes = {"rows": rstd_bt.numel(), "width": gain_d.numel(), "eps": EPS}
    call = AddNormCall(threads=kernel_threads(torch.get_num_threads()), **sizes)
    for name, tensor in tensors.items():
        setattr(call, name, tensor.data_ptr())
    return KERNELS.kernel_for("", gain_d.dtype), call


def _layouts() -> str:
    return layout_assertions("elman::AddNormCall", AddNormCall)


def _structure(step: str, dtype: torch.dtype, name: str, resets: bool) -> str:
    return f"struct {name} {{\n    using T = {C_TYPES[dtype]};\n}};\n"


KERNELS = StepKernels("add_norm", AddNormCall, _layouts, _structure)
"""Those that this process has loaded; there is one for each dtype."""
