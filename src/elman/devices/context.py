"""Begins with a GPU while torch is imported: its driver takes half a second. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import threading

from elman.base.errors import UserError
from elman.base.rank_place import rank_place

_LIBRARY = "libcuda.so.1"


def begin_with_gpu(device: str) -> None:
    """Start a thread that makes the context of the GPU that a run will use; errors are torch's.

    torch takes the same context when it needs one. A job that still waits for its GPU must not
    call this: the driver reads once which GPUs the process sees.

    Args:
        device: ``train.device``. Of several ranks each chooses its GPU later.
    """
    try:
        alone = rank_place().alone
    except UserError:
        return
    if alone and device != "cpu":
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does; the driver reads it
        threading.Thread(target=_make_context, name="elman-gpu", daemon=True).start()


def _make_context() -> None:
    # ctypes lets the other threads go on meanwhile.
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:  # a machine without an NVIDIA GPU
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
