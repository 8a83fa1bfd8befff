"""How large the states of the shipped models are, counted ahead. Imports no torch.

``tools/docs/make_models.py`` counts them by :mod:`elman.models.state_bytes` and writes the file.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from elman.sections.model import ModelConfig

FILE = "state_sizes.json"
STATE_HEADS = ("state bytes", "per byte")
"""Of the columns of :meth:`StateSize.cells`."""
DEFINITION = (
    "state bytes: what one layer carries from byte to byte, for one row; per byte: what it grows "
    "by with every byte of context; both with projections in bf16"
)


class StateSize(NamedTuple):
    """Bytes of the state of one layer, for one row.

    Attributes:
        fixed: The part that no context changes.
        per_byte: What every byte of context adds.
        most: After how many bytes it grows no more; None: never.
    """

    fixed: int
    per_byte: int = 0
    most: int | None = None

    def after(self, positions: int) -> int:
        """Return the bytes after so many bytes of context."""
        grown = positions if self.most is None else min(self.most, positions)
        return self.fixed + self.per_byte * grown

    def cells(self) -> list[str]:
        """Return both numbers as text."""
        return [f"{self.fixed:,}", f"{self.per_byte:,}" if self.per_byte else "-"]


def counted_ahead(model: ModelConfig) -> StateSize | None:
    """Return the size of a model's state with projections in bf16, or None if nobody counted it."""
    found = _counted().get(key_of(model))
    if found is None:
        return None
    fixed, per_byte, most = found
    return StateSize(fixed, per_byte, most)


def key_of(model: ModelConfig) -> str:
    """Return a name for all that a layer's state depends on."""
    parts = [[one.cell, one.dim, one.options, one.depth] for one in model.parts()]
    one_cell = [model.cell, model.dim, model.options]
    settings = json.dumps(parts if model.mixed else one_cell, sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:12]


@cache
def _counted() -> dict[str, tuple[int, int, int | None]]:
    text = files("elman.models").joinpath(FILE).read_text(encoding="utf-8")
    found: dict[str, tuple[int, int, int | None]] = json.loads(text)
    return found
