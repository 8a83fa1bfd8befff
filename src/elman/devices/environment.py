"""What a result says about the machine and the software that made it."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from elman.base.errors import UserError
from elman.base.rank_place import rank_count
from elman.base.version import __version__
from elman.devices.cpu import instructions, waiting

_PACKAGES = (
    "torch",
    "numpy",
    "hydra-core",
    "triton",
    "schedulefree",
    "safetensors",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "mamba-ssm",
    "causal-conv1d",
    "flash-linear-attention",
    "flash-qla",
    "tilelang",
)


def choose_device(name: str, setting: str = "train.device") -> torch.device:
    """Return the torch device for ``auto``, ``cpu`` or ``cuda``.

    Args:
        name: One of these.
        setting: The setting in which the user names it, for the error.

    Raises:
        UserError: the user asked for ``cuda``, and torch sees no GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        built = "this torch is a CPU build" if torch.version.cuda is None else "torch sees no GPU"
        raise UserError(f"{setting}=cuda: {built}; use {setting}=cpu or {setting}=auto")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """Return the name of the chip."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _cpu_name()


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, device, threads and revision for ``result.json``.

    ``instructions`` are those that torch uses on the CPU; ``threads_wait`` says under which
    settings idle threads of OpenMP wait.
    """
    described: dict[str, Any] = {
        "elman": __version__,
        "revision": revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "device": str(device),
        "device_name": device_name(device),
        "instructions": instructions(),
        "threads": torch.get_num_threads(),
        "threads_wait": waiting(),
        "packages": {name: _version_of(name) for name in _PACKAGES},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        described["gpu"] = {
            "uuid": str(properties.uuid),
            "memory_bytes": properties.total_memory,
            "capability": f"sm_{properties.major}{properties.minor}",
            "cuda": torch.version.cuda,
        }
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible and rank_count() > 1:
        described["gpus_of_job"] = visible.split(",")  # of this host
    return described


def peak_memory(device: torch.device) -> int:
    """Return ``peak_memory_bytes`` as the metrics define it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _peak_resident()


def _peak_resident() -> int:
    """Largest resident size of this process; the present size if the system keeps no peak."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(psutil.Process().memory_info().rss)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def revision() -> str | None:
    """Return the git revision of the source tree, ``-dirty`` if changed; None in a wheel."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
