"""docs/probe.md is what its script makes, and names every part and number."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from elman.probe.result import DEFINITIONS
from elman.sections.probe import PARTS

TOOLS = Path(__file__).parents[2] / "tools" / "docs"


def test_the_page_is_current_and_names_every_part_and_number() -> None:
    spec = importlib.util.spec_from_file_location("make_probe", TOOLS / "make_probe.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    text = make.PAGE.read_text()
    assert text == make.page(), "run python tools/docs/make_probe.py"
    assert all(f"- **{part}**:" in text for part in PARTS)
    assert all(f"| `{name}` |" in text for name in DEFINITIONS)
