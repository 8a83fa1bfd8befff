"""One call of E63m's kernels on a CPU."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from elman.kernels.build import load_library
from elman.ops.common.backend import require_cpu
from elman.ops.common.cpu_kernels import Kernel, functions
from elman.ops.common.native import C_TYPES, require_cpu_dtype
from elman.ops.matrix_state.slots.abi import SlotsArgs, layout


def run(args: SlotsArgs, like: Tensor, *, backward: bool) -> None:
    """Run a pass in a workspace of the size that it needs.

    Args:
        args: The call.
        like: One of its tensors.
        backward: Which pass.

    Raises:
        UserError: the kernel does not read this device or dtype, or cannot be compiled.
    """
    require_cpu(like)
    kernel = kernel_for(like.dtype, bool(args.resets))
    workspace = like.new_empty(kernel.workspace(args) // like.element_size())
    args.workspace = workspace.data_ptr()
    (kernel.backward if backward else kernel.forward)(args)


@cache
def kernel_for(dtype: torch.dtype, resets: bool) -> Kernel:
    """Return the kernel for a dtype, compiled if it was not compiled before.

    Args:
        dtype: Of all tensors.
        resets: Whether it reads a mask of resets.

    Raises:
        UserError: there is none, or it cannot be compiled.
    """
    require_cpu_dtype(dtype)
    text = f"ELMAN_SLOTS(slots, {C_TYPES[dtype]}, {str(resets).lower()})\n"
    text = f'#include "cpu/matrix_state/slots.h"\n\n{layout()}{text}'
    return functions(load_library(text, "e63m"), "slots", SlotsArgs)
