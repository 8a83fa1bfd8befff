"""Which variants of a package's autotuned kernel are worth compiling."""

from __future__ import annotations

import math
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


def prune(kernel: Any, kept: Callable[..., list[Any]]) -> None:
    """Let an autotuned kernel, whatever is wrapped around it, try only some of its variants.

    What has no autotuner stays as it is.
    """
    while kernel is not None and not hasattr(kernel, "early_config_prune"):
        kernel = getattr(kernel, "fn", None)
    if kernel is not None:
        kernel.early_config_prune = kept


def at_most(
    numbers: int, *sizes: str, least: int = 0, longest: str = ""
) -> Callable[..., list[Any]]:
    """Return a function for ``early_config_prune`` that keeps variants whose tile is small enough.

    Larger tiles do not fit into the registers, and take minutes to compile.

    Args:
        numbers: Numbers of a tile in a thread.
        *sizes: Names of the tile's sides among a kernel's arguments.
        least: Numbers of a tile in a thread, below which most of its threads do the same.
        longest: Name of the argument that no side may exceed; the rest of it would be empty.
    """

    def kept(variants: Sequence[Any], named: dict[str, Any], **given: Any) -> list[Any]:
        found = []
        for variant in variants:
            known = named | given | variant.all_kwargs()
            sides = [known[size] for size in sizes]
            in_thread = math.prod(sides) / (_THREADS_OF_WARP * known["num_warps"])
            fits = not longest or max(sides) <= known[longest]
            if fits and least <= in_thread <= numbers:
                found.append(variant)
        return found or list(variants)

    return kept
