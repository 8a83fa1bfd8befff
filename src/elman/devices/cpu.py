"""What the CPU of this machine computes quickly, and how its threads wait for each other.

Imports torch only where a function asks it, because threads are told how to wait before that.
"""

from __future__ import annotations

import os
import sys

from elman.kernels.target import cpu_features

# Linux's names for the instructions that multiply bf16 matrices. avx512_core computes them by
# converting, which takes 2.5 times as long as fp32 takes; AVX2 alone takes 15 times as long.
_BF16_PRODUCTS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# Of ATEN_CPU_CAPABILITY and of oneDNN: limits below these instructions.
_ATEN_BELOW = ("DEFAULT", "NO AVX", "AVX2")
_ONEDNN = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_ONEDNN_BELOW = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# About 10 us. GNU's OpenMP takes 300,000 unless told: 3 ms in which a waiting thread keeps the core
# that another process needs.
_SPINS = "1000"


def multiplies_bf16() -> bool:
    """Return whether this CPU has instructions for products in bf16, and torch may use them.

    It is read from the CPU's flags, so the same machine always gives the same answer. A limit in
    ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA counts.
    """
    import torch

    if not torch.backends.mkldnn.is_available() or not _BF16_PRODUCTS & cpu_features():
        return False
    if any(os.environ.get(name, "").upper() in _ONEDNN_BELOW for name in _ONEDNN):
        return False
    arm = "bf16" in cpu_features()
    return arm or torch.backends.cpu.get_cpu_capability() not in _ATEN_BELOW


def instructions() -> str:
    """Return the instructions that torch uses on this CPU, as in ``AVX2``."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def let_threads_sleep() -> None:
    """Let OpenMP's threads give their core away soon after they have nothing to do.

    Otherwise they spin for milliseconds between two operations, and beside another process two
    threads are slower than one. OpenMP reads it when torch is imported, so this does nothing after
    that; nor does it if the user has set one of OMP_WAIT_POLICY, GOMP_SPINCOUNT and KMP_BLOCKTIME.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _WAITING):
        return
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    os.environ["OMP_WAIT_POLICY"] = "passive"  # for other OpenMPs, which know no count


def waiting() -> str:
    """Return the settings under which OpenMP's threads wait, as in ``GOMP_SPINCOUNT=1000``."""
    told = [f"{name}={os.environ[name]}" for name in _WAITING if name in os.environ]
    return ", ".join(told) or "OpenMP's own"
