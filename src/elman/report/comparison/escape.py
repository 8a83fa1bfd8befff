"""Makes names that people gave safe to show."""

from __future__ import annotations

import html
import re

# Control characters (a terminal obeys them, XML forbids them) except tab and line feed; and the
# surrogates with which Python represents bytes of a file name that are not text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: object) -> str:
    """Return text with each such character replaced by a replacement character."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def one_line(text: object) -> str:
    """Return the same on one line."""
    return " ".join(printable(text).split())


def escape(text: object) -> str:
    """Return text for HTML and SVG."""
    return html.escape(printable(text))
