"""Kernels whose blocks wait for each other give up after some seconds instead of hanging.

Such a kernel leaves NaN in its results and writes to a word in the host's memory. Reading that word
takes no synchronization and asks nothing of the GPU, so that kernels may be replayed as a graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.base.errors import UserError

_words: dict[int | None, Tensor] = {}


def word(device: int | None) -> Tensor:
    """Return the number, int32, that a kernel on a device sets when it gives up.

    Args:
        device: Index of a GPU, which can write to it; None is the CPU, where tests run kernels.
    """
    found = _words.get(device)
    if found is None:
        found = torch.zeros(1, dtype=torch.int32, pin_memory=device is not None)
        _words[device] = found
    return found


def check() -> None:
    """Complain if a kernel has given up since this was asked last.

    Raises:
        UserError: one has, on any device.
    """
    for device, found in _words.items():
        if int(found[0]):
            found.zero_()
            raise UserError(
                f"kernels.backend=cuda: a kernel on GPU {device or 0} waited 8 s for its own blocks"
                " and gave up, so that its results are NaN; end other programs on that GPU "
                "(nvidia-smi names them), or use kernels.backend=reference"
            )
