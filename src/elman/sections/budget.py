"""The default length of a run. Imports nothing, so that `elman --cfg` can import it."""

from __future__ import annotations

UNSAID_MINUTES = 1.0
"""``train.minutes`` if neither minutes nor steps are set."""
