"""Overrides as typed, and their keys: ``+train.steps=3`` names ``train.steps``."""

from __future__ import annotations

from collections.abc import Sequence

UNTUNED = ("tune=null", "~tune")
"""The override that turns tuning off as a user types it, and as Hydra takes it."""


def key_of(override: str) -> str:
    """Return the key of an override, without Hydra's ``+`` and ``~`` marks."""
    return override.partition("=")[0].lstrip("+~")


def merged(overrides: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return overrides with others in their places, or after them."""
    return tuple({key_of(text): text for text in (*overrides, *others)}.values())


def named_keys(overrides: Sequence[str]) -> frozenset[str]:
    """Return the keys of ``key=value`` overrides, without Hydra's ``+`` and ``~`` marks.

    Hydra's own settings are left out.
    """
    keys = map(key_of, overrides)
    return frozenset(key for key in keys if not is_hydra_key(key))


def is_hydra_key(key: str) -> bool:
    """Whether a key or group belongs to Hydra itself."""
    return key == "hydra" or key.startswith(("hydra.", "hydra/"))
