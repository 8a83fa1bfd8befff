"""Which Triton is installed, whether elman's own kernels can use it, and what is known of it.

Everything that depends on a version of Triton is decided here. Imports neither torch nor triton.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.version import Version

OLDEST = "3.6.0"
"""The first version that elman's kernels were compiled with: that of torch 2.11. They pass named
tuples and plain objects as arguments, which older compilers refuse."""
WRONG_GATED_DELTA = ("3.4.0", "3.7.1")
"""From the first version to before the second, flash-linear-attention's gated delta rule gets wrong
gradients on Hopper (its issues 640, 983 and 984), where products of matrices are pipelined. elman's
own kernels pipeline none: M2RNN's products are too small for Hopper's, and its loops load one step
ahead by themselves."""
# ROCm builds of torch bring theirs under a name of their own.
_DISTRIBUTIONS = ("triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton")
_VARIABLE = "TRITON_INTERPRET"


def triton_version() -> str | None:
    """Return the version of the Triton that is installed, under whatever name; None without one."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def wrong_gated_delta(found: Version) -> bool:
    """Return whether a version is one of :data:`WRONG_GATED_DELTA`."""
    first, mended = map(Version, WRONG_GATED_DELTA)
    return first <= found < mended


def older(found: Version) -> bool:
    """Return whether a version is older than :data:`OLDEST`."""
    return found < Version(OLDEST)


def triton_problem() -> str | None:
    """Return why elman's Triton kernels cannot run with what is installed, and the fix; or None."""
    if find_spec("triton") is None:
        return f"triton is not installed; pip install 'triton>={OLDEST}'"
    found = triton_version()
    if found is not None and older(Version(found)):
        return f"triton {found} is older than {OLDEST}; pip install --upgrade 'triton>={OLDEST}'"
    return None


def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, in numpy on a CPU: only for checks.

    Triton reads the variable when it is imported.
    """
    return os.environ.get(_VARIABLE, "0").lower() in ("1", "true", "yes", "on", "y")


def torch_is_for_rocm() -> bool:
    """Return whether the installed torch is built for AMD GPUs, whose device is also ``cuda``.

    Where torch is not imported yet, its version says so: 2.11.0+rocm7.0.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return getattr(torch.version, "hip", None) is not None
    try:
        return "+rocm" in version("torch")
    except PackageNotFoundError:
        return False
