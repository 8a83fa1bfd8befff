"""Sections ``report`` of ``mode=report`` and ``verdict`` of ``mode=verdict``."""

from __future__ import annotations

import warnings
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from elman.base.errors import UserError
from elman.sections.section import Section


class ReportConfig(Section):
    """Keys of ``mode=report``.

    Args:
        dir: A sweep's folder, run folders, or a list of both.
        against: The row with which the others are compared: its model, its label or the number of
            a job of it; null is the one with the lowest loss.
        out: Folder for the report; null is the sweep's own folder, if ``dir`` is one sweep.
        strict: End with status 1 if the audit finds something unequal that ``allow`` does not name.
        allow: Rows of the audit that may be unequal.
        paper: Write the figures as SVG and PDF and the table as LaTeX, too.
        result_schema: Print the JSON Schema of ``result.json`` instead; nothing else is read.
    """

    dir: str | list[str] | None = None
    against: str | int | None = None
    out: str | None = None
    strict: bool = False
    allow: list[str] = Field(default_factory=list)
    paper: bool = False
    result_schema: bool = False

    @field_validator("allow", mode="before")
    @classmethod
    def _one_is_a_list(cls, allow: object) -> object:
        return [allow] if isinstance(allow, str) else allow

    @field_validator("dir")
    @classmethod
    def _names_one(cls, folders: str | list[str] | None) -> str | list[str] | None:
        if folders in ("", []) or (isinstance(folders, list) and "" in folders):
            raise UserError(
                "report.dir=: names no folder; name a sweep's, as in report.dir=outputs/..."
            )
        return folders

    @model_validator(mode="after")
    def _reports_or_explains(self) -> ReportConfig:
        if self.dir is None and not self.result_schema:
            raise UserError("report.dir: missing; add report.dir=<sweep folder>")
        if self.dir is not None and self.result_schema:
            raise UserError("report.dir: not read with report.result_schema=true; drop one of them")
        return self

    @property
    def folders(self) -> list[str]:
        """The folders, as typed."""
        return [self.dir] if isinstance(self.dir, str) else self.dir or []


with warnings.catch_warnings():
    # Pydantic has a method of the name of the setting verdict.json, which is long deprecated.
    warnings.filterwarnings("ignore", 'Field name "json"')

    class VerdictConfig(Section):
        """Keys of ``mode=verdict``: is a better than b?

        Args:
            a: A run folder, the folder of a sweep with one row, or a row of ``dir``: its label, its
                model, or the number of a job of it. A run of a sweep stands for its row.
            b: As ``a``.
            dir: A sweep's folder, run folders, or a list of both, where rows are looked up.
            family: A folder of sweeps, or a list of them: every row in it that is comparable with
                ``b`` counts as a try, and the answer is corrected for all tries.
            json: Print JSON, and nothing else.
        """

        a: str | int
        b: str | int
        dir: str | list[str] | None = None
        family: str | list[str] | None = None
        json: bool = False  # type: ignore[assignment]

        @field_validator("a", "b", "dir", "family")
        @classmethod
        def _names_one(cls, value: Any, info: ValidationInfo) -> Any:
            if value in ("", []) or (isinstance(value, list) and "" in value):
                key = f"verdict.{info.field_name}"
                raise UserError(f"{key}=: names nothing; name a folder, as in {key}=outputs/...")
            return value
