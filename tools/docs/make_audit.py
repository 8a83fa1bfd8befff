"""Writes docs/audit.md: what an audit looks at, how it knows, and which faults it finds.

Run it after a change to a row: ``python tools/docs/make_audit.py``. A test compares the page.
"""

from __future__ import annotations

from pathlib import Path

from elman.base import run_files
from elman.report.comparison.audit.finding import State
from elman.report.comparison.audit.table import CHECKS
from elman.report.markdown import code, table

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
INTRODUCTION = """\
# The audit of a comparison

Every [report](reports.md) of two rows or more has an audit: what was held equal between the rows,
as far as their files say. A comparison can be rigged without anybody meaning to: one model has an
MLP, one was tuned and the other was not, one ran without its kernels. Each such difference has a
row.

    elman mode=report report.dir=outputs/a_sweep
    elman mode=report report.dir=outputs/a_sweep report.strict=true 'report.allow=[mlp,state_bytes]'

The page and `report.md` show all rows. The terminal, also at the end of a sweep, shows a line for
each row that is not equal or not known. `{file}` beside `report.csv` has everything for scripts:
the keys of the rows in each state, and of each row what the files say.

## What a row may say

| state | what it means |
| --- | --- |
| {equal} | the files say that it was the same in every row |
| {unequal} | the files say that it was not, and nobody declared it |
| {unknown} | the files do not say; this is never taken for equal |
| {declared} | it differs because the command says so: it follows from the budget, it was swept \
alike for every model, or `report.allow` names it |

Rows of one task are compared with one another, and rows on text likewise. Of a tuned sweep only
the confirmed runs are rows. A key that was swept with the same values for every model is part of
the question, so rows are compared where it has one value. A key that has other values for one
model than for another is a difference between the models.

With `report.strict=true` the exit status is 1 if a row is not equal; the last line names the rows.
`report.allow` declares rows by the keys below. A row that is not known does not change the status.
Without `report.strict`, `report.allow` only marks rows as declared.

## The rows

{rows}
"""


def page() -> str:
    """Return the whole page."""
    rows = table(
        ["key", "what", "how it is known", "the fault that it finds"],
        [[code(one.key), one.words, one.known, "; ".join(one.finds) or "-"] for one in CHECKS],
    )
    return INTRODUCTION.format(
        file=run_files.AUDIT,
        rows=rows,
        equal=State.EQUAL,
        unequal=State.UNEQUAL,
        unknown=State.UNKNOWN,
        declared=State.DECLARED,
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
