"""A torch profiler trace of a few steps, for ``train.profile=true``."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from elman.base import run_files
from elman.base.errors import first_line
from elman.base.exit_status import RunStatus
from elman.training.moments import Listener, Step

_log = logging.getLogger("elman.train")
SKIPPED, RECORDED = 3, 3


class Profile(Listener):
    """Writes a trace of steps 4 to 6, which opens in Perfetto or chrome://tracing.

    Args:
        folder: Where ``profile.json`` lands.
        device: Where the model lives.
        enabled: Whether it does so at all.
    """

    def __init__(self, folder: Path, device: torch.device, enabled: bool) -> None:
        self._folder, self._device, self._enabled = folder, device, enabled
        self._profiler: torch.profiler.profile | None = None

    def step_begins(self) -> None:
        """Start before the first step."""
        if not self._enabled or self._profiler is not None:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=SKIPPED - 1, warmup=1, active=RECORDED, repeat=1),
            on_trace_ready=self._export,
            profile_memory=True,
        )
        self._profiler.start()

    def step_ends(self, step: Step) -> None:
        """Count the step."""
        if self._profiler is not None:
            self._profiler.step()

    def training_ends(self, status: RunStatus, *, stopped: bool) -> None:
        """Write what there is of the trace."""
        self.close()

    def close(self) -> None:
        """Stop, if it runs."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _export(self, profiler: torch.profiler.profile) -> None:
        try:
            profiler.export_chrome_trace(str(self._folder / run_files.PROFILE))
        except Exception as error:  # a failed trace must not end a run
            _log.warning("no trace: %s", first_line(error))
