"""Every test that docs/defects.md names is one that pytest collects."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "defects.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| [\dD]", line)]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py::\w+)`", PAGE)))


def test_every_defect_has_a_test() -> None:
    assert len(ROWS) > 50
    for row in ROWS:
        assert re.search(r"`[\w/]+\.py::test_\w+`", row), row


def test_every_named_test_is_collected() -> None:
    files = sorted({f"tests/{test.partition('::')[0]}" for test in TESTS})
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*collect, *files], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    missing = [test for test in TESTS if f"tests/{test}" not in collected]
    if missing:
        pytest.fail(f"docs/defects.md names tests that do not exist: {', '.join(missing)}")
