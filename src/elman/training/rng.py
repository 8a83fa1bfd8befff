"""The random generators that a training step may draw from."""

from __future__ import annotations

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
