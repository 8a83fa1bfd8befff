"""A matrix divided by its largest singular value, and its gradient, on a GPU in two kernels each.

PyTorch takes about 23 kernels for both. Beside a recurrence as fast as a cluster's, those of six
layers are a fortieth of a training step.

Shape legend: r rows and c columns of the matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elman.ops.common.transforms import KernelFunction, apply, in_a_cuda_kernel
from elman.ops.spectral_norm import cuda


def in_a_kernel(weight_rc: Tensor, u_r: Tensor, v_c: Tensor, backend: str) -> bool:
    """Return whether kernels compute a call; compilers and transforms see PyTorch's operators.

    Args:
        weight_rc: The matrix.
        u_r: Left singular vector.
        v_c: Right singular vector.
        backend: Name of the layer's backend.
    """
    return in_a_cuda_kernel(backend, (weight_rc, u_r, v_c), (torch.float32,))


def normalized(weight_rc: Tensor, u_r: Tensor, v_c: Tensor, radius: float, eps: float) -> Tensor:
    """Return W radius / (|u^T W v| + eps), differentiable in W, with u and v constant.

    Its gradient is k (G - sign(s) <G, W> / (|s| + eps) u v^T), where s = u^T W v, k is the factor
    of W and G the gradient of the result (vector-state specification 2.4).

    Args:
        weight_rc: W, fp32.
        u_r: u, fp32.
        v_c: v, fp32.
        radius: See above.
        eps: See above.
    """
    normed_rc: Tensor = apply(_Normalized, weight_rc, u_r, v_c, radius, eps)
    return normed_rc


class _Normalized(KernelFunction):
    @staticmethod
    def forward(
        ctx: Any, weight_rc: Tensor, u_r: Tensor, v_c: Tensor, radius: float, eps: float
    ) -> Tensor:
        weight_rc, u_r, v_c = weight_rc.contiguous(), u_r.contiguous(), v_c.contiguous()
        normed_rc, parts_g = cuda.forward(weight_rc, u_r, v_c, radius, eps)
        ctx.save_for_backward(weight_rc, u_r, v_c, parts_g)
        ctx.numbers = radius, eps
        return normed_rc

    @staticmethod
    def backward(ctx: Any, dnormed_rc: Tensor) -> tuple[Tensor | None, ...]:
        dnormed_rc = dnormed_rc.contiguous()
        return cuda.backward(dnormed_rc, *ctx.saved_tensors, *ctx.numbers), *[None] * 4
