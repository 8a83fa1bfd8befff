"""Notices a loss or a gradient that is not finite, without waiting for the device."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class FiniteCheck:
    """A flag on the device that blocks the update of a step and of all that follow.

    On a GPU it is read one step late, so that nothing waits.

    Args:
        device: Where the model lives.

    Attributes:
        blocked: The flag. It stays set: after a number that is not finite no later update may
            reach the weights.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.blocked = torch.zeros((), dtype=torch.bool, device=device)
        self._flags: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def note(self, step: int) -> None:
        """Start copying the flag to the host, after the update of a step."""
        self._flags.append((step, *self._fetch()))

    def blocked_step(self, drain: bool = False) -> int | None:
        """Return the first step whose update was blocked, if one was.

        Args:
            drain: Read the flag of the newest step too, at the end of a run.
        """
        late = 1 if self._device.type == "cuda" and not drain else 0
        while len(self._flags) > late:
            step, flag, event = self._flags.popleft()
            if event is not None:
                event.synchronize()
            if bool(flag):
                return step
        return None

    def _fetch(self) -> tuple[Tensor, torch.cuda.Event | None]:
        """Start copying the flag to the host; the event says when it has arrived."""
        if self._device.type != "cuda":
            return self.blocked.clone(), None
        host = torch.empty((), dtype=torch.bool, pin_memory=True)
        host.copy_(self.blocked, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return host, event
