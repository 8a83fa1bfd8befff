"""The dense engine's stepwise CUDA kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.dense.cuda import stepwise
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, of_dense_step

_BACKWARD = ("dense_backward", "dense_candidate")


def starter_of(
    unit_text: Callable[[Any, str], str],
    stretches_of: Callable[[Any, Any, str], Sequence[Stretch | None]],
) -> Callable[..., Callable[[Sequence[Launch]], None]]:
    """Return what makes the stand-ins for launches of an engine, as its ``STARTER`` does.

    Args:
        unit_text: From a config and a header to a translation unit.
        stretches_of: From arguments, config and kernel to what it may touch.
    """

    def starter(
        config: Any, call: Any, library: Callable[[str], ctypes.CDLL] = emulator.loaded
    ) -> Callable[[Sequence[Launch]], None]:
        fast = config.io == torch.bfloat16
        compiled = library(unit_text(config, emulator.header_for(fast)))

        def start(wanted: Sequence[Launch]) -> None:
            for one in wanted:
                stretches = stretches_of(call.args, config, one.kernel)
                check_room(stretches, call.kept)
                declare(compiled, stretches)
                emulator.start(compiled, one, call.args)

        return start

    return starter


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


starter = starter_of(
    stepwise.unit_text,
    lambda args, config, kernel: of_dense_step(args, config, backward=kernel in _BACKWARD),
)
