"""The page of ``run.py all``: how each part ended, and tables of what the checks reported."""

from __future__ import annotations

from collections.abc import Sequence

from elman.report.markdown import table
from tools.gpu.job import Job, Row, read_rows

END = "end of the part"
"""Marks the row that says how long a part took."""


def page(job: Job) -> str:
    """Return the page of what was reported so far."""
    own = by_part(job.rows[1:])
    verdicts = [[name, *verdict(rows)] for name, rows in own.items()]
    texts = ["# GPU check", table(["part", "result", "problem"], verdicts)]
    for name, all_rows in own.items():
        rows = [row for row in all_rows if row.get("what") != END]
        if len(rows) > 1:
            texts.append(f"## {name}\n\n{tabled(rows)}")
        for part, found in by_part(read_rows(job.out / f"{name}.jsonl")[1:]).items():
            texts.append(f"## {name}: {part}\n\n{tabled(found)}")
    return "\n\n".join(texts) + "\n"


def by_part(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return rows by their part, in order."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append(row)
    return parts


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return how a part ended, and what went wrong first."""
    wrong = [row for row in rows if not row.get("passed", True)]
    seconds = sum(row.get("wall_s", 0.0) for row in rows)
    result = "FAILED" if wrong else "not run" if "not run" in rows[0] else "passed"
    count = f"{len(wrong)} wrong: " if len(wrong) > 1 else ""
    text = cell(wrong[0].get("error", "")) if wrong else rows[0].get("not run", "")
    return [f"{result}, {seconds:.0f} s", f"{count}{text}"]


def tabled(rows: Sequence[Row]) -> str:
    """Return rows as a table of what is a number or a word; results that are wrong come first."""
    names = list(
        dict.fromkeys(
            name
            for row in rows
            for name, value in row.items()
            if name != "part" and not isinstance(value, (dict, list))
        )
    )
    ordered = sorted(rows, key=lambda row: row.get("passed", True))
    return table(names, [[cell(row.get(name, "")) for name in names] for row in ordered])


def cell(value: object) -> str:
    """Return a value in a few words."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.4g}"
    lines = "" if value is None else str(value)
    return lines.partition("\n")[0][:150]
