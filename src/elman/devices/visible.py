"""Which GPUs a sweep may use, by CUDA_VISIBLE_DEVICES and the launcher's settings."""

from __future__ import annotations

import os
from collections.abc import Sequence

from elman.base.errors import UserError
from elman.devices.nvml import Driver, DriverError, DriverHangsError, Gpu
from elman.sections.launching import GpuName, GpusLauncher

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NONE = ("", "-1")  # what people write to hide every GPU
_PART = "MIG-"


def usable_gpus(
    driver: Driver, settings: GpusLauncher, *, wanted: bool = True, parts: bool = False
) -> tuple[list[Gpu], str]:
    """Return the GPUs to use and, if there are none, the reason.

    Args:
        driver: Answers queries about GPUs.
        settings: Settings of the launcher.
        wanted: Whether any job takes a GPU; if none does, CUDA_VISIBLE_DEVICES may name a GPU
            that does not exist.
        parts: Whether parts of a GPU (MIG) are allowed, because only torch looks at them.

    Raises:
        UserError: CUDA_VISIBLE_DEVICES or the launcher's settings name a GPU that does not exist,
            or leave none; or the driver hangs.
    """
    present, reason = _present(driver)
    visible = os.environ.get(_VISIBLE)
    allowed = _allowed(present, visible, parts) if wanted and present else list(present)
    if visible is not None and present and not allowed:
        reason = f"{_VISIBLE}={visible} allows none"
    chosen = allowed
    if settings.gpus is not None:
        chosen = [_find(name, allowed, "launcher.gpus", reason) for name in settings.gpus]
    if allowed:
        excluded = [_find(name, present, "launcher.exclude", "") for name in settings.exclude]
        chosen = [gpu for gpu in dict.fromkeys(chosen) if gpu not in excluded]
        if not chosen:
            raise UserError("launcher.exclude: leaves no GPU; exclude fewer")
    return chosen, reason


def refuse_wrong_visible(driver: Driver) -> None:
    """Raise UserError if CUDA_VISIBLE_DEVICES names a missing GPU: CUDA would hide every GPU.

    On a machine without a GPU this is no mistake: the variable could not name any.
    """
    if os.environ.get(_VISIBLE) is not None:
        usable_gpus(driver, GpusLauncher(name="gpus"), parts=True)


def _present(driver: Driver) -> tuple[list[Gpu], str]:
    """Return every GPU, and why there are none; with an empty list of allowed ones, ask nobody."""
    visible = os.environ.get(_VISIBLE)
    if visible in _NONE:
        return [], f"{_VISIBLE}={visible} allows none"
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


def _allowed(present: Sequence[Gpu], visible: str | None, parts: bool) -> list[Gpu]:
    """Return the GPUs in the order of CUDA_VISIBLE_DEVICES; like CUDA, stop at -1.

    CUDA also stops at every entry that it does not know, and the jobs would then run on the CPU.

    Raises:
        UserError: it names a part of a GPU, a GPU that does not exist, or one GPU twice.
    """
    if visible is None:
        return list(present)
    allowed: list[Gpu] = []
    for entry in map(str.strip, visible.split(",")):
        if entry == "-1":
            break
        if entry.startswith(_PART):
            if parts:
                return list(present)
            raise UserError(_wrong(visible, f"{entry} is a part of a GPU (MIG)", present))
        found = _named(entry, present)
        if found is None:
            what = f"there is no GPU {entry or 'without a name'}"
            raise UserError(_wrong(visible, what, present))
        if found in allowed:
            raise UserError(_wrong(visible, f"names GPU {found.index} twice", present))
        allowed.append(found)
    return allowed


def _wrong(visible: str, what: str, present: Sequence[Gpu]) -> str:
    more = "; launcher=gpus gives each job a whole GPU, launcher=local runs one job after another "
    more = more + "on the part" if what.endswith("(MIG)") else ""
    return (
        f"{_VISIBLE}={visible}: {what}; there are: {_listing(present)}{more}; name "
        f"others, unset it to use all, or type {_VISIBLE}= elman ... to run on the CPU"
    )


def _listing(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)


def _named(name: GpuName, gpus: Sequence[Gpu]) -> Gpu | None:
    text = str(name)
    for gpu in gpus:
        if text == str(gpu.index) or (not text.isdigit() and text and gpu.uuid.startswith(text)):
            return gpu
    return None


def _find(name: GpuName, gpus: Sequence[Gpu], key: str, reason: str) -> Gpu:
    found = _named(name, gpus)
    if found is None:
        listing = _listing(gpus) or reason
        raise UserError(f"{key}: there is no GPU {name} to use; there are: {listing}")
    return found
