"""What layers compute with silu beside their recurrence, each in one kernel on a GPU.

PyTorch computes silu(p), silu(z) and h silu(z) in three kernels, and their gradients in seven. On
parts of a projection it moves one number at a time. Around a recurrence as fast as a cluster's,
that is a sixth of a training step.

Shape legend: b batch, t time, i channels of a branch, k = 2 i.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.precision import cast
from elman.ops.common.transforms import KernelFunction, apply, in_a_cuda_kernel
from elman.ops.silu_gate import cuda


def split(projected_btk: Tensor, *, backend: str) -> tuple[Tensor, Tensor]:
    """Return silu of the first half of a projection, and its second half.

    Args:
        projected_btk: The projection.
        backend: Name of the layer's backend; ``cuda`` computes in a kernel.
    """
    if not in_a_cuda_kernel(backend, (projected_btk,), CUDA_TYPES):
        p_bti, z_bti = projected_btk.chunk(2, dim=-1)
        return functional.silu(p_bti), z_bti
    halves: tuple[Tensor, Tensor] = apply(_Split, projected_btk)
    return halves


def swiglu(projected_btk: Tensor, *, backend: str) -> Tensor:
    """Return silu of the first half of a projection times its second half.

    Args:
        projected_btk: The projection.
        backend: Name of the layer's backend; ``cuda`` computes in a kernel.
    """
    if not in_a_cuda_kernel(backend, (projected_btk,), CUDA_TYPES):
        z_bti, v_bti = projected_btk.chunk(2, dim=-1)
        return functional.silu(z_bti) * v_bti
    o_bti: Tensor = apply(_SwiGLU, projected_btk)
    return o_bti


def gate(h_bti: Tensor, z_bti: Tensor, *, backend: str) -> Tensor:
    """Return h silu(z) in the dtype of z.

    Args:
        h_bti: What is gated.
        z_bti: The gate's argument; it may be part of a larger tensor.
        backend: Name of the layer's backend; ``cuda`` computes in a kernel.
    """
    if not in_a_cuda_kernel(backend, (h_bti, z_bti), CUDA_TYPES):
        return cast(h_bti * functional.silu(z_bti), z_bti.dtype)
    o_bti: Tensor = apply(_Gate, h_bti, z_bti)
    return o_bti


def self_gate(h_bti: Tensor, dtype: torch.dtype, *, backend: str) -> Tensor:
    """Return h silu(h) (vector-state specification 2.2).

    Args:
        h_bti: What is gated by itself.
        dtype: Dtype of the output.
        backend: Name of the layer's backend; ``cuda`` computes in a kernel.
    """
    if dtype not in CUDA_TYPES or not in_a_cuda_kernel(backend, (h_bti,), CUDA_TYPES):
        return cast(h_bti * functional.silu(h_bti), dtype)
    o_bti: Tensor = apply(_SelfGate, h_bti, dtype)
    return o_bti


def _room(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


class _Split(KernelFunction):
    @staticmethod
    def forward(ctx: Any, projected_btk: Tensor) -> tuple[Tensor, Tensor]:
        p_bti, z_bti = projected_btk.chunk(2, dim=-1)
        u_bti, dtype = _room(p_bti), p_bti.dtype
        cuda.run("silu_split_forward", p_bti.shape[-1], dtype, dtype, z=p_bti, out=u_bti)
        ctx.save_for_backward(projected_btk)
        return u_bti, z_bti

    @staticmethod
    def backward(ctx: Any, du_bti: Tensor, dz_bti: Tensor) -> Tensor:
        (projected_btk,) = ctx.saved_tensors
        p_bti, dprojected_btk = projected_btk.chunk(2, dim=-1)[0], _room(projected_btk)
        cuda.run(
            "silu_split_backward",
            p_bti.shape[-1],
            p_bti.dtype,
            p_bti.dtype,
            z=p_bti,
            dout=du_bti.contiguous(),
            dsecond=dz_bti.contiguous(),
            dz=dprojected_btk,
        )
        return dprojected_btk


class _SwiGLU(KernelFunction):
    @staticmethod
    def forward(ctx: Any, projected_btk: Tensor) -> Tensor:
        projected_btk = projected_btk.contiguous()
        z_bti, dtype = projected_btk.chunk(2, dim=-1)[0], projected_btk.dtype
        o_bti = _room(z_bti)
        cuda.run("swiglu_forward", z_bti.shape[-1], dtype, dtype, z=z_bti, out=o_bti)
        ctx.save_for_backward(projected_btk)
        return o_bti

    @staticmethod
    def backward(ctx: Any, do_bti: Tensor) -> Tensor:
        (projected_btk,) = ctx.saved_tensors
        dprojected_btk, dtype = _room(projected_btk), projected_btk.dtype
        z_bti, do_bti = projected_btk.chunk(2, dim=-1)[0], do_bti.contiguous()
        width = z_bti.shape[-1]
        cuda.run("swiglu_backward", width, dtype, dtype, z=z_bti, dout=do_bti, dz=dprojected_btk)
        return dprojected_btk


class _Gate(KernelFunction):
    @staticmethod
    def forward(ctx: Any, h_bti: Tensor, z_bti: Tensor) -> Tensor:
        h_bti, o_bti = h_bti.contiguous(), _room(z_bti)
        given = (h_bti.shape[-1], h_bti.dtype, z_bti.dtype)
        cuda.run("silu_gate_forward", *given, h=h_bti, z=z_bti, out=o_bti)
        ctx.save_for_backward(h_bti, z_bti)
        return o_bti

    @staticmethod
    def backward(ctx: Any, do_bti: Tensor) -> tuple[Tensor, Tensor]:
        h_bti, z_bti = ctx.saved_tensors
        dh_bti, dz_bti = _room(h_bti), _room(z_bti)
        cuda.run(
            "silu_gate_backward",
            h_bti.shape[-1],
            h_bti.dtype,
            z_bti.dtype,
            h=h_bti,
            z=z_bti,
            dout=do_bti.contiguous(),
            dh=dh_bti,
            dz=dz_bti,
        )
        return dh_bti, dz_bti


class _SelfGate(KernelFunction):
    @staticmethod
    def forward(ctx: Any, h_bti: Tensor, dtype: torch.dtype) -> Tensor:
        h_bti = h_bti.contiguous()
        o_bti = _room(h_bti, dtype)
        given = (h_bti.shape[-1], h_bti.dtype, dtype)
        cuda.run("silu_self_gate_forward", *given, h=h_bti, out=o_bti)
        ctx.save_for_backward(h_bti)
        ctx.dtype = dtype
        return o_bti

    @staticmethod
    def backward(ctx: Any, do_bti: Tensor) -> tuple[Tensor, None]:
        (h_bti,) = ctx.saved_tensors
        dh_bti, do_bti = _room(h_bti), do_bti.contiguous()
        given = (h_bti.shape[-1], h_bti.dtype, ctx.dtype)
        cuda.run("silu_self_gate_backward", *given, h=h_bti, dout=do_bti, dh=dh_bti)
        return dh_bti, None
