"""The compiled CPU kernels of an engine: one for each step and dtype, many in one library.

A kernel that knows resets is another one: the one without them has no question inside its loops.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from elman.base.errors import UserError
from elman.kernels.build import load_library
from elman.ops.common.native import C_TYPES


@dataclass(frozen=True)
class Kernel:
    """The functions of a loaded kernel: each takes the arguments, the last returns bytes."""

    forward: Any
    backward: Any
    workspace: Any


class KernelTable:
    """The kernels of one engine that this process has loaded.

    Args:
        engine: Name of the engine, as in csrc/cpu/<engine>/engine.h, whose macro ELMAN_<ENGINE>
            makes a kernel's functions.
        arguments: The mirror of their argument.
        layouts: Returns C++ text that compares the mirrors with the structures.
        structure: ``structure(step, dtype, name, resets)`` returns the C++ ``Spec`` of a kernel.
    """

    def __init__(
        self,
        engine: str,
        arguments: type[ctypes.Structure],
        layouts: Callable[[], str],
        structure: Callable[[str, torch.dtype, str, bool], str],
    ) -> None:
        self._engine, self._arguments = engine, arguments
        self._layouts, self._structure = layouts, structure
        self._loaded: dict[tuple[str, torch.dtype, bool], Kernel] = {}

    def kernel_for(self, step: str, dtype: torch.dtype, *, resets: bool = False) -> Kernel:
        """Return the kernel of a step, compiled if it was not compiled before.

        Args:
            step: Name of the step; empty where the engine has one alone.
            dtype: Dtype of the kernel.
            resets: Whether it knows resets.

        Raises:
            UserError: there is no kernel for the step or dtype, or it cannot be compiled.
        """
        if (step, dtype, resets) not in self._loaded:
            words = (self._engine, step, C_TYPES.get(dtype, ""), "with resets" if resets else "")
            self.prepare([step], dtype, " ".join(filter(None, words)), resets=resets)
        return self._loaded[step, dtype, resets]

    def prepare(
        self, steps: Iterable[str], dtype: torch.dtype, label: str, *, resets: bool = False
    ) -> None:
        """Compile and load the kernels that are not loaded yet, all as one library.

        Args:
            steps: Names of the steps.
            dtype: Dtype of their kernels.
            label: What they are, for people.
            resets: Whether they know resets.

        Raises:
            UserError: as :meth:`kernel_for`.
        """
        if dtype not in C_TYPES:
            raise UserError(
                f"kernels.backend=cpu: computes in float32 and float64, not in {dtype}; "
                "use kernels.backend=reference"
            )
        steps = dict.fromkeys(steps)
        missing = [step for step in steps if (step, dtype, resets) not in self._loaded]
        if not missing:
            return
        names = [f"{self._engine}_{i}" for i in range(len(missing))]
        text = self._text(dict(zip(names, missing, strict=True)), dtype, resets)
        library = load_library(text, label)
        for step, name in zip(missing, names, strict=True):
            self._loaded[step, dtype, resets] = self._functions(library, name)

    def forget(self) -> None:
        """Compile again what is asked for next."""
        self._loaded.clear()

    def _text(self, steps: dict[str, str], dtype: torch.dtype, resets: bool) -> str:
        """Return the translation unit of steps by the names of their functions."""
        engine = self._engine
        structures = "".join(
            self._structure(step, dtype, f"Spec_{name}", resets) for name, step in steps.items()
        )
        exports = "".join(f"ELMAN_{engine.upper()}({name}, elman::Spec_{name})\n" for name in steps)
        inner = f"namespace elman {{\nnamespace {{\n{structures}}}\n}}\n"
        return f'#include "cpu/{engine}/engine.h"\n\n{self._layouts()}{inner}{exports}'

    def _functions(self, library: ctypes.CDLL, name: str) -> Kernel:
        parts = [library[f"{name}_{part}"] for part in ("forward", "backward", "workspace")]
        for part in parts:
            part.argtypes = (ctypes.POINTER(self._arguments),)
            part.restype = None
        parts[-1].restype = ctypes.c_int64
        return Kernel(*parts)
