"""The dense engine's stepwise CUDA kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.dense.cuda import stepwise
from elman.ops.dense.cuda.stepwise import StepConfig
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, of_dense_step

_BACKWARD = ("dense_backward", "dense_candidate")


def starter(
    config: StepConfig,
    call: stepwise._KernelCall,
    library: Callable[[str], ctypes.CDLL] = emulator.loaded,
) -> Callable[[Sequence[Launch]], None]:
    """Return what stands in for a launch of kernels.

    Args:
        config: What they are compiled for.
        call: Whose arguments they read.
        library: Compiles and loads a translation unit.
    """
    fast = config.io == torch.bfloat16
    compiled = library(stepwise.unit_text(config, emulator.header_for(fast)))

    def start(wanted: Sequence[Launch]) -> None:
        for one in wanted:
            backward = one.kernel in _BACKWARD
            stretches = of_dense_step(call.args, config, backward=backward)
            check_room(stretches, call.kept)
            declare(compiled, stretches)
            emulator.start(compiled, one, call.args)

    return start


def check_room(stretches: Sequence[Stretch | None], kept: Sequence[Tensor]) -> None:
    """Compare what kernels may touch with the memory that the call holds.

    Raises:
        FaultError: a tensor is smaller than what is said to lie in it.
    """
    for one in stretches:
        if one is None:
            continue
        end = one.first + one.row
        end += sum((n - 1) * by for n, by in zip(one.counts, one.strides, strict=True))
        if not any(
            tensor.untyped_storage().data_ptr() <= one.first
            and end <= tensor.untyped_storage().data_ptr() + tensor.untyped_storage().nbytes()
            for tensor in kept
        ):
            raise emulator.FaultError(f"{one.name.decode()}: beyond every tensor of the call")
