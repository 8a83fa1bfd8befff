"""The compiled CPU kernels of an engine: one for each step and dtype, many in one library.

A kernel that knows resets is another one: the one without them has no question inside its loops.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from elman.kernels.build import load_library
from elman.ops.common.native import C_TYPES, Args, Arguments, require_cpu_dtype

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Kernel:
    """The functions of a loaded kernel: each takes the arguments, the last returns bytes."""

    forward: Any
    backward: Any
    workspace: Any


def functions(
    library: ctypes.CDLL, name: str, arguments: type[ctypes.Structure], *more: Any
) -> Kernel:
    """Return the functions of a kernel in a library.

    Args:
        library: The library.
        name: The name that they begin with.
        arguments: The mirror of their argument.
        more: Types of what the last reads besides.
    """
    parts = [library[f"{name}_{part}"] for part in ("forward", "backward", "workspace")]
    for part in parts:
        part.argtypes = (ctypes.POINTER(arguments),)
        part.restype = None
    parts[-1].argtypes = (ctypes.POINTER(arguments), *more)
    parts[-1].restype = ctypes.c_int64
    return Kernel(*parts)


class CpuArguments(Arguments[Args]):
    """The arguments of one call of a CPU kernel.

    Args:
        args: The arguments.
        compiled: The kernel.
        like: A tensor of the dtype that it computes in.
    """

    def __init__(self, args: Args, compiled: Kernel, like: Tensor) -> None:
        super().__init__(args)
        self.compiled, self.like = compiled, like

    def run(self, function: Callable[[Args], None]) -> None:
        """Run a function of the kernel in a workspace of the size that it asks for."""
        n_bytes = self.compiled.workspace(self.args)
        self.point(workspace=self.like.new_empty(n_bytes // self.like.element_size()))
        function(self.args)


class KernelTable(Generic[Key]):
    """The kernels of one engine that this process has loaded.

    Args:
        engine: Name of the engine, as in csrc/cpu/<engine>/engine.h, whose macro ELMAN_<ENGINE>
            makes a kernel's functions.
        arguments: The mirror of their argument.
        layouts: Returns C++ text that compares the mirrors with the structures.
        structure: ``structure(key, name)`` returns the C++ ``Spec`` of a kernel.

    Attributes:
        loaded: The kernels, by what they are compiled for.
    """

    def __init__(
        self,
        engine: str,
        arguments: type[ctypes.Structure],
        layouts: Callable[[], str],
        structure: Callable[[Key, str], str],
    ) -> None:
        self._engine, self._arguments = engine, arguments
        self._layouts, self._structure = layouts, structure
        self.loaded: dict[Key, Kernel] = {}

    def prepare(self, keys: Iterable[Key], label: str) -> None:
        """Compile and load the kernels that are not loaded yet, all as one library.

        Args:
            keys: What they are compiled for.
            label: What they are, for people.

        Raises:
            UserError: they cannot be compiled.
        """
        missing = [key for key in dict.fromkeys(keys) if key not in self.loaded]
        if not missing:
            return
        names = [f"{self._engine}_{i}" for i in range(len(missing))]
        library = load_library(self._text(dict(zip(names, missing, strict=True))), label)
        for key, name in zip(missing, names, strict=True):
            self.loaded[key] = functions(library, name, self._arguments)

    def forget(self) -> None:
        """Compile again what is asked for next."""
        self.loaded.clear()

    def _text(self, keys: Mapping[str, Key]) -> str:
        """Return the translation unit of kernels by the names of their functions."""
        engine = self._engine
        structures = "".join(self._structure(key, f"Spec_{name}") for name, key in keys.items())
        exports = "".join(f"ELMAN_{engine.upper()}({name}, elman::Spec_{name})\n" for name in keys)
        inner = f"namespace elman {{\nnamespace {{\n{structures}}}\n}}\n"
        return f'#include "cpu/{engine}/engine.h"\n\n{self._layouts()}{inner}{exports}'


class StepKernels(KernelTable[tuple[str, torch.dtype, bool]]):
    """The kernels of an engine that has one for each step and dtype, with and without resets.

    Args:
        engine: As of :class:`KernelTable`.
        arguments: As of :class:`KernelTable`.
        layouts: As of :class:`KernelTable`.
        structure: ``structure(step, dtype, name, resets)`` returns the C++ ``Spec`` of a kernel.
    """

    def __init__(
        self,
        engine: str,
        arguments: type[ctypes.Structure],
        layouts: Callable[[], str],
        structure: Callable[[str, torch.dtype, str, bool], str],
    ) -> None:
        def of_key(key: tuple[str, torch.dtype, bool], name: str) -> str:
            step, dtype, resets = key
            return structure(step, dtype, name, resets)

        super().__init__(engine, arguments, layouts, of_key)

    def kernel_for(self, step: str, dtype: torch.dtype, *, resets: bool = False) -> Kernel:
        """Return the kernel of a step, compiled if it was not compiled before.

        Args:
            step: Name of the step; empty where the engine has one alone.
            dtype: Dtype of the kernel.
            resets: Whether it knows resets.

        Raises:
            UserError: there is no kernel for the step or dtype, or it cannot be compiled.
        """
        if (step, dtype, resets) not in self.loaded:
            words = (self._engine, step, C_TYPES.get(dtype, ""), "with resets" if resets else "")
            self.prepare_steps([step], dtype, " ".join(filter(None, words)), resets=resets)
        return self.loaded[step, dtype, resets]

    def prepare_steps(
        self, steps: Iterable[str], dtype: torch.dtype, label: str, *, resets: bool = False
    ) -> None:
        """Compile and load the kernels of steps that are not loaded yet, all as one library.

        Raises:
            UserError: as :meth:`kernel_for`.
        """
        require_cpu_dtype(dtype)
        self.prepare([(step, dtype, resets) for step in steps], label)
