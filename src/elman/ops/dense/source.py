"""From steps to compiled CPU kernels of the dense engine."""

from __future__ import annotations

import torch

from elman.ops.common.cpu_kernels import StepKernels
from elman.ops.common.native import C_TYPES
from elman.ops.dense.abi import DenseArgs, layouts
from elman.ops.dense.recurrences import compiled_cell


def structure(step: str, dtype: torch.dtype, name: str, resets: bool = False) -> str:
    """Return the C++ ``Spec`` of csrc/cpu/dense/engine.h.

    Args:
        step: Name of the step.
        dtype: What it reads, computes in and writes.
        name: Name of the structure.
        resets: Whether the kernel knows resets.
    """
    cell = compiled_cell(step)
    return (
        f"struct {name} {{\n{cell.code}"
        f"    using T = {C_TYPES[dtype]};\n"
        f"    using Cell = {cell.type};\n"
        f"    static constexpr bool RESETS = {str(resets).lower()};\n"
        f"{cell.assertions(step)}"
        "};\n"
    )


KERNELS = StepKernels("dense", DenseArgs, layouts, structure)
"""Those that this process has loaded."""

kernel_for = KERNELS.kernel_for
