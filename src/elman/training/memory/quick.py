"""The memory estimate of a training step, in a second instead of ten.

The exact estimate runs a whole window of text on the meta device. That is slow for a reference loop
over time, which takes operations for every byte. The quick estimate runs shorter windows with
proportionally more rows, and extrapolates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from elman.config.run_config import RunConfig
from elman.models.build import build_model
from elman.training.memory.estimate import estimate_memory
from elman.training.memory.meta_walk import MetaWalk

# Squares, because a loop over T steps is recomputed in segments of sqrt(T) steps.
_WINDOWS = (4, 9, 16)


def quick_memory(config: RunConfig) -> int:
    """Return the bytes that a training step of ``config`` needs, exactly or to a few percent.

    With rows times window held constant, the tensors that a layer saves have a constant size. The
    states between the segments of a time loop fall as 1/sqrt(T), and the temporaries of one step
    as 1/T.
    """
    window = config.train.chunk_size
    if window <= _WINDOWS[-1] or not _loops_over_time(config):
        return estimate_memory(config).total
    powers = np.array([0.0, -0.5, -1.0])
    totals = [_in_windows(config, length) for length in _WINDOWS]
    terms = np.linalg.solve(np.array(_WINDOWS, float)[:, None] ** powers, np.array(totals, float))
    return round(float(terms @ (float(window) ** powers)))


def _in_windows(config: RunConfig, length: int) -> int:
    """Return the estimate for the same number of bytes in shorter windows."""
    train = config.train
    rows = max(1, round(train.batch_size * train.chunk_size / length))
    short = train.model_copy(update={"chunk_size": length})
    return estimate_memory(config.model_copy(update={"train": short}), rows).total


def _loops_over_time(config: RunConfig) -> bool:
    """Whether a longer window takes more operations."""
    small, _ = config.model.few_layers()
    model = build_model(small, backend=config.kernels.backend, device="meta")
    short, longer = (_operations(model, length) for length in _WINDOWS[:2])
    return longer > short


def _operations(model: torch.nn.Module, length: int) -> int:
    """Return the number of operations of a forward pass over ``length`` bytes."""
    tokens = torch.empty(1, length, dtype=torch.uint8, device="meta")
    with torch.no_grad(), _Operations() as counted:
        model(tokens)
    number: int = counted.number
    return number


class _Operations(MetaWalk):
    """Counts the operations under this mode."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return super().__torch_dispatch__(func, types, args, kwargs)
