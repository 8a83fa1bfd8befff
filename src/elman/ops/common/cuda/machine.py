"""What an engine asks of a GPU before it chooses kernels."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch


class Machine(NamedTuple):
    """A GPU.

    Args:
        capability: Its compute capability.
        multiprocessors: How many it has; 0 is unknown.
    """

    capability: tuple[int, int]
    multiprocessors: int


@cache
def machine(device: int | None) -> Machine:
    """Return a GPU by its index; no index is the CPU, where tests run the kernels' sources."""
    if device is None:
        return Machine((0, 0), 0)
    properties = torch.cuda.get_device_properties(device)
    return Machine((properties.major, properties.minor), properties.multi_processor_count)
