"""A torch profiler trace of a few steps, for ``train.profile=true``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from elman.base import run_files
from elman.base.errors import first_line

_log = logging.getLogger("elman.train")
SKIPPED, RECORDED = 3, 3


@contextmanager
def profiling(enabled: bool, folder: Path, device: torch.device) -> Iterator[Callable[[], None]]:
    """Yield a function to call after every step; a trace of steps 4 to 6 lands in ``folder``.

    The trace (``profile.json``) opens in Perfetto or chrome://tracing.
    """
    if not enabled:
        yield _nothing
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def export(profiler: torch.profiler.profile) -> None:
        try:
            profiler.export_chrome_trace(str(folder / run_files.PROFILE))
        except Exception as error:  # a failed trace must not end a run
            _log.warning("no trace: %s", first_line(error))

    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=SKIPPED - 1, warmup=1, active=RECORDED, repeat=1),
        on_trace_ready=export,
        profile_memory=True,
    ) as profiler:
        yield profiler.step


def _nothing() -> None:
    """The step function of a run that is not profiled."""
