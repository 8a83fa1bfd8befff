"""How property tests run: the same examples every time, however busy the machine is."""

from __future__ import annotations

from functools import partial

from hypothesis import settings

examples = partial(settings, derandomize=True, deadline=None, database=None)
"""Decorates a property test; ``max_examples`` says how many examples it has."""
