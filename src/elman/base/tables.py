"""Every table of the terminal, at any width, by one rule.

A name is never cut. Where the terminal is too narrow, text is wrapped at blanks, then whole columns
are left out, the least important one first, and a line below names them. ``--wide``, a pipe and a
file get every column, on lines as long as they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from elman.base.consoles import say

# A longer word of a text is broken: nobody types it, and a column of its length leaves no room.
_LONGEST_WORD = 24


@dataclass(frozen=True)
class Heading:
    """One column of a table.

    Args:
        name: Its heading.
        number: Whether its cells are numbers: to the right, and on one line.
        least: Of a column of text, the fewest characters that a line of it may have; 0 for names,
            whose words are whole at any width.
    """

    name: str
    number: bool = False
    least: int = 0

    def widths(self, cells: Sequence[Text]) -> tuple[int, int]:
        """Return the fewest and the most characters that the column can use."""
        head = cell_len(self.name)
        most = max(head, *(cell.cell_len for cell in cells), 0)
        if self.number:
            return most, most
        words = [cell_len(word) for cell in cells for word in cell.plain.split()]
        longest = max(words, default=0)
        if self.least:
            longest = max(min(longest, _LONGEST_WORD), self.least)
        in_head = max((cell_len(word) for word in self.name.split()), default=0)
        return min(max(longest, in_head), most), most


def names(*heads: str) -> list[Heading]:
    """Return columns of names."""
    return [Heading(head) for head in heads]


def numbers(*heads: str) -> list[Heading]:
    """Return columns of numbers."""
    return [Heading(head, number=True) for head in heads]


def text(head: str, least: int = 20) -> Heading:
    """Return a column of text; a line of it has at least ``least`` characters."""
    return Heading(head, least=least)


class TerminalTable:
    """Rows under headings, printed as the terminal's width allows.

    Args:
        headings: The columns.
        spare: Headings of the columns that may be left out, the least important one first.
        title: A line above the table.
        bars: Whether lines are drawn between the columns and below the headings.
    """

    def __init__(
        self,
        headings: Sequence[Heading],
        spare: Sequence[str] = (),
        title: str = "",
        *,
        bars: bool = True,
    ) -> None:
        self.headings, self.title = list(headings), title
        self._spare, self._bars = spare, bars
        self._rows: list[tuple[list[Text], str]] = []

    def add(self, *cells: str | Text, style: str = "") -> None:
        """Add a row; a cell's text is printed as it is, without markup."""
        if len(cells) != len(self.headings):
            raise ValueError(f"{len(cells)} cells under {len(self.headings)} headings")
        row = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        self._rows.append((row, style))

    def cells(self) -> list[list[str]]:
        """Return the text of every cell, row by row."""
        return [[cell.plain for cell in row] for row, _ in self._rows]

    def fitted(self, width: int) -> tuple[Table, list[str]]:
        """Return the table for a width, and the headings of the columns that it lacks."""
        kept, left_out = list(range(len(self.headings))), []
        spare = [number for head in self._spare for number in kept if self._head(number) == head]
        for number in spare:
            if self._needed(kept) <= width:
                break
            left_out.append(self._head(number))
            kept.remove(number)
        return self._drawn(kept, self._shares(kept, width)), left_out

    def print(self, console: Console) -> None:
        """Print the table and, on one line below it, the columns that are left out."""
        table, left_out = self.fitted(console.width)
        if self.title:
            say(console, self.title)
        console.print(table)
        if left_out:
            say(console, left_out_note(left_out))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table and its note, for a live display: no line is longer than the width."""
        table, left_out = self.fitted(options.max_width)
        yield table
        if left_out:
            yield Text(left_out_note(left_out))

    def _head(self, number: int) -> str:
        return self.headings[number].name

    def _widths(self, number: int) -> tuple[int, int]:
        return self.headings[number].widths([row[number] for row, _ in self._rows])

    def _needed(self, kept: Sequence[int]) -> int:
        return sum(self._widths(number)[0] for number in kept) + self._between(kept)

    def _between(self, kept: Sequence[int]) -> int:
        """Return the characters of a line that belong to no cell."""
        return 3 * len(kept) - 1 if self._bars else 2 * (len(kept) - 1)

    def _shares(self, kept: Sequence[int], width: int) -> list[int]:
        """Return the width of each column: what it needs, and a share of the room that is left."""
        found = [self._widths(number) for number in kept]
        shares = [least for least, _ in found]
        room = width - self._between(kept) - sum(shares)
        while room < 0 and max(shares) > 1:  # not even the names fit: fold the longest
            shares[shares.index(max(shares))] -= 1
            room += 1
        for is_text in (False, True):  # names first: they are read most
            places = [
                place
                for place, number in enumerate(kept)
                if bool(self.headings[number].least) == is_text
            ]
            room = _share_out(room, places, shares, [most for _, most in found])
        return shares

    def _drawn(self, kept: Sequence[int], shares: Sequence[int]) -> Table:
        table = Table(
            show_edge=False,
            header_style="bold",
            box=box.HEAVY_HEAD if self._bars else None,
            pad_edge=self._bars,
            padding=(0, 1) if self._bars else (0, 2, 0, 0),
            show_header=any(heading.name for heading in self.headings),
        )
        for number, share in zip(kept, shares, strict=True):
            justify = "right" if self.headings[number].number else "left"
            head = Text(self._head(number))
            table.add_column(head, justify=justify, width=share, overflow="fold")  # type: ignore[arg-type]
        for row, style in self._rows:
            table.add_row(*(row[number] for number in kept), style=style)
        return table


def _share_out(room: int, places: Sequence[int], shares: list[int], most: Sequence[int]) -> int:
    """Widen the columns at some places evenly, up to what they can use; return the room left."""
    while room > 0 and (wanting := [place for place in places if shares[place] < most[place]]):
        for place in wanting[:room]:
            shares[place] += 1
            room -= 1
    return room


def left_out_note(heads: Sequence[str]) -> str:
    """Return the line that names the columns which a terminal has no room for."""
    return f"columns left out (terminal too narrow): {', '.join(heads)}; --wide shows all"
