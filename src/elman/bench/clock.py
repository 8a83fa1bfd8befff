"""Times the parts of an iteration: on a CPU by wall time, on a GPU by the GPU's clock."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Protocol

import torch


class Clock(Protocol):
    """Divides time into parts; each part lasts from the previous mark to its own mark."""

    def start(self) -> None:
        """Start the first part."""

    def mark(self, part: str) -> None:
        """End a part and start the next one. The same part may occur several times."""

    def read(self) -> dict[str, float]:
        """Return the seconds of every part since the last reading."""


class WallClock:
    """The clock of a CPU."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last = 0.0

    def start(self) -> None:
        """See :class:`Clock`."""
        self._last = time.perf_counter()

    def mark(self, part: str) -> None:
        """See :class:`Clock`."""
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now

    def read(self) -> dict[str, float]:
        """See :class:`Clock`."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


class DeviceClock:
    """The clock of a GPU: events in its stream, read after the device has reached them."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._last = self._event()

    def start(self) -> None:
        """See :class:`Clock`."""
        self._last = self._event()

    def mark(self, part: str) -> None:
        """See :class:`Clock`."""
        now = self._event()
        self._parts.append((part, self._last, now))
        self._last = now

    def read(self) -> dict[str, float]:
        """See :class:`Clock`."""
        torch.cuda.synchronize()
        seconds: defaultdict[str, float] = defaultdict(float)
        for part, began, ended in self._parts:
            seconds[part] += began.elapsed_time(ended) / 1e3
        self._parts.clear()
        return dict(seconds)

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def clock_for(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return DeviceClock() if device.type == "cuda" else WallClock()
