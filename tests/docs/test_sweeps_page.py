"""docs/sweeps.md names the test of every fault, and each is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text()
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+|Test\w+)", page))
    assert len(named) > 15
    assert [
        name for name in sorted(named) if not re.search(rf"(def|class) {name}\b", sources)
    ] == []
    files = re.findall(r"`((?:\w+/)+test_\w+\.py)`", page)
    assert files
    assert all((ROOT / "tests" / name).is_file() for name in files)
