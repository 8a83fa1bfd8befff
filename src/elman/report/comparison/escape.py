"""Makes names that people gave safe to show: in HTML, Markdown, LaTeX and a terminal."""

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


def plain_markdown(text: str) -> str:
    """Return text that Markdown shows unchanged, on one line; a table escapes its bars itself."""
    shown = one_line(text)
    for mark in "\\`*_<>[]#":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "\N{NO-BREAK SPACE}": "~",
    "\N{SOFT HYPHEN}": "",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{MINUS SIGN}": "$-$",
    "\N{LESS-THAN OR EQUAL TO}": r"$\le$",
    "\N{GREATER-THAN OR EQUAL TO}": r"$\ge$",
}
# LaTeX makes one sign of two of these.
_LIGATURES = re.compile(r"([-',])(?=\1)")


def latex(text: str) -> str:
    """Return text that LaTeX shows unchanged; a sign beyond Latin-1 is shown by its number."""
    apart = _LIGATURES.sub("\\1\0", one_line(text))
    return "".join("{}" if sign == "\0" else _SIGNS.get(sign) or _shown(sign) for sign in apart)


def _shown(sign: str) -> str:
    return sign if ord(sign) < 0x100 else f"[U+{ord(sign):04X}]"
