"""docs/audit.md is what its script makes, and has every row of the audit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from elman.report.comparison.audit.table import CHECKS, KEYS

TOOLS = Path(__file__).parents[2] / "tools" / "docs"


def test_the_page_is_current_and_has_every_row() -> None:
    spec = importlib.util.spec_from_file_location("make_audit", TOOLS / "make_audit.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    text = make.PAGE.read_text()
    assert text == make.page(), "run python tools/docs/make_audit.py"
    for check in CHECKS:
        assert f"| `{check.key}` | {check.words} | {check.known} |" in text
    assert len({*KEYS}) == len(CHECKS)
