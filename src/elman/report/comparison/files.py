"""Writes a report: three files, each replaced completely or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elman.base.errors import UserError
from elman.base.whole_file import put_text
from elman.report.comparison.content import Report
from elman.report.comparison.page import PAGE_MARK, page_text
from elman.report.comparison.text_files import CSV_COLUMNS, MARKDOWN_MARK, csv_text, markdown_text

PAGE, TABLE, MARKDOWN = "report.html", "report.csv", "report.md"
_WRITERS: dict[str, Callable[[Report], str]] = {
    TABLE: csv_text,
    MARKDOWN: markdown_text,
    PAGE: page_text,
}
# How an earlier report begins: only such a file is replaced.
_MARKS = {TABLE: ",".join(list(CSV_COLUMNS)[:5]), MARKDOWN: MARKDOWN_MARK, PAGE: PAGE_MARK}
_BEGINNING = 1024


def write_report(report: Report, folder: Path) -> Path:
    """Write the report into ``folder`` and return the path of its page.

    Raises:
        UserError: another program's file has such a name, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _WRITERS:
            _refuse_foreign(folder / name)
        for name, writer in _WRITERS.items():
            # A file name may hold bytes that are not text.
            put_text(folder / name, writer(report), several=True, errors="replace")
    except OSError as error:
        raise UserError(
            f"{folder}: the report cannot be written ({error.strerror}); "
            "name another folder with report.out=<folder>"
        ) from None
    return folder / PAGE


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    known = path.is_file() and _MARKS[path.name].encode() in path.read_bytes()[:_BEGINNING]
    if not known:
        raise UserError(
            f"{path}: exists and is not an earlier report; "
            "move it, or name another folder with report.out=<folder>"
        )
