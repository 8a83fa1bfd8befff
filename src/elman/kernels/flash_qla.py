"""What FlashQLA, the package flash-qla, computes and where. Imports no torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

NAME = "flash_qla"
"""Value of ``kernels.backend``."""
PACKAGE = "flash-qla"
TILELANG = "0.1.9"
"""What version 0.1.2 of the package is pinned to."""
WIDTH = 128
"""Keys and values of a head; the package has no other kernels."""
CAPABILITIES = ((9, 0), (10, 0))
"""GPUs on which the package has both passes."""
BF16_ALONE = "FlashQLA takes no fp32; use train.precision=bf16 or kernels.backend=triton"
_TOOLKITS = (Path("/usr/local/cuda/bin/nvcc"), Path("/opt/nvidia/hpc_sdk/Linux_x86_64"))


def refusal(keys: int, values: int, *, negative: bool) -> str:
    """Return why the package does not compute such heads, and what to type; empty if it does.

    Args:
        keys: Key width of a head.
        values: Value width of a head.
        negative: Whether the strengths of the writes reach 2.
    """
    if (keys, values) != (WIDTH, WIDTH):
        return (
            f"FlashQLA computes heads of {WIDTH} keys and {WIDTH} values alone, and these have "
            f"{keys} and {values}; use model.head_dim={WIDTH} model.expansion=1, or "
            "kernels.backend=auto"
        )
    if negative:
        return (
            "FlashQLA does not compute negative eigenvalues; use model.allow_neg_eigval=false or "
            "kernels.backend=auto"
        )
    return ""


def gpu_problem(capability: tuple[int, int]) -> str | None:
    """Return why the package does not run on a GPU of this compute capability, or None."""
    if capability in CAPABILITIES:
        return None
    had = ".".join(map(str, capability))
    known = " or ".join(".".join(map(str, one)) for one in CAPABILITIES)
    return (
        f"FlashQLA needs a GPU of compute capability {known} (H100, H200, B200), and this one has "
        f"{had}; use kernels.backend=triton"
    )


def tilelang_problem(own: str | None, tilelang: str | None) -> str | None:
    """Return why the package cannot use the tilelang that is installed, and the fix; or None.

    Args:
        own: Version of the package. What later ones need is not known here.
        tilelang: Version of tilelang.
    """
    if own != "0.1.2" or tilelang == TILELANG:
        return None
    found = "there is none" if tilelang is None else f"{tilelang} is installed"
    return (
        f"{PACKAGE} {own} needs tilelang {TILELANG}, and {found}; pip install tilelang=={TILELANG}"
    )


def compiler_problem() -> str | None:
    """Return why tilelang, which compiles the kernels, finds no nvcc, and the fix; or None.

    It looks where tilelang looks. Kernels that were compiled before need none.
    """
    if any(_compilers()) or any(_cache().glob("*")):
        return None
    return (
        "tilelang compiles FlashQLA's kernels with nvcc, and there is none; "
        f"pip install 'tilelang[nvcc]=={TILELANG}', or name a CUDA toolkit in CUDA_HOME"
    )


def _compilers() -> Iterator[bool]:
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        yield (Path(home) / "bin/nvcc").exists()
    yield shutil.which("nvcc") is not None
    with suppress(PackageNotFoundError):
        yield any(file.name == "nvcc" for file in files("nvidia-cuda-nvcc") or [])
    yield any(place.exists() for place in _TOOLKITS)


def _cache() -> Path:
    return Path(os.environ.get("TILELANG_CACHE_DIR") or Path.home() / ".tilelang/cache")
