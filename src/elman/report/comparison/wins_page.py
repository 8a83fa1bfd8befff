"""Who wins, on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elman.report.comparison.escape import escape
from elman.report.comparison.rows import Row
from elman.report.comparison.wins import Group, Wins
from elman.report.comparison.wins_text import (
    HEADS,
    METHOD,
    MOST_LISTED,
    TO_DECIDE,
    TO_MEASURE,
    cells,
    heading,
    listed,
    sentence,
    shortened,
)


def wins_html(wins: Wins, rows: Sequence[Row]) -> str:
    """Return what the section of the page holds; empty if nothing is compared."""
    numbers = {id(row): number for number, row in enumerate(rows)}
    parts = [_group(group, numbers) for group in wins.groups]
    if wins.left_out:
        parts.append(_list(wins.left_out, "notes"))
    if wins.groups:
        parts.append(
            f"<details><summary>How rows are compared</summary><p>{escape(METHOD)}</p></details>"
        )
    return "".join(parts)


def _group(group: Group, numbers: Mapping[int, int]) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in HEADS)
    lines = "".join(
        f'<tr data-row="{numbers[id(one.row)]}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells(group, one, line))
        + "</tr>"
        for one, line in listed(group)
    )
    note = f"<p>{escape(note)}</p>" if (note := shortened(group)) else ""
    told = "".join(
        f"<li>{escape(sentence(group, one))}"
        + "".join(_command(TO_DECIDE, text) for text in one.to_decide if at < MOST_LISTED)
        + "</li>"
        for at, one in enumerate(group.challengers)
    )
    measure = "".join(_command(TO_MEASURE, text) for text in group.to_measure)
    return (
        f"<h3>{escape(_begun(heading(group)))}</h3><p>{escape(_begun(group.by.told))}.</p>"
        f'<ul class="wins">{told}</ul>{measure}'
        f"<details><summary>Every difference, with its interval</summary>{note}"
        f'<div class="scroll"><table class="sorted differences"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div></details>"
    )


def _begun(text: str) -> str:
    return text[0].upper() + text[1:]


def _command(purpose: str, text: str) -> str:
    return f'<p class="command">{escape(purpose)}: <code>{escape(text)}</code></p>'


def _list(lines: Sequence[str], css: str) -> str:
    return f'<ul class="{css}">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
