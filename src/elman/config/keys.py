"""The keys of overrides as typed: ``+train.steps=3`` names ``train.steps``."""

from __future__ import annotations

from collections.abc import Sequence

UNTUNED = ("tune=null", "~tune")
"""The override that turns tuning off as a user types it, and as Hydra takes it."""


def named_keys(overrides: Sequence[str]) -> frozenset[str]:
    """Return the keys of ``key=value`` overrides, without Hydra's ``+`` and ``~`` marks.

    Hydra's own settings are left out.
    """
    keys = (override.split("=", 1)[0].lstrip("+~") for override in overrides)
    return frozenset(key for key in keys if not is_hydra_key(key))


def is_hydra_key(key: str) -> bool:
    """Whether a key or group belongs to Hydra itself."""
    return key == "hydra" or key.startswith(("hydra.", "hydra/"))
