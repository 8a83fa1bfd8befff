"""The table of cells is what the registry and the layers say, to the letter."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from elman.models.cells import registry

DOCS = Path(__file__).parents[2] / "docs"
TOOLS = Path(__file__).parents[2] / "tools" / "docs"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cells", TOOLS / "make_cells.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_cells = _load()


def test_the_committed_page_is_the_generated_one() -> None:
    committed = (DOCS / "cells.md").read_text(encoding="utf-8")
    if committed != make_cells.page():
        pytest.fail("docs/cells.md is not what the cells are: run python tools/docs/make_cells.py")


def test_every_cell_and_every_option_is_listed() -> None:
    sections = re.split(r"^## ", (DOCS / "cells.md").read_text(encoding="utf-8"), flags=re.M)
    options = {part.split("\n", 1)[0]: re.findall(r"^\| `(\w+)`", part, re.M) for part in sections}
    for cell in registry.cells().values():
        if cell.layer.startswith("elman."):
            assert options[cell.name] == list(cell.options)


def test_names_are_in_natural_order() -> None:
    names = ["mingru", "e14", "e4", "e74_diagonal", "e74", "e0", "e63m", "e63"]
    ordered = ["e0", "e4", "e14", "e63", "e63m", "e74", "e74_diagonal", "mingru"]
    assert sorted(names, key=make_cells.natural) == ordered


def test_a_formula_that_does_not_give_every_count_is_refused() -> None:
    samples = [({"d": d}, 3 * d**2 + 5) for d in range(1, 8)]
    assert make_cells.written(make_cells.fit(["d"], samples)) == "`3 d^2 + 5`"
    with pytest.raises(AssertionError, match="parameters at"):
        make_cells.fit(["d"], [*samples, ({"d": 9}, 3 * 9**2 + 6)])
