"""The sections of the specifications that the code cites exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_CITED = re.compile(
    r"(lm-and-training|matrix-state|vector-state)\s+(?:#\s+)?specification,?\s+(?:section\s+)?(\d+(?:\.\d+)*)",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^#+ (\d+(?:\.\d+)*)", re.MULTILINE)


def _sections(document: str) -> set[str]:
    text = (ROOT / "docs" / "specifications" / f"{document}.md").read_text()
    return set(_HEADING.findall(text))


@pytest.mark.parametrize("folder", ["src", "csrc", "conf", "docs"])
def test_every_cited_section_exists(folder: str) -> None:
    sections = {
        name: _sections(name) for name in ("lm-and-training", "matrix-state", "vector-state")
    }
    files = [
        path
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".h", ".cuh", ".cpp", ".cu", ".yaml", ".md"}
    ]
    cited = [
        (path.relative_to(ROOT), document.lower(), number)
        for path in files
        for document, number in _CITED.findall(path.read_text())
    ]
    assert [each for each in cited if each[2] not in sections[each[1]]] == []
    assert cited or folder == "docs"
