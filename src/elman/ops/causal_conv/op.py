"""The causal convolution as layers call it: one kernel each way, on a GPU with silu in it.

PyTorch's gradient of a depthwise convolution takes a third of a training step of Mamba2, and its
input and output are copied before and after it. Here the input may be a part of a projection, the
output on a GPU may be several tensors, and the backward pass writes the whole gradient of the
projection.

Shape legend: b batch, t time, c channels, k taps, p = k - 1 past steps, e channels of a projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.causal_conv import cpu, cuda, reference
from elman.ops.causal_conv.inputs import Inputs
from elman.ops.causal_conv.reference import next_history
from elman.ops.common.checks import FLOATING, check, check_resets
from elman.ops.common.native import C_TYPES, CUDA_TYPES
from elman.ops.common.precision import cast
from elman.ops.common.transforms import KernelFunction, apply, watched

_KERNELS: dict[str, ModuleType] = {"cpu": cpu, "cuda": cuda}
"""By the name of the backend; each has ``forward`` and ``backward``."""


class Layout(NamedTuple):
    """What lies side by side in a projection.

    Args:
        before: Channels of each piece before the convolution's input.
        parts: Channels of each part of the convolution's input and output.
        after: Channels of each piece behind it.
    """

    before: tuple[int, ...]
    parts: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def place(self) -> slice:
        """The convolution's channels."""
        start = sum(self.before)
        return slice(start, start + sum(self.parts))


def causal_conv(
    x_btc: Tensor,
    weight_ck: Tensor,
    bias_c: Tensor | None,
    history_bpc: Tensor | None,
    resets_bt: Tensor | None = None,
    *,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Convolve one part of a sequence: y_t = bias + sum_j w_j x_{t-(k-1)+j}.

    Args:
        x_btc: Input.
        weight_ck: Taps; the last one multiplies the current step.
        bias_c: Bias, or None.
        history_bpc: The k - 1 inputs before it; None is zeros.
        resets_bt: True where a row starts anew: the inputs before such a step count as zeros for
            this step and all later ones. None is nowhere.
        backend: Name of the layer's backend; ``cpu`` and ``cuda`` compute in a kernel.

    Returns:
        The output, and the history for the next part.

    Raises:
        ValueError: history or resets have another shape, dtype or device than the input.
    """
    layout = Layout((), (x_btc.shape[-1],), ())
    (y_btc,), history = split_conv(
        x_btc, weight_ck, bias_c, history_bpc, layout, resets_bt, backend=backend
    )
    return y_btc, history


def split_conv(
    projected_bte: Tensor,
    weight_ck: Tensor,
    bias_c: Tensor | None,
    history_bpc: Tensor | None,
    layout: Layout,
    resets_bt: Tensor | None = None,
    *,
    silu: bool = False,
    backend: str,
) -> tuple[list[Tensor], Tensor]:
    """Split a projection, of which some pieces pass a causal convolution.

    Args:
        projected_bte: The projection.
        weight_ck: Taps of the convolution; the last one multiplies the current step.
        bias_c: Its bias, or None.
        history_bpc: The k - 1 inputs before it; None is zeros.
        layout: The pieces.
        resets_bt: As for :func:`causal_conv`.
        silu: Whether the convolved pieces pass silu, too.
        backend: As for :func:`causal_conv`.

    Returns:
        All pieces in order, of which those of ``layout.parts`` are convolved, and the history for
        the next part of the sequence.

    Raises:
        ValueError: history or resets have another shape, dtype or device than the input.
    """
    x_btc = projected_bte[..., layout.place]
    if not _in_a_kernel(projected_bte, weight_ck, layout, silu, backend):
        before, _, after = _split(projected_bte, layout)
        y_btc, history = reference.causal_conv(x_btc, weight_ck, bias_c, history_bpc, resets_bt)
        y_btc = functional.silu(y_btc) if silu else y_btc
        return [*before, *y_btc.split(layout.parts, dim=-1), *after], history
    _check(x_btc, weight_ck, history_bpc)
    check_resets("the convolution", resets_bt, x_btc)
    tensors = (projected_bte, weight_ck, bias_c, history_bpc, resets_bt)
    pieces: tuple[Tensor, ...] = apply(_Conv, *tensors, layout, silu, backend)
    return list(pieces), next_history(x_btc, history_bpc, weight_ck.shape[1], resets_bt)


def _in_a_kernel(
    projected_bte: Tensor, weight_ck: Tensor, layout: Layout, silu: bool, backend: str
) -> bool:
    """Return whether a kernel computes a call; compilers and transforms see PyTorch's operators."""
    taps, dtype = weight_ck.shape[1], projected_bte.dtype
    if backend == "cpu":
        takes = dtype in C_TYPES and weight_ck.dtype == dtype and taps <= cpu.MOST_TAPS
        takes = takes and not silu and len(layout.parts) == 1
    else:
        takes = backend == "cuda" and dtype in CUDA_TYPES and weight_ck.dtype == torch.float32
        takes = takes and taps <= cuda.MOST_TAPS and len(layout.parts) <= cuda.MOST_PARTS
    full = projected_bte.numel() > 0 and taps >= 2
    return takes and full and not watched((projected_bte, weight_ck))


def _check(x_btc: Tensor, weight_ck: Tensor, history_bpc: Tensor | None) -> None:
    if history_bpc is not None:
        shape = (x_btc.shape[0], weight_ck.shape[1] - 1, x_btc.shape[2])
        check("history of the convolution", history_bpc, shape, x_btc.device, FLOATING)


def _split(
    projected_bte: Tensor, layout: Layout
) -> tuple[Sequence[Tensor], Tensor, Sequence[Tensor]]:
    """Return the pieces before the convolution's input, the input, and the pieces behind it."""
    sizes = [*layout.before, sum(layout.parts), *layout.after]
    pieces = projected_bte.split(sizes, dim=-1)
    n = len(layout.before)
    return pieces[:n], pieces[n], pieces[n + 1 :]


class _Conv(KernelFunction):
    @staticmethod
    def forward(
        ctx: Any,
        projected_bte: Tensor,
        weight_ck: Tensor,
        bias_c: Tensor | None,
        history_bpc: Tensor | None,
        resets_bt: Tensor | None,
        layout: Layout,
        silu: bool,
        backend: str,
    ) -> tuple[Tensor, ...]:
        if cuda.row_stride(projected_bte) is None:
            projected_bte = projected_bte.contiguous()
        before, x_btc, after = _split(projected_bte, layout)
        sizes = x_btc.shape[:2]
        parts = [projected_bte.new_empty(*sizes, width) for width in layout.parts]
        ctx.save_for_backward(projected_bte, weight_ck, bias_c, history_bpc, resets_bt)
        ctx.layout, ctx.silu, ctx.backend = layout, silu, backend
        inputs = _inputs(x_btc, weight_ck, bias_c, history_bpc, resets_bt, silu)
        _KERNELS[backend].forward(inputs, parts)
        ctx.set_materialize_grads(False)
        return (*before, *parts, *after)

    @staticmethod
    def backward(ctx: Any, *dpieces: Tensor | None) -> tuple[Tensor | None, ...]:
        projected_bte, weight_ck, bias_c, history_bpc, resets_bt = ctx.saved_tensors
        layout, room = ctx.layout, torch.contiguous_format
        dprojected_bte = torch.empty_like(projected_bte, memory_format=room)
        before, dx_btc, after = _split(dprojected_bte, layout)
        first, last = len(layout.before), len(layout.before) + len(layout.parts)
        for piece, gradient in zip(
            (*before, *after), (*dpieces[:first], *dpieces[last:]), strict=True
        ):
            piece.zero_() if gradient is None else piece.copy_(gradient)
        dparts = [
            dx_btc.new_zeros(*dx_btc.shape[:2], width) if one is None else one.contiguous()
            for one, width in zip(dpieces[first:last], layout.parts, strict=True)
        ]
        x_btc = projected_bte[..., layout.place]
        inputs = _inputs(x_btc, weight_ck, bias_c, history_bpc, resets_bt, ctx.silu)
        dhistory_bpc = None
        if inputs.history_bpc is not None:
            dhistory_bpc = torch.empty_like(inputs.history_bpc)
        dweight_ck, dbias_c = _KERNELS[ctx.backend].backward(inputs, dparts, dx_btc, dhistory_bpc)
        return (
            dprojected_bte,
            dweight_ck,
            None if bias_c is None else cast(dbias_c, bias_c.dtype),
            None if dhistory_bpc is None else cast(dhistory_bpc, history_bpc.dtype),
            *4 * (None,),
        )


def _inputs(
    x_btc: Tensor,
    weight_ck: Tensor,
    bias_c: Tensor | None,
    history_bpc: Tensor | None,
    resets_bt: Tensor | None,
    silu: bool,
) -> Inputs:
    """Return what both passes read, in the dtypes and the order of memory that kernels need."""
    return Inputs(
        x_btc,
        weight_ck.contiguous(),
        None if bias_c is None else cast(bias_c, weight_ck.dtype).contiguous(),
        None if history_bpc is None else cast(history_bpc, x_btc.dtype).contiguous(),
        None if resets_bt is None else resets_bt.contiguous(),
        silu,
    )
