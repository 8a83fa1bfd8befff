"""How long a run takes where nobody says so. Imports nothing, so that `elman --cfg` may."""

from __future__ import annotations

UNSAID_MINUTES = 1.0
"""``train.minutes`` where neither minutes nor steps are named."""
