"""Names that people gave, made safe to show."""

from __future__ import annotations

import re

# Controls, which a terminal obeys and XML forbids, but for tab and line feed; and the halves of
# characters by which Python stands for bytes of a file name that are no text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: object) -> str:
    """Return text in which each such character is a replacement character."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def one_line(text: object) -> str:
    """Return the same on one line."""
    return " ".join(printable(text).split())
