"""The rule for cells whose inner width is int(dim * expansion)."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.declaration import Value


def wide_enough(dim: int, options: Mapping[str, Value]) -> None:
    """Raise UserError if the expansion leaves no channels."""
    expansion = options["expansion"]
    assert isinstance(expansion, float)
    if int(dim * expansion) < 1:
        raise UserError(
            f"model.expansion={expansion:g}: leaves no channels of model.dim={dim}; "
            f"use model.expansion={1 / dim:.4g} or more"
        )
