"""Which GPUs a sweep may use: what CUDA_VISIBLE_DEVICES allows, and what the launcher is told."""

from __future__ import annotations

import os
from collections.abc import Sequence

from elman.errors import UserError
from elman.launch.gpus.nvml import Driver, DriverError, DriverHangsError, Gpu
from elman.schema.launching import GpuName, GpusLauncher

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def usable_gpus(driver: Driver, settings: GpusLauncher) -> tuple[list[Gpu], str]:
    """Return the GPUs to use, and, if there are none, why.

    Raises:
        UserError: the launcher's settings name a GPU that is not there, or leave none; or the
            driver hangs.
    """
    present, reason = _present(driver)
    allowed = _allowed(present, os.environ.get(_VISIBLE))
    if present and not allowed:
        reason = f"{_VISIBLE}={os.environ[_VISIBLE]} allows none"
    chosen = allowed
    if settings.gpus is not None:
        chosen = [_find(name, allowed, "launcher.gpus", reason) for name in settings.gpus]
    if allowed:
        excluded = [_find(name, present, "launcher.exclude", "") for name in settings.exclude]
        chosen = [gpu for gpu in dict.fromkeys(chosen) if gpu not in excluded]
        if not chosen:
            raise UserError("launcher.exclude: leaves no GPU; exclude fewer")
    return chosen, reason


def _present(driver: Driver) -> tuple[list[Gpu], str]:
    """Return every GPU, and why there are none; an empty list of allowed ones asks for none."""
    if os.environ.get(_VISIBLE) == "":
        return [], f"{_VISIBLE}= allows none"
    try:
        return driver.gpus(), "this machine has no GPU"
    except DriverHangsError as error:
        raise UserError(
            f"the NVIDIA driver hangs: asked for its GPUs, {error}; see whether nvidia-smi "
            f"answers and have the driver restarted, or type {_VISIBLE}= elman ... to run on the "
            "CPU"
        ) from None
    except DriverError as error:
        return [], f"no NVIDIA driver answers: {error}"


def _allowed(present: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Return the GPUs in the order of CUDA_VISIBLE_DEVICES; like CUDA, stop at a wrong entry."""
    if visible is None:
        return list(present)
    allowed: list[Gpu] = []
    for entry in visible.split(","):
        found = _named(entry.strip(), present)
        if found is None or found in allowed:
            break
        allowed.append(found)
    return allowed


def _named(name: GpuName, gpus: Sequence[Gpu]) -> Gpu | None:
    text = str(name)
    for gpu in gpus:
        if text == str(gpu.index) or (not text.isdigit() and text and gpu.uuid.startswith(text)):
            return gpu
    return None


def _find(name: GpuName, gpus: Sequence[Gpu], key: str, reason: str) -> Gpu:
    found = _named(name, gpus)
    if found is None:
        listing = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or reason
        raise UserError(f"{key}: there is no GPU {name} to use; there are: {listing}")
    return found
