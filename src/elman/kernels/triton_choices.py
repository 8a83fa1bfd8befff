"""Which variants of the packages' kernels were the fastest on a kind of GPU: the others wait.

A first use compiles and times every variant of twenty kernels, of which one each is used.
``triton_choices.json`` has those that were the fastest at some size, or within 2 % of it, by
architecture and kernel. Only they are tried, and timed as ever where there are several. A kernel or
a GPU that the table does not name tries all. What is chosen is checked before it trains, like every
kernel. ``tools/gpu/choices.py`` writes the table from what runs have tuned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from elman.kernels import triton_variants

TABLE = Path(__file__).with_name("triton_choices.json")


def worth_trying(tuner: Any, variants: Sequence[Any]) -> list[Any]:
    """Return the variants of an autotuner that the table names, or all if it names none of them.

    A kernel whose package leaves out variants by size tries all: the named ones might be those.
    """
    prune = getattr(tuner, "early_config_prune", None)
    if prune is not None and getattr(prune, "__module__", "") != triton_variants.__name__:
        return list(variants)
    named = _table().get(ARCHITECTURE(), {}).get(tuner.base_fn.__name__, [])
    return [variant for variant in variants if str(variant) in named] or list(variants)


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def _architecture() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


ARCHITECTURE: Callable[[], str] = _architecture
"""Names the kind of GPU; tests answer for one without a GPU."""
