"""Markdown for the generated pages of ``docs``."""

from __future__ import annotations

from collections.abc import Sequence


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
