"""The audit of a report, in its forms: lines, a table, and JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elman.base.errors import UserError, did_you_mean
from elman.report.comparison.audit.finding import Check, Finding, State, Subject
from elman.report.comparison.audit.table import CHECKS, KEYS
from elman.report.comparison.blocks import Fold, Head, Line, Table, Text

TITLE = "Audit"
METHOD = (
    "The audit says what was held equal between the rows, as far as their files show it.",
    "Not known: the files do not say. This is not the same as equal.",
    "Declared: it differs because the command says so, or report.allow does.",
)
"""What an audit says and what its states mean, in paragraphs."""
JSON_MARK = '"written_by": "elman mode=report"'
HEADS = ("what", "state", "what the files say")
_ALLOWED = "report.allow"
_CSS = {State.UNEQUAL: "unequal", State.UNKNOWN: "unknown"}
_SIGNS = {
    State.UNEQUAL: "\N{MULTIPLICATION SIGN}",
    State.UNKNOWN: "?",
    State.DECLARED: "\N{NOT EQUAL TO}",
    State.EQUAL: "=",
}


@dataclass(frozen=True)
class Audited:
    """One row of an audit.

    Args:
        check: What was looked at.
        finding: What was found.
    """

    check: Check
    finding: Finding

    @property
    def line(self) -> str:
        """Return it as a line of text."""
        return f"{self.finding.state}: {self.check.words}: {self.finding.detail}"

    @property
    def cells(self) -> tuple[str, str, str]:
        """Return it as cells under :data:`HEADS`."""
        state = self.finding.state
        return self.check.words, f"{_SIGNS[state]} {state}", self.finding.detail


@dataclass(frozen=True)
class Audit:
    """What was held equal in a report.

    Args:
        rows: Its rows, in the order of :data:`~.table.CHECKS`; what does not arise is left out.
    """

    rows: tuple[Audited, ...] = ()

    def of(self, *states: State) -> list[Audited]:
        """Return the rows in some states."""
        return [row for state in states for row in self.rows if row.finding.state == state]

    @property
    def unequal(self) -> list[Audited]:
        """What was not held equal, and not declared."""
        return self.of(State.UNEQUAL)

    def state(self, key: str) -> State | None:
        """Return the state of a row; None if its question does not arise."""
        return next((row.finding.state for row in self.rows if row.check.key == key), None)

    def allowing(self, keys: Collection[str], why: str = _ALLOWED) -> Audit:
        """Return the audit in which some rows are declared, if they are not equal or not known."""
        named = (_allowed(row, why) if row.check.key in keys else row for row in self.rows)
        return Audit(tuple(named))

    def lines(self) -> list[str]:
        """Return a line for everything that is not equal or not known."""
        return [f"audit: {row.line}" for row in self.of(State.UNEQUAL, State.UNKNOWN)]

    def table(self, *states: State) -> Table:
        """Return the rows in some states as a table."""
        heads = [Head(HEADS[0], css="t"), Head(HEADS[1], css="said"), Head(HEADS[2])]
        return Table(
            heads,
            [Line(row.cells, css=_CSS.get(row.finding.state, "")) for row in self.of(*states)],
            "audit",
        )

    def parts(self) -> list[Any]:
        """Return the parts of its block on the page."""
        if not self.rows:
            return []
        shown: list[Any] = [Text(text, "caption") for text in METHOD]
        if self.of(State.UNEQUAL, State.UNKNOWN):
            shown.append(self.table(State.UNEQUAL, State.UNKNOWN))
        if rest := self.of(State.DECLARED, State.EQUAL):
            counts = [(len(self.of(state)), state) for state in (State.EQUAL, State.DECLARED)]
            title = ", ".join(f"{count} {state}" for count, state in counts if count)
            folded = self.table(State.DECLARED, State.EQUAL)
            shown.append(Fold(title, [folded]) if len(rest) < len(self.rows) else folded)
        return shown

    def json(self) -> str:
        """Return it as JSON."""
        rows = [
            {
                "key": row.check.key,
                "what": row.check.words,
                "state": str(row.finding.state),
                "detail": row.finding.detail,
                "known_by": row.check.known,
            }
            for row in self.rows
        ]
        by_state = {
            str(state).replace(" ", "_"): [row.check.key for row in self.of(state)]
            for state in State
        }
        tree = {"written_by": "elman mode=report", **by_state, "rows": rows}
        return json.dumps(tree, indent=2) + "\n"


def _allowed(row: Audited, why: str) -> Audited:
    if row.finding.state not in (State.UNEQUAL, State.UNKNOWN):
        return row
    detail = f"{row.finding.detail}; {why}"
    return replace(row, finding=Finding(State.DECLARED, detail))


def audit_of(subject: Subject) -> Audit:
    """Return the audit of what is compared; without rows if nothing is."""
    if not subject.groups:
        return Audit()
    findings = ((check, check.look(subject)) for check in CHECKS)
    return Audit(tuple(Audited(check, one) for check, one in findings if one is not None))


def check_allowed(keys: Sequence[str]) -> None:
    """Check the names of ``report.allow``.

    Raises:
        UserError: an audit has no such row.
    """
    for key in keys:
        if key not in KEYS:
            raise UserError(
                f"{_ALLOWED}={key}: no row of an audit{did_you_mean(key, KEYS)}; "
                f"rows: {', '.join(KEYS)}"
            )
