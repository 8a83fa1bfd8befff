"""Dtypes and structures that the engines' compiled kernels share with Python."""

from __future__ import annotations

import ctypes
from typing import Generic, TypeVar

import torch
from torch import Tensor

from elman.base.errors import UserError

Args = TypeVar("Args", bound=ctypes.Structure)

C_TYPES = {torch.float32: "float", torch.float64: "double"}
"""Dtypes that CPU kernels compute in, with their C++ names."""
CUDA_TYPES = {torch.bfloat16: "elman::bf16", torch.float16: "elman::f16", torch.float32: "float"}
"""Dtypes that the CUDA kernels between recurrences read and write, with their C++ names."""
ENGINE_DTYPES = (torch.bfloat16, torch.float32)
"""Dtypes of sequences that an engine computes on an NVIDIA GPU."""
ENGINE_TYPES = {torch.bfloat16: "elman::bf16"} | C_TYPES
"""Dtypes of sequences in the CUDA text of an engine; only tests compile it for float64."""


def require_cpu_dtype(dtype: torch.dtype) -> None:
    """Raise UserError for a dtype in which no engine computes on a CPU."""
    if dtype not in C_TYPES:
        raise UserError(
            f"kernels.backend=cpu: computes in float32 and float64, not in {dtype}; "
            "use kernels.backend=reference"
        )


def require_cuda_dtype(dtype: torch.dtype) -> None:
    """Raise UserError for a dtype in which no engine computes on an NVIDIA GPU."""
    if dtype not in ENGINE_DTYPES:
        raise UserError(
            f"kernels.backend=cuda: computes on bfloat16 and float32, not on {dtype}; "
            "use kernels.backend=reference"
        )


def words_of(mirror: type[ctypes.Structure]) -> dict[str, int]:
    """Return the index of every field's first word in a structure of 64-bit words.

    A structure may share the memory of an ``array("q")``. To set a word of the array takes a fifth
    of the time that it takes to set the structure's field.
    """
    return {name: getattr(mirror, name).offset // 8 for name, *_ in mirror._fields_}


class Arguments(Generic[Args]):
    """The arguments of one call of a kernel, and the tensors that they point to.

    Attributes:
        args: The arguments.
        kept: The tensors.
    """

    def __init__(self, args: Args) -> None:
        self.args, self.kept = args, list[Tensor]()

    def keep(self, tensor: Tensor) -> Tensor:
        """Hold a tensor until the call is over."""
        self.kept.append(tensor)
        return tensor

    def point(self, **tensors: Tensor | None) -> None:
        """Set arguments that are one contiguous tensor each.

        Those without a tensor, or without a number in it, stay null.
        """
        for name, tensor in tensors.items():
            if tensor is not None and tensor.numel():
                setattr(self.args, name, self.keep(tensor.contiguous()).data_ptr())
