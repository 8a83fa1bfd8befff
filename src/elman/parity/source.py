"""The conditions of a parity check: the sources, the machine and the software it ran with."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import torch

from elman.base.errors import UserError
from elman.devices.environment import device_name
from elman.kernels.compiler import find_compiler
from elman.kernels.nvrtc import nvrtc_version
from elman.kernels.sources import files_hash, source_folder
from elman.kernels.target import host_target
from elman.kernels.triton_version import triton_version

# Python sources that decide what a kernel computes and how it is called.
_PACKAGES = ("kernels", "ops", "models", "parity")
_DRIVER = Path("/proc/driver/nvidia/version")
_SUFFIXES = frozenset({".py", ".h", ".hpp", ".inc", ".cuh", ".cpp", ".cu"})


@cache
def all_sources() -> str:
    """Return a hash of all sources that make up a kernel or call it."""
    root = Path(str(files("elman")))
    folders = [(source_folder(), source_folder()), *((root, root / name) for name in _PACKAGES)]
    hashes = (
        files_hash(base, (path for path in folder.rglob("*") if path.suffix in _SUFFIXES))
        for base, folder in folders
    )
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]


@cache
def package_sources(layer: str) -> str | None:
    """Return a hash of the package that brings a cell; None if this one does.

    Args:
        layer: As in the cell's declaration, ``module:Class``.
    """
    package = layer.partition(":")[0].partition(".")[0]
    found = find_spec(package)
    if package == "elman" or found is None:
        return None
    if found.submodule_search_locations is None:  # a single file
        paths = [Path(str(found.origin))]
        return files_hash(paths[0].parent, paths)[:16]
    folders = [Path(folder) for folder in found.submodule_search_locations]
    hashes = (
        files_hash(folder, (path for path in folder.rglob("*") if path.suffix in _SUFFIXES))
        for folder in folders
    )
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]


def proof_conditions() -> dict[str, str]:
    """Return the conditions of a check made here and now; if one changes, the check is void."""
    compiler = find_compiler()
    conditions = {
        "sources": all_sources(),
        "torch": torch.__version__,
        "cpu": device_name(torch.device("cpu")),
        "target": host_target().name,
        "compiler": compiler.version if compiler else "none",
    }
    if torch.cuda.is_available():
        device = torch.device("cuda")
        major, minor = torch.cuda.get_device_capability(device)
        conditions |= {"gpu": device_name(device), "architecture": f"sm_{major}{minor}"}
        conditions |= {"nvrtc": _nvrtc(), "driver": _driver()}
    conditions["triton"] = triton_version() or "none"
    return conditions


def _driver() -> str:
    """Return what the kernel of the system says of NVIDIA's driver; no word if it says nothing."""
    try:
        return _DRIVER.read_text().partition("\n")[0]
    except OSError:
        return ""


def _nvrtc() -> str:
    """Return NVRTC's version; the check of a cell without CUDA kernels does not need it."""
    try:
        return nvrtc_version()
    except UserError:
        return "none"
