"""One call of the causal convolution's kernels on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: b batch, t time, c channels, k taps, p = k - 1 past steps, g shares of the sums.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.causal_conv.inputs import Inputs
from elman.ops.common.cuda_kernels import CudaKernels, Launching, multiprocessors
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.unit_text import unit_text_of

"""Dtypes of the sequences, with their C++ names; taps and bias are fp32."""
MOST_TAPS = 8
"""A thread keeps its taps, and the inputs that they multiply, in registers."""
MOST_PARTS = 3
_VECTOR = 4  # channels of a thread
_THREADS, _STEPS, _SLICES = 128, 64, 16  # as in csrc/cuda/causal_conv/causal_conv.cuh
_FORWARD_BLOCKS, _BACKWARD_BLOCKS = 6, 3  # of a multiprocessor at a time
_POINTERS = ("x", "weight", "bias", "history", "resets", "y0", "y1", "y2", "dy0", "dy1", "dy2")
_MORE_POINTERS = ("dx", "dhistory", "partial", "dweight", "dbias")
_NUMBERS = ("x_stride", "dx_stride", "batch", "steps", "chunks", "shares")


class CausalConvArgs(ctypes.Structure):
    """One call, as csrc/cuda/causal_conv/causal_conv.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_MORE_POINTERS)),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


@dataclass(frozen=True)
class TileConfig:
    """How sequences of one width are convolved.

    Args:
        taps: K.
        widths: Channels of each of the three parts of the output; 0 for one that is not there.
        vector: Channels of a thread: 4, or 1 where a width, a stride or an address does not permit
            vectors.
        silu: Whether silu follows.
        resets: Whether rows start anew at some steps.
        dtype: Of the sequences.
    """

    taps: int
    widths: tuple[int, int, int]
    vector: int
    silu: bool
    resets: bool
    dtype: torch.dtype

    @property
    def channels(self) -> int:
        """All channels."""
        return sum(self.widths)

    @property
    def column_blocks(self) -> int:
        """Blocks beside each other, for one chunk of steps."""
        return math.ceil(self.channels // self.vector / _THREADS)


def forward(inputs: Inputs, parts: Sequence[Tensor]) -> None:
    """Compute the output into tensors that hold its channels side by side."""
    args, config = _read(inputs, {f"y{n}": part for n, part in enumerate(parts)}, parts)
    blocks = args.chunks * config.column_blocks
    wanted = Launch("causal_conv_forward", blocks, _THREADS)
    LAUNCH(config, [wanted], args, inputs.x_btc.device)


def backward(
    inputs: Inputs,
    dparts: Sequence[Tensor],
    dx_btc: Tensor,
    dhistory_bpc: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of input and history; return those of taps and bias.

    Args:
        inputs: What the forward pass read.
        dparts: Gradients of the parts of the output, contiguous.
        dx_btc: Takes the gradient of the input; it may be a part of wider rows.
        dhistory_bpc: Takes the gradient of the history, or None.
    """
    device, channels, taps = inputs.x_btc.device, *inputs.weight_ck.shape
    dweight_ck = inputs.weight_ck.new_empty(channels, taps)
    dbias_c = inputs.weight_ck.new_empty(channels)
    tensors = {f"dy{n}": part for n, part in enumerate(dparts)}
    tensors |= {"dx": dx_btc, "dweight": dweight_ck, "dbias": dbias_c}
    if dhistory_bpc is not None:
        tensors["dhistory"] = dhistory_bpc
    args, config = _read(inputs, tensors, dparts)
    # As many shares as run at a time, each of as many chunks as the others.
    most = max(1, MULTIPROCESSORS(device) * _BACKWARD_BLOCKS // config.column_blocks)
    args.shares = math.ceil(args.chunks / math.ceil(args.chunks / most))
    partial = inputs.weight_ck.new_empty(args.shares, taps + 1, channels)
    args.partial = partial.data_ptr()
    wanted = [
        Launch("causal_conv_backward", args.shares * config.column_blocks, _THREADS),
        Launch(
            "causal_conv_finish",
            math.ceil((taps + 1) * channels / 32),
            32 * _SLICES,
            128 * _SLICES,
        ),
    ]
    LAUNCH(config, wanted, args, device)
    return dweight_ck, dbias_c


def _read(
    inputs: Inputs, more: dict[str, Tensor], parts: Sequence[Tensor]
) -> tuple[CausalConvArgs, TileConfig]:
    """Return the arguments of a pass and how it is computed."""
    tensors = {"x": inputs.x_btc, "weight": inputs.weight_ck} | more
    for name, one in (("bias", inputs.bias_c), ("history", inputs.history_bpc)):
        if one is not None:
            tensors[name] = one
    batch, steps, channels = inputs.x_btc.shape
    args = CausalConvArgs(batch=batch, steps=steps, chunks=batch * math.ceil(steps / _STEPS))
    places = strides = 0
    for name, tensor in tensors.items():
        setattr(args, name, tensor.data_ptr())
        if name not in ("weight", "bias", "dweight", "dbias"):
            places |= tensor.data_ptr() // tensor.element_size()
    for name in tensors.keys() & {"x", "dx"}:
        stride = row_stride(tensors[name])
        assert stride is not None
        setattr(args, f"{name}_stride", stride)
        strides |= stride
    if inputs.resets_bt is not None:
        args.resets = inputs.resets_bt.data_ptr()
    widths = [part.shape[-1] for part in parts] + [0] * (MOST_PARTS - len(parts))
    for width in widths:
        strides |= width
    config = TileConfig(
        inputs.weight_ck.shape[1],
        (widths[0], widths[1], widths[2]),
        _VECTOR if (places | strides) % _VECTOR == 0 else 1,
        inputs.silu,
        inputs.resets_bt is not None,
        inputs.x_btc.dtype,
    )
    assert config.channels == channels
    return args, config


def row_stride(x_btc: Tensor) -> int | None:
    """Return how many numbers lie from one step to the next, of all rows; None if they differ."""
    batch, steps, _ = x_btc.shape
    if x_btc.stride(2) != 1 and x_btc.shape[2] > 1:
        return None
    stride = x_btc.stride(1) if steps > 1 else x_btc.stride(0)
    return stride if batch == 1 or x_btc.stride(0) == steps * stride else None


@cache
def unit_text(config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a tile config's translation unit, all kernels in one.

    Args:
        config: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    g = config
    flags = f"{str(g.silu).lower()}, {str(g.resets).lower()}"
    sizes = ", ".join(map(str, (g.taps, g.vector, *g.widths)))
    stated = {"THREADS": _THREADS, "STEPS": _STEPS, "SLICES": _SLICES}
    return unit_text_of(
        "causal_conv",
        f"elman::CausalConvTileConfig<{CUDA_TYPES[g.dtype]}, {sizes}, {flags}>",
        CausalConvArgs,
        stated | {"COLUMN_BLOCKS": g.column_blocks},
        {
            "causal_conv_forward": f"G::THREADS, {_FORWARD_BLOCKS}",
            "causal_conv_backward": f"G::THREADS, {_BACKWARD_BLOCKS}",
            "causal_conv_finish": "32 * G::SLICES, 1",
        },
        device,
    )


COMPILED: CudaKernels[TileConfig] = CudaKernels(
    unit_text, "causal convolution", fast=lambda config: config.dtype != torch.float32
)
LAUNCH: Launching[TileConfig] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
MULTIPROCESSORS: Callable[[torch.device], int] = multiprocessors
"""Tells how many a device has; tests answer for the emulator."""
