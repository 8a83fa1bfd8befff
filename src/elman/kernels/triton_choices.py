"""Which variant of a package's kernel was the fastest on a kind of GPU: the others wait.

A first use compiles and times every variant of twenty kernels, of which one each is used.
``triton_choices.json`` has the variant that was the fastest, by architecture, kernel and size. A
size is all that the package tunes for, widths and dtypes, without the numbers of rows and heads:
these say how many programs run, not what one of them does. A size that the table does not have is
tuned. What the table chooses is checked before it trains, like every kernel.
``tools/gpu/choices.py`` writes it from what runs have tuned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("triton_choices.json")
_COUNTS = frozenset({"B", "NB", "H", "HV", "HQ"})
"""Arguments of the packages' kernels that count rows or heads; NB is rows in thousands."""


def from_table(tuner: Any, key: Sequence[Any], variants: Sequence[Any]) -> Any | None:
    """Return the variant that the table names for a kernel at a size of it, or None."""
    sizes = _table().get(ARCHITECTURE(), {}).get(kernel_of(tuner), {})
    named = sizes.get(size_of(tuner, key), "")
    return {str(variant): variant for variant in variants}.get(named)


def kernel_of(tuner: Any) -> str:
    """Return the name of a kernel with that of its module: packages use some names twice."""
    return f"{tuner.base_fn.__module__}.{tuner.base_fn.__name__}"


def size_of(tuner: Any, key: Sequence[Any]) -> str:
    """Return what a kernel is tuned for, in words.

    Args:
        tuner: The kernel's autotuner.
        key: What it knows a size by: its named sizes, then the dtypes of tensors.
    """
    set_by_variants = {name for variant in tuner.configs for name in variant.all_kwargs()}
    names = [name for name in tuner.keys if name not in set_by_variants]
    sizes = zip(names, key, strict=False)
    words = [f"{name}={size}" for name, size in sizes if name not in _COUNTS]
    dtypes = [str(one).removeprefix("torch.") for one in key[len(names) :]]
    return " ".join([*words, *dtypes])


@cache
def _table() -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def _architecture() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


ARCHITECTURE: Callable[[], str] = _architecture
"""Names the kind of GPU; tests answer for one without a GPU."""
