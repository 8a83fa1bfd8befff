"""The tape engine's CUDA kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from elman.kernels.launching import Launch
from elman.ops.tape.cuda import stepwise
from elman.ops.tape.cuda.stepwise import StepConfig
from tests.emulation import emulator
from tests.emulation.dense_emulator import check_room
from tests.emulation.stretches import declare, of_tape_step


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
            stretches = of_tape_step(call.args, config, one.kernel)
            check_room(stretches, call.kept)
            declare(compiled, stretches)
            emulator.start(compiled, one, call.args)

    return start
