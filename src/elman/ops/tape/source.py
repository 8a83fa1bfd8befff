"""From writes to compiled CPU kernels of the tape engine."""

from __future__ import annotations

import torch

from elman.ops.common.cpu_kernels import StepKernels
from elman.ops.common.native import C_TYPES
from elman.ops.tape.abi import TapeArgs, layouts
from elman.ops.tape.recurrences import compiled_cell


def structure(write: str, dtype: torch.dtype, name: str, resets: bool = False) -> str:
    """Return the C++ ``Spec`` of csrc/cpu/tape/engine.h.

    Args:
        write: Name of the write.
        dtype: What the kernel reads, computes in and writes.
        name: Name of the structure.
        resets: Whether the kernel knows resets.
    """
    cell = compiled_cell(write)
    return (
        f"struct {name} {{\n"
        f"    using T = {C_TYPES[dtype]};\n"
        f"    using Cell = {cell.type};\n"
        f"    static constexpr bool RESETS = {str(resets).lower()};\n"
        f"{cell.assertions(write)}"
        "};\n"
    )


KERNELS = StepKernels("tape", TapeArgs, layouts, structure)
"""Those that this process has loaded."""

kernel_for = KERNELS.kernel_for
