"""How long a run lasts. Imports no torch, so that `elman --cfg` can import it."""

from __future__ import annotations

UNSAID_MINUTES = 1.0
"""``train.minutes`` if no budget is set."""

BUDGETS = ("minutes", "steps", "bytes", "flops")
"""Keys of group ``train`` that limit a run; the first that is spent ends it."""
