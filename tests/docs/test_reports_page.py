"""docs/reports.md is what its script makes, and defines every column."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from elman.report.comparison.columns import COLUMNS
from elman.report.comparison.write import CSV_COLUMNS

TOOLS = Path(__file__).parents[2] / "tools" / "docs"


def test_the_page_is_current_and_defines_every_column() -> None:
    spec = importlib.util.spec_from_file_location("make_reports", TOOLS / "make_reports.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    text = make.PAGE.read_text()
    assert text == make.page(), "run python tools/docs/make_reports.py"
    lines = text.splitlines()
    for name, meaning in CSV_COLUMNS.items():
        assert f"| `{name}` | {meaning} |" in lines
    for column in COLUMNS:
        assert f"| {column.head} | {column.definition} |" in lines
        assert column.definition
