"""Text and tables of LaTeX, for pdflatex with the packages that :data:`NEEDS` names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from elman.report.comparison.escape import one_line

NEEDS = (r"\usepackage[T1]{fontenc}", r"\usepackage{array,graphicx,longtable}")
"""What the preamble of a document must have that holds such text, tables and figures."""
# A float of more lines than this does not fit on a page.
_LINES_OF_A_FLOAT = 35
_SMALL = r"\footnotesize\setlength{\tabcolsep}{3pt}\renewcommand{\arraystretch}{1.2}"
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


def table(
    heads: Sequence[str], kinds: str, lines: Sequence[Sequence[str]], caption: str, label: str
) -> str:
    """Return a table; of many lines one that goes on over pages.

    Args:
        heads: Its headings, as plain text.
        kinds: A letter for each column: ``t`` text that wraps, ``n`` a number.
        lines: Its cells, as LaTeX.
        caption: What it shows, as plain text.
        label: Its name for a reference.
    """
    width = 0.36 / max(1, kinds.count("t"))
    texts = f">{{\\raggedright\\arraybackslash}}p{{{width:.2f}\\linewidth}}"
    columns = "".join(texts if kind == "t" else "r" for kind in kinds)
    head = " & ".join(map(latex, heads)) + r" \\ \hline"
    body = "\n".join(" & ".join(map(_breakable, line)) + r" \\" for line in lines)
    named = f"\\caption{{{latex(caption)}}}\\label{{{label}}}"
    if len(lines) > _LINES_OF_A_FLOAT:
        return (
            f"\\begingroup\n{_SMALL}\n"
            f"\\begin{{longtable}}{{{columns}}}\n{named}\\\\\n{head}\n\\endfirsthead\n"
            f"{head}\n\\endhead\n{body}\n\\end{{longtable}}\n\\endgroup\n"
        )
    return (
        f"\\begin{{table}}\n\\centering{_SMALL}\n"
        f"\\begin{{tabular}}{{{columns}}}\n{head}\n{body}\n\\end{{tabular}}\n{named}\n"
        "\\end{table}\n"
    )


def _breakable(cell: str) -> str:
    """Let a long name go on in the next line after a sign."""
    return re.sub(r"(\\_|=)", r"\1\\allowbreak{}", cell)


def figure(name: str, caption: str) -> str:
    """Return a figure, given the name of its PDF file and its caption as plain text."""
    return (
        f"\\begin{{figure}}\n\\centering\n\\includegraphics[width=0.7\\linewidth]{{{name}.pdf}}\n"
        f"\\caption{{{latex(caption)}}}\\label{{fig:{name}}}\n\\end{{figure}}\n"
    )
