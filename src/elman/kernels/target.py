"""The CPU target of compiled kernels: its instruction sets, and their compiler flags.

Imports no torch.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# CPU features that each x86-64 level adds, under Linux's names (x86-64 psABI, micro-architecture
# levels). A level includes the levels before it.
_X86_LEVELS = {
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
_X86_MACHINES = ("x86_64", "AMD64")
_ARM_MACHINES = ("aarch64", "arm64")


@dataclass(frozen=True)
class Target:
    """The target of a compilation.

    Args:
        name: ``x86-64-v4``, ``aarch64 ...`` and the like. Machines with the same name can run
            each other's kernels.
        flags: Sets of compiler flags, in the order in which to try them, because not every
            compiler knows every level.
    """

    name: str
    flags: tuple[tuple[str, ...], ...]


@cache
def host_target() -> Target:
    """Return the target of this machine."""
    return target_for(platform.machine(), cpu_features())


def target_for(machine: str, features: frozenset[str]) -> Target:
    """Return the target of a machine.

    Args:
        machine: The result of ``platform.machine()``.
        features: The CPU's features as in Linux's /proc/cpuinfo; empty if unknown.
    """
    if machine in _ARM_MACHINES:
        # -mcpu=native depends on the features, so they are part of the name.
        return Target(" ".join([machine, *sorted(features)]), (("-mcpu=native",), ()))
    if machine not in _X86_MACHINES:
        return Target(machine, ((),))
    level = "x86-64"
    for name, needed in _X86_LEVELS.items():
        if not needed <= features:
            break
        level = name
    if level == "x86-64":
        return Target(level, ((),))
    # A level instead of "native": then all machines of a level can share a cache.
    # Tuning changes only the order of instructions, not which ones are used.
    return Target(level, ((f"-march={level}", "-mtune=native"), (f"-march={level}",), ()))


def cpu_features() -> frozenset[str]:
    """Return the features that all CPUs of this machine have."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    listed = [
        frozenset(line.split(":", 1)[1].split())
        for line in lines
        if line.lower().startswith(("flags", "features"))
    ]
    return frozenset.intersection(*listed) if listed else frozenset()
