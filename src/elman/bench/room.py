"""Tells before anything is allocated what does not fit into a CPU's memory.

A GPU refuses an allocation that is too large. On a CPU the system kills the process later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elman.base.units import MEMORY
from elman.bench.build import step_training
from elman.bench.entries import Entry
from elman.config.run_config import RunConfig
from elman.training.memory.estimate import available_memory
from elman.training.memory.quick import quick_memory

_FP32_BYTES = 4


def too_large(
    config: RunConfig, chosen: Sequence[Entry], level: str, device: torch.device
) -> str | None:
    """Return what the largest layer or step needs if that is more than is free, else None.

    Args:
        config: The configuration of a benchmark at one shape.
        chosen: What is timed.
        level: ``layer`` or ``step``.
        device: Where it is timed.
    """
    if device.type != "cpu":
        return None
    settings = config.bench
    assert settings is not None
    available = available_memory(device)
    positions = settings.batch_size * settings.chunk_size
    needed = _FP32_BYTES * positions * max(entry.model.dim for entry in chosen)
    if level == "layer":
        needed *= 4  # at least the input, the output and their gradients
    elif needed <= available:  # an estimate of far larger tensors would overflow
        train = {"train": step_training(settings)}
        needed = max(
            quick_memory(entry.of_run(config).model_copy(update=train)) for entry in chosen
        )
    if needed <= available:
        return None
    return f"needs at least {MEMORY.text(needed, 1)} and {MEMORY.text(available, 1)} are free"
