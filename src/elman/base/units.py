"""Units of memory and time, and how amounts of them are printed. Imports no torch.

A table, a line and an error say the memory of a run in :data:`MEMORY`. What a GPU has is said in
:data:`GPU_MEMORY`, as GPUs are sold and as ``solve.gpu_gb`` takes it. Files and free disk are said
in the largest of :data:`DISK` that gives at least 1.
"""

from __future__ import annotations

from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of memory.

    Attributes:
        name: As it is printed.
        bytes: How many bytes it has.
        factor: The same as text, for definitions.
    """

    name: str
    bytes: int
    factor: str

    def text(self, n_bytes: float, digits: int) -> str:
        """Return a number of bytes in this unit, with its name: ``1.25 GB``."""
        return f"{n_bytes / self.bytes:,.{digits}f} {self.name}"


MEMORY = Unit("GB", 10**9, "1e9")
LAYER_MEMORY = Unit("MB", 10**6, "1e6")
"""Of a single layer, whose memory is small."""
GPU_MEMORY = Unit("GiB", 2**30, "2^30")
GPU_USED = Unit("MiB", 2**20, "2^20")
"""Of a GPU's memory in use, as nvidia-smi shows it."""
DISK = (Unit("GB", 10**9, "1e9"), Unit("MB", 10**6, "1e6"), Unit("kB", 10**3, "1e3"))


def used_text(mib: int) -> str:
    """Return how much of a GPU's memory is in use, given in :data:`GPU_USED`."""
    return f"{mib:,} {GPU_USED.name}"


def size_text(n_bytes: float) -> str:
    """Return the size of a file, or of space on a disk, as ``12.3 MB`` or ``4.5 GB``."""
    unit = next((unit for unit in DISK if n_bytes >= unit.bytes), DISK[-1])
    return unit.text(n_bytes, 1)


def different_sizes(needed: int, free: int) -> tuple[str, str]:
    """Return two sizes on a disk with as many decimals as it takes to tell them apart."""
    unit = DISK[1]
    for digits in range(6):
        pair = unit.text(needed, digits), unit.text(free, digits)
        if pair[0] != pair[1]:
            break
    return pair


def duration(seconds: float) -> str:
    """Return seconds as ``42s``, ``3m12s`` or ``5h07m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
