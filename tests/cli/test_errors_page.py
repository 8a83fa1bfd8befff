"""Every wrong command of docs/errors.md prints what the page says, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TOOLS = Path(__file__).parents[2] / "tools" / "docs"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_errors", TOOLS / "make_errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_errors = _load()
PAGE = (DOCS / "errors.md").read_text(encoding="utf-8")


def sections() -> dict[str, dict[str, str]]:
    """Return the page's lines by section and command."""
    found = {}
    for title, body in re.findall(r"## (.+)\n\n```text\n([\s\S]*?)```", PAGE):
        pairs = re.findall(r"\$ elman (.+)\n([\s\S]*?)(?=\n\$|\Z)", body)
        found[title] = {command: said.strip() for command, said in pairs}
    return found


def test_the_page_lists_the_commands_of_its_script() -> None:
    listed = {title: list(commands) for title, commands in sections().items()}
    assert listed == make_errors.CASES


@pytest.mark.parametrize("title", sections())
def test_wrong_commands_print_one_line_and_make_nothing(title: str, tmp_path: Path) -> None:
    with make_errors.surroundings(tmp_path):
        before = sorted(tmp_path.rglob("*"))
        for command, expected in sections()[title].items():
            status, output, errors = make_errors.outcome(command)
            assert errors == f"{expected}\n", f"elman {command}: run tools/docs/make_errors.py"
            assert errors.startswith("elman: error: ")
            assert (status, output, errors.count("\n")) == (2, "", 1), command
            assert "append" not in errors
        assert sorted(tmp_path.rglob("*")) == before
