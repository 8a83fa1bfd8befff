"""Expands the overrides of a sweep to those of its jobs: the product of all lists of values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from elman.base.errors import UserError

Expanded = tuple[tuple[str, ...], tuple[str, ...]]
"""All overrides of a job, and those that distinguish it from the other jobs."""


def expand(overrides: Sequence[Override]) -> list[Expanded]:
    """Return (all overrides, only the swept ones) for every job: the product of the sweeps.

    If two overrides have the same key, the later one counts, as without ``-m``.

    Raises:
        UserError: a swept key has no values, or infinitely many.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        values[key] = [f"{key}={value}" for value in _values(override)]
    swept = [key for key, texts in values.items() if len(texts) > 1]
    keys = list(values)
    return [
        (job, tuple(text for key, text in zip(keys, job, strict=True) if key in swept))
        for job in itertools.product(*values.values())
    ]


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        # As typed: 1e-3 and not 0.001.
        return [(override.input_line or "").partition("=")[2]]
    if not override.is_discrete_sweep():
        raise UserError(
            f"{override.input_line}: has infinitely many values; "
            f"list some, as in {override.get_key_element()}=1,2,3, or use range(start,stop,step)"
        )
    found = [_as_typed(text) for text in override.sweep_string_iterator()]
    if not found:
        raise UserError(f"{override.input_line}: matches nothing; `elman --help` lists the choices")
    return found


def _as_typed(value: str) -> str:
    """Return a value of a sweep without Hydra's escape of colons: ``bpe:512``, no ``bpe\\:512``."""
    if re.fullmatch(r"[\w./-]+(\\:[\w./-]+)+", value, flags=re.ASCII):
        return value.replace("\\:", ":")
    return value
