"""Measures this machine's rates: bytes, multiply-adds and tanh a second."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from elman.bench.replays import device_seconds
from elman.kernels.build import load_library
from elman.kernels.compiler import find_compiler
from elman.kernels.threads import kernel_threads

_SOURCE = """\
#include "cpu/common/rates.h"

extern "C" double multiplies(int threads, double seconds) {
  return elman::cpu::rate<elman::cpu::MultiplyAdd>(threads, seconds);
}
extern "C" double tanhs(int threads, double seconds) {
  return elman::cpu::rate<elman::cpu::Tanh>(threads, seconds);
}
"""
_SECONDS = 0.05
_REPEATS = 7
_SMALLEST, _LARGEST = 2**20, 2**28
_PRODUCT = 4096


@dataclass
class MachineRates:
    """Rates of one device.

    Attributes:
        device: The device.
        multiplies: Multiply-adds a second in fp32; None if it cannot be measured.
        tanhs: Evaluations of the kernels' own tanh a second; None if it cannot be measured.
        copies: Bytes a second, read and written, by the size of the working set.
    """

    device: torch.device
    multiplies: float | None
    tanhs: float | None
    copies: dict[int, float] = field(default_factory=dict)

    def bandwidth(self, moved: float) -> float:
        """Return bytes a second of a copy that reads and writes ``moved`` bytes in all.

        Small working sets stay in caches, so the rate of the power of two next to ``moved`` counts.
        """
        size = 2 ** round(math.log2(max(moved, 1.0)))
        size = min(max(size, _SMALLEST), _LARGEST)
        if size not in self.copies:
            self.copies[size] = _copy_rate(self.device, size)
        return self.copies[size]


def measure_rates(device: torch.device) -> MachineRates:
    """Return the rates of a device; a CPU's arithmetic is measured only with a compiler."""
    if device.type == "cuda":
        return MachineRates(device, _product_rate(device), None)
    if find_compiler() is None:
        return MachineRates(device, None, None)
    library = load_library(_SOURCE, "rate")
    return MachineRates(device, _rate(library, "multiplies"), _rate(library, "tanhs"))


def _rate(library: ctypes.CDLL, name: str) -> float:
    function = library[name]
    function.argtypes, function.restype = (ctypes.c_int, ctypes.c_double), ctypes.c_double
    threads = kernel_threads(torch.get_num_threads())
    return max(float(function(threads, _SECONDS)) for _ in range(_REPEATS))


def _copy_rate(device: torch.device, size: int) -> float:
    source = torch.ones(size // 8, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return size / _fastest(lambda: target.copy_(source), device)


def _product_rate(device: torch.device) -> float:
    """Return the multiply-adds a second of a large fp32 product without tensor cores."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        a = torch.randn(_PRODUCT, _PRODUCT, device=device)
        return _PRODUCT**3 / _fastest(lambda: a @ a, device)
    finally:
        torch.set_float32_matmul_precision(before)


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of several calls, after one uncounted call."""
    if device.type == "cuda":
        return device_seconds(call, device)
    found = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found[1:])
