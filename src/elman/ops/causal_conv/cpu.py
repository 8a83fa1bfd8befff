"""One call of the causal convolution's kernels on the CPU.

Shape legend: b batch, t time, c channels, k taps, p = k - 1 past steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from elman.kernels.threads import kernel_threads
from elman.ops.causal_conv.inputs import Inputs
from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.backend import require_cpu
from elman.ops.common.cpu_kernels import Kernel, StepKernels
from elman.ops.common.native import C_TYPES

MOST_TAPS = 8
"""The loop over the taps of a channel is unrolled."""
_INPUTS = ("x", "weight", "bias", "history", "resets", "y")
_GRADIENTS = ("dy", "dx", "dhistory", "dweight", "dbias", "workspace")
_STRIDES = ("x_batch", "x_time", "dx_batch", "dx_time")


class CausalConvCall(ctypes.Structure):
    """One call, as csrc/cpu/causal_conv/engine.h declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_INPUTS, *_GRADIENTS)),
        *((name, ctypes.c_int64) for name in _STRIDES),
        *((name, ctypes.c_int64) for name in ("batch", "steps", "channels", "threads")),
    )


def forward(inputs: Inputs, parts: Sequence[Tensor]) -> None:
    """Compute the output into the one tensor of ``parts``.

    Raises:
        UserError: the tensors do not lie on the CPU, or the kernel cannot be compiled.
    """
    (y_btc,) = parts
    kernel, call = _call(inputs, y=y_btc)
    workspace = _point_workspace(kernel, call, inputs)
    kernel.forward(call)
    del workspace  # not before


def backward(
    inputs: Inputs,
    dparts: Sequence[Tensor],
    dx_btc: Tensor,
    dhistory_bpc: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of input and history; return those of taps and bias.

    Args:
        inputs: What the forward pass read.
        dparts: The gradient of the output, contiguous.
        dx_btc: Takes the gradient of the input; it may be a part of wider rows.
        dhistory_bpc: Takes the gradient of the history, or None.

    Raises:
        UserError: as :func:`forward`.
    """
    (dy_btc,) = dparts
    dweight_ck = torch.empty_like(inputs.weight_ck)
    dbias_c = inputs.weight_ck.new_empty(inputs.weight_ck.shape[0])
    kernel, call = _call(
        inputs, dy=dy_btc, dx=dx_btc, dhistory=dhistory_bpc, dweight=dweight_ck, dbias=dbias_c
    )
    call.dx_batch, call.dx_time, _ = dx_btc.stride()
    workspace = _point_workspace(kernel, call, inputs)
    kernel.backward(call)
    del workspace  # not before
    return dweight_ck, dbias_c


def _call(inputs: Inputs, **tensors: Tensor | None) -> tuple[Kernel, CausalConvCall]:
    """Return the kernel for the inputs, and arguments that point to them and to more tensors."""
    x_btc = inputs.x_btc
    require_cpu(x_btc)
    tensors |= {
        "x": x_btc,
        "weight": inputs.weight_ck,
        "bias": inputs.bias_c,
        "history": inputs.history_bpc,
    }
    assert {one.dtype for one in tensors.values() if one is not None} == {x_btc.dtype}
    assert not inputs.silu, "silu follows outside of the kernel"
    batch, steps, channels = x_btc.shape
    call = CausalConvCall(batch=batch, steps=steps, channels=channels)
    call.threads = kernel_threads(torch.get_num_threads())
    call.x_batch, call.x_time, _ = x_btc.stride()
    for name, tensor in (tensors | {"resets": inputs.resets_bt}).items():
        if tensor is not None:
            setattr(call, name, tensor.data_ptr())
    return KERNELS.kernel_for(f"{inputs.weight_ck.shape[1]} taps", x_btc.dtype), call


def _point_workspace(kernel: Kernel, call: CausalConvCall, inputs: Inputs) -> Tensor:
    x_btc = inputs.x_btc
    workspace = x_btc.new_empty(kernel.workspace(call) // x_btc.element_size())
    call.workspace = workspace.data_ptr()
    return workspace


def _layouts() -> str:
    return layout_assertions("elman::CausalConvCall", CausalConvCall)


def _structure(step: str, dtype: torch.dtype, name: str, resets: bool) -> str:
    taps = int(step.split()[0])
    return (
        f"struct {name} {{\n"
        f"    using T = {C_TYPES[dtype]};\n"
        f"    static constexpr int TAPS = {taps};\n"
        "};\n"
    )


KERNELS = StepKernels("causal_conv", CausalConvCall, _layouts, _structure)
"""Those that this process has loaded: one for each number of taps and dtype."""
