"""Section ``report`` of ``mode=report``."""

from __future__ import annotations

from pydantic import field_validator

from elman.base.errors import UserError
from elman.sections.section import Section


class ReportConfig(Section):
    """Keys of ``mode=report``.

    Args:
        dir: A sweep's folder, run folders, or a list of both.
        against: The row with which the others are compared: its model, its label or the number of
            a job of it; null is the one with the lowest loss.
        out: Folder for the report; null is the sweep's own folder, if ``dir`` is one sweep.
        paper: Write the figures as SVG and PDF and the table as LaTeX, too.
    """

    dir: str | list[str]
    against: str | int | None = None
    out: str | None = None
    paper: bool = False

    @field_validator("dir")
    @classmethod
    def _names_one(cls, folders: str | list[str]) -> str | list[str]:
        if not folders or (isinstance(folders, list) and "" in folders):
            raise UserError(
                "report.dir=: names no folder; name a sweep's, as in report.dir=outputs/..."
            )
        return folders

    @property
    def folders(self) -> list[str]:
        """The folders, as typed."""
        return [self.dir] if isinstance(self.dir, str) else self.dir
