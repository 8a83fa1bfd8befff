"""Uses the GPU for a moment in a process of its own: whether MPS lets it. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from elman.devices.nvml import PRETENDED


def main() -> int:
    """Make a context on the first GPU that this process sees; return an exit status."""
    if os.environ.get(PRETENDED):
        return 0
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    device, context = ctypes.c_int(), ctypes.c_void_p()
    steps: list[tuple[str, tuple[Any, ...]]] = [
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
    ]
    for name, arguments in steps:
        if status := getattr(cuda, name)(*arguments):
            words = ctypes.c_char_p()
            cuda.cuGetErrorName(status, ctypes.byref(words))
            told = words.value.decode() if words.value else "unknown"
            print(f"{name} fails with {told} ({status})", file=sys.stderr)
            return 1
    cuda.cuDevicePrimaryCtxRelease_v2(device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
