"""The C++ text of a translation unit whose kernels share one tile config and one argument."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from elman.ops.common.abi_check import layout_assertions, same


def unit_text_of(
    family: str,
    config: str,
    args: type[ctypes.Structure],
    stated: Mapping[str, int],
    kernels: Mapping[str, str],
    device: str,
) -> str:
    """Return the text of a translation unit.

    Args:
        family: Folder and header of the kernels below csrc/cuda.
        config: The C++ type of the tile config, called ``G`` there.
        args: The kernels' argument; its structure in C++ has the same name.
        stated: Constants of ``G`` that the family's ``cuda.py`` states, too.
        kernels: By name: threads of a block, and blocks that a multiprocessor is to hold.
        device: Header that says what the kernels ask of the machine.
    """
    structure = f"elman::{args.__name__}"
    checks = (same(f"G::{name}", n, f"cuda.py has {n} for G::{name}") for name, n in stated.items())
    return "\n".join(
        [
            f'#include "{device}"',
            f'#include "cuda/{family}/{family}.cuh"',
            f"using G = {config};",
            layout_assertions(structure, args) + "".join(checks),
            *(
                f"ELMAN_KERNEL({name}, {bounds}, {structure}, elman::{name}<G>(a))"
                for name, bounds in kernels.items()
            ),
            "",
        ]
    )
