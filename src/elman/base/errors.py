"""Shared by all layers: the error for a user's mistake, and the hints that such errors give."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can fix.

    The message is one line that says what is wrong, where, and what to type instead. The command
    line prints it alone, without a traceback, and exits with status 2.
    """


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message, or the error's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the member of ``known`` that is most similar to ``name``, or None if none is close.

    A member that begins with ``name`` comes first; of several, the shortest one.

    Args:
        name: What was typed.
        known: The names that exist.
        cutoff: Smallest share of equal letters (0 to 1) that counts as close.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    begun = [candidate for candidate in by_lower if name and candidate.startswith(name.lower())]
    if begun:
        return by_lower[min(begun, key=len)]
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def suggest(meant: str) -> str:
    """Return the question that offers what was probably meant."""
    return f"did you mean {meant}?"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return :func:`suggest` in brackets, or an empty string if nothing in ``known`` is close."""
    best = nearest(name, known)
    return f" ({suggest(best)})" if best else ""
