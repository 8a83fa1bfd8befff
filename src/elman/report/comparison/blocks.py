"""What a report is made of: blocks of text, tables and pictures, and each table's five forms.

The page shows a block by ``page.html.jinja``, which has the form of a table in HTML. The other
forms of a table are here, and what makes names that people gave safe to show in each form.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console

from elman.base import consoles
from elman.base.tables import Heading, TerminalTable
from elman.report import markdown

# A float of LaTeX of more lines than this does not fit on a page.
_LINES_OF_A_FLOAT = 35
_SMALL = r"\footnotesize\setlength{\tabcolsep}{3pt}\renewcommand{\arraystretch}{1.2}"
# Control characters (a terminal obeys them, XML forbids them) except tab and line feed; and the
# surrogates with which Python represents bytes of a file name that are not text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
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


@dataclass(frozen=True)
class Head:
    """One column of a table.

    Args:
        name: Its heading.
        number: Whether its cells are numbers, which stand to the right.
        definition: What it means.
        css: A class of its cells on the page.
    """

    name: str
    number: bool = False
    definition: str = ""
    css: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Args:
        cells: Its cells.
        row: The row of the report that it is about, or None.
        css: A class of it on the page.
        style: The line style of that row, if its name has a sample beside it.
    """

    cells: Sequence[Any]
    row: int | None = None
    css: str = ""
    style: int | None = None


@dataclass(frozen=True)
class Table:
    """A table, in whatever form it is shown.

    Args:
        heads: Its columns.
        lines: Its lines.
        css: A class of it on the page; ``sorted`` for one that its headings sort.
        tall: Whether it scrolls in itself.
    """

    heads: Sequence[Head]
    lines: Sequence[Line]
    css: str = ""
    tall: bool = False
    kind: ClassVar[str] = "table"

    @property
    def names(self) -> list[str]:
        """The headings."""
        return [head.name for head in self.heads]

    @property
    def cells(self) -> list[list[str]]:
        """The cells, line by line."""
        return [list(line.cells) for line in self.lines]


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    """Return a table of text."""
    return Table([Head(head) for head in heads], [Line(line) for line in lines])


@dataclass(frozen=True)
class Text:
    """A paragraph, after some bold words."""

    text: str
    css: str = ""
    lead: str = ""
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Title:
    """The heading of a part of a block."""

    text: str
    kind: ClassVar[str] = "title"


@dataclass(frozen=True)
class Command:
    """A command that a reader may copy, with what it is for."""

    purpose: str
    text: str
    css: str = "command"
    kind: ClassVar[str] = "command"


@dataclass(frozen=True)
class Item:
    """A line of a list, with commands below it and words behind it."""

    text: str
    commands: Sequence[Command] = ()
    lead: str = ""
    behind: str = ""


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[Item]
    css: str = "notes"
    kind: ClassVar[str] = "items"


@dataclass(frozen=True)
class Fold:
    """Parts that are folded on a screen, and open on paper."""

    title: str
    parts: Sequence[Any]
    kind: ClassVar[str] = "fold"


@dataclass(frozen=True)
class Pairs:
    """Words with their meanings."""

    pairs: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "pairs"


@dataclass(frozen=True)
class Figure:
    """A picture as SVG with its title and caption, and the same in numbers."""

    svg: str
    caption: str
    title: str = ""
    numbers: Table | None = None
    css: str = ""
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Figures:
    """Figures side by side."""

    figures: Sequence[Figure]
    kind: ClassVar[str] = "figures"


@dataclass(frozen=True)
class Entry:
    """An entry of a legend: a button that shows the curves of some rows alone.

    Args:
        rows: The rows.
        style: Their line style.
        name: What they are called.
        marks: The marks of the rows, as in the table.
        marker: Whether its line has the marker of an arm.
    """

    rows: Sequence[int]
    style: int
    name: str
    marks: str = ""
    marker: bool = False


@dataclass(frozen=True)
class Legend:
    """The legend of several pictures."""

    entries: Sequence[Entry]
    kind: ClassVar[str] = "legend"


@dataclass(frozen=True)
class Job:
    """One job of a running sweep, as a small box."""

    name: str
    state: str
    tip: str
    row: int


@dataclass(frozen=True)
class Jobs:
    """How many jobs are in each state, as a bar, and a box for each."""

    counts: dict[str, int]
    jobs: Sequence[Job]
    kind: ClassVar[str] = "jobs"


@dataclass(frozen=True)
class Block:
    """A section of the page; a block without parts is left out."""

    title: str
    parts: Sequence[Any]


def printable(text: object) -> str:
    """Return text with each such character replaced by a replacement character."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def one_line(text: object) -> str:
    """Return the same on one line."""
    return " ".join(printable(text).split())


def say(console: Console, text: str) -> None:
    """Print text as one line."""
    consoles.say(console, one_line(text))


def paragraphs(title: str, parts: Sequence[Any]) -> Iterator[str | Command | Table]:
    """Yield the parts of a block as Markdown has them: open, without captions and pictures."""
    if parts:
        yield f"{title}:"
        yield from _paragraphs(parts)


def _paragraphs(parts: Sequence[Any]) -> Iterator[str | Command | Table]:
    for part in parts:
        match part:
            case Items():
                for item in part.items:
                    yield item.text
                    yield from item.commands
            case Fold():
                yield from _paragraphs(part.parts)
            case Title():
                yield f"{part.text}:"
            case Text() if part.css != "caption":
                yield part.text
            case Title():
                yield f"{part.text}:"
            case Command() | Table():
                yield part


def escape(text: object) -> str:
    """Return text for HTML and SVG."""
    return html.escape(printable(text))


def plain_markdown(text: str) -> str:
    """Return text that Markdown shows unchanged, on one line; a table escapes its bars itself."""
    shown = one_line(text)
    for mark in "\\`*_<>[]#":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


def latex(text: str) -> str:
    """Return text that LaTeX shows unchanged; a sign beyond Latin-1 is shown by its number."""
    apart = _LIGATURES.sub("\\1\0", one_line(text))
    return "".join("{}" if sign == "\0" else _SIGNS.get(sign) or _shown(sign) for sign in apart)


def _shown(sign: str) -> str:
    return sign if ord(sign) < 0x100 else f"[U+{ord(sign):04X}]"


def markdown_table(table: Table) -> str:
    """Return a table as Markdown."""
    lines = [[plain_markdown(cell) for cell in line] for line in table.cells]
    return markdown.table([plain_markdown(name) for name in table.names], lines)


def terminal_table(table: Table, spare: Sequence[str] = (), *, bars: bool = True) -> TerminalTable:
    """Return a table for a terminal; see :class:`~elman.base.tables.TerminalTable`."""
    headings = [Heading(one_line(head.name), head.number) for head in table.heads]
    shown = TerminalTable(headings, spare, bars=bars)
    for line in table.cells:
        shown.add(*map(one_line, line))
    return shown


def csv_table(table: Table) -> str:
    """Return a table as CSV whose texts no spreadsheet takes for a formula."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.names)
    writer.writerows([_csv_cell(value) for value in line.cells] for line in table.lines)
    return file.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = one_line(value)
        return f"'{value}" if value[:1] in tuple("=+-@") else value
    return value


class Latex(str):
    """A cell that is LaTeX already."""


def latex_table(table: Table, caption: str, label: str) -> str:
    """Return a table as LaTeX; of many lines one that goes on over pages.

    Args:
        table: The table; its columns of text are wrapped.
        caption: What it shows, as plain text.
        label: Its name for a reference.
    """
    texts_wide = 0.36 / max(1, sum(not head.number for head in table.heads))
    text = f">{{\\raggedright\\arraybackslash}}p{{{texts_wide:.2f}\\linewidth}}"
    columns = "".join("r" if head.number else text for head in table.heads)
    head = " & ".join(map(latex, table.names)) + r" \\ \hline"
    body = "\n".join(" & ".join(map(_latex_cell, line.cells)) + r" \\" for line in table.lines)
    named = f"\\caption{{{latex(caption)}}}\\label{{{label}}}"
    if len(table.lines) > _LINES_OF_A_FLOAT:
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


def _latex_cell(cell: str) -> str:
    """Return a cell as LaTeX in which a long name may go on in the next line after a sign."""
    text = cell if isinstance(cell, Latex) else latex(cell)
    return re.sub(r"(\\_|=)", r"\1\\allowbreak{}", text)
