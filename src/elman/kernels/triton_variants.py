"""Which variants of a package's autotuned kernel are worth compiling."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_LOOP = re.compile(r"^\s*(for|while)\b", re.MULTILINE)
_STAGES = "num_stages"
_THREADS_OF_WARP = 32


def without_twins(tuner: Any) -> list[Any]:
    """Return the variants of an autotuner, one of those that are the same machine code.

    ``num_stages`` says how far the loads of a loop run ahead. Variants of a kernel without a loop
    that differ in it alone are equal.
    """
    function = tuner.fn
    while hasattr(function, "fn") and not hasattr(function, "src"):
        function = function.fn
    if not hasattr(function, "src") or has_loop(function):
        return list(tuner.configs)
    kept: dict[str, Any] = {}
    for variant in tuner.configs:
        given = {name: value for name, value in variant.all_kwargs().items() if name != _STAGES}
        kept.setdefault(str(sorted(given.items())), variant)
    return list(kept.values())


def has_loop(function: Any) -> bool:
    """Return whether a Triton function, or one that its text names, has a loop in its text."""
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if _LOOP.search(one.src):
            return True
        known = getattr(getattr(one, "fn", None), "__globals__", {})
        named = (known.get(name) for name in set(re.findall(r"\w+", one.src)))
        waiting += [other for other in named if hasattr(other, "src") and hasattr(other, "fn")]
    return False


def at_most(numbers: int, *sizes: str) -> Callable[..., list[Any]]:
    """Return a function for ``early_config_prune`` that keeps variants whose tile is small enough.

    Larger tiles do not fit into the registers, and take minutes to compile.

    Args:
        numbers: Numbers of a tile in a thread.
        *sizes: Names of the tile's sides among a kernel's arguments.
    """

    def kept(variants: Sequence[Any], named: dict[str, Any], **given: Any) -> list[Any]:
        found = []
        for variant in variants:
            known = named | given | variant.all_kwargs()
            tile = 1
            for size in sizes:
                tile *= known[size]
            if tile <= numbers * _THREADS_OF_WARP * known["num_warps"]:
                found.append(variant)
        return found or list(variants)

    return kept
