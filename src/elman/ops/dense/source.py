"""From steps to compiled CPU kernels of the dense engine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from elman.base.errors import UserError
from elman.kernels.build import load_library
from elman.ops.common.native import C_TYPES
from elman.ops.dense.abi import DenseArgs, layouts
from elman.ops.dense.recurrences import compiled_cell


@dataclass(frozen=True)
class Kernel:
    """The functions of a loaded kernel: each takes one DenseArgs, the last returns bytes."""

    forward: Any
    backward: Any
    workspace: Any


def structure(step: str, dtype: torch.dtype, name: str) -> str:
    """Return the C++ ``Spec`` of csrc/cpu/dense/engine.h.

    Args:
        step: Name of the step.
        dtype: What it reads, computes in and writes.
        name: Name of the structure.
    """
    cell = compiled_cell(step)
    return (
        f"struct {name} {{\n{cell.code}"
        f"    using T = {C_TYPES[dtype]};\n"
        f"    using Cell = {cell.type};\n"
        f"{cell.assertions(step)}"
        "};\n"
    )


_loaded: dict[tuple[str, torch.dtype], Kernel] = {}


def kernel_for(step: str, dtype: torch.dtype) -> Kernel:
    """Return the kernel of a step, compiled if it was not compiled before.

    Raises:
        UserError: there is no kernel for the step or dtype, or it cannot be compiled.
    """
    if (step, dtype) not in _loaded:
        prepare([step], dtype, step)
    return _loaded[step, dtype]


def prepare(steps: Iterable[str], dtype: torch.dtype, label: str) -> None:
    """Compile and load the kernels that are not loaded yet, all as one library.

    Args:
        steps: Names of the steps.
        dtype: Dtype of their kernels.
        label: What they are, for people.

    Raises:
        UserError: as :func:`kernel_for`.
    """
    if dtype not in C_TYPES:
        raise UserError(
            f"kernels.backend=cpu: computes in float32 and float64, not in {dtype}; "
            "use kernels.backend=reference"
        )
    missing = [step for step in dict.fromkeys(steps) if (step, dtype) not in _loaded]
    if not missing:
        return
    names = [f"dense_{i}" for i in range(len(missing))]
    pairs = list(zip(missing, names, strict=True))
    structures = "".join(structure(step, dtype, f"Spec_{name}") for step, name in pairs)
    exports = "".join(f"ELMAN_DENSE({name}, elman::Spec_{name})\n" for name in names)
    inner = f"namespace elman {{\nnamespace {{\n{structures}}}\n}}\n"
    library = load_library(f'#include "cpu/dense/engine.h"\n\n{layouts()}{inner}{exports}', label)
    for step, name in pairs:
        _loaded[step, dtype] = _functions(library, name)


def _functions(library: ctypes.CDLL, name: str) -> Kernel:
    parts = [library[f"{name}_{part}"] for part in ("forward", "backward", "workspace")]
    for part in parts:
        part.argtypes = (ctypes.POINTER(DenseArgs),)
        part.restype = None
    parts[-1].restype = ctypes.c_int64
    return Kernel(*parts)
