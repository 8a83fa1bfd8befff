"""C++ text that refuses to compile where Python and a C++ structure state different numbers.

The compilers for a CPU and for a GPU compare what both sides state, because a wrong number would be
a read outside of an array. Imports no torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from elman.kernels.compiler import MISMATCH


def same(cpp: str, value: int, message: str) -> str:
    """Return C++ text that refuses to compile where a number is not Python's.

    Args:
        cpp: The number in C++.
        value: The number in Python; a flag is written as one.
        message: What differs, in words without quotation marks.
    """
    number = str(value).lower()
    return f'static_assert({cpp} == {number}, "{message}; {MISMATCH}");\n'


def all_same(numbers: Mapping[str, int], file: str, of: str) -> str:
    """Return C++ text that refuses to compile where one of several numbers is not Python's.

    Args:
        numbers: The numbers in Python, by what they are in C++.
        file: The Python file that states them.
        of: What they are of.
    """
    return "".join(
        same(cpp, value, f"{file} has {value} for {cpp} of {of}") for cpp, value in numbers.items()
    )


def cell_assertions(
    name: str,
    structure: str,
    declaration: str,
    stated: Mapping[str, tuple[str, int]],
    limits: Mapping[str, str],
) -> str:
    """Return C++ text that compares a cell's declaration with its structure, called ``Cell``.

    Args:
        name: The cell's name in Python.
        structure: Its C++ type.
        declaration: The Python class that declares it.
        stated: By the structure's constant: the declaration's word for it, and its value.
        limits: By the structure's constant: the constant that it is at most.
    """
    where = f"cell {name}: its {declaration} says"
    lines = [
        same(
            f"Cell::{constant}",
            value,
            f"{where} {word}={str(value).lower()}, its structure {structure} another {constant}",
        )
        for constant, (word, value) in stated.items()
    ]
    for constant, limit in limits.items():
        message = f"cell {name}: its structure {structure} has more {constant} than {limit}"
        lines.append(f'static_assert(Cell::{constant} <= {limit}, "{message}; {MISMATCH}");\n')
    return "".join(lines)


# NVRTC knows offsets from 13.5 on. With an older one, the compiler of a CPU has compared them.
_KNOWS_OFFSETS = (
    "#if !defined(__CUDACC_RTC__) || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1305"
)


def layout_assertions(structure: str, mirror: type[ctypes.Structure]) -> str:
    """Return C++ text that compares size and offsets of a structure with its mirror's.

    Args:
        structure: The structure in C++.
        mirror: The same as Python declares it.
    """
    where = f"structure {structure}: its mirror {mirror.__name__} has another"
    offsets = (
        same(
            f"__builtin_offsetof({structure}, {name})",
            getattr(mirror, name).offset,
            f"{where} offset of {name}",
        )
        for name, *_ in mirror._fields_
    )
    size = same(f"sizeof({structure})", ctypes.sizeof(mirror), f"{where} size")
    return f"{size}{_KNOWS_OFFSETS}\n{''.join(offsets)}#endif\n"
