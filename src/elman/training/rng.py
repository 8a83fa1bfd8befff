"""The random generators that a training step may draw from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators that a step may use."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_state(states: dict[str, Tensor], device: torch.device) -> None:
    """Put the generators back to ``states``."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def seed_part(seed: int, step: int, micro_batch: int, part: int) -> None:
    """Make random numbers a function of the seed and the place in the run, on any rank.

    Args:
        seed: ``train.seed``.
        step: Optimizer steps done.
        micro_batch: Number of the micro-batch in its step.
        part: Number of the part in its batch, over all ranks.
    """
    numbers = (seed, step, micro_batch, part)
    (made,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    torch.manual_seed(int(made))
