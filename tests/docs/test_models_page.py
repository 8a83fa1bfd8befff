"""The page of models is what the files say, to the letter."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from elman.config.catalog import catalog

DOCS = Path(__file__).parents[2] / "docs"
TOOLS = Path(__file__).parents[2] / "tools" / "docs"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_models", TOOLS / "make_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_models = _load()


def test_the_committed_page_is_the_generated_one() -> None:
    committed = (DOCS / "models.md").read_text(encoding="utf-8")
    if committed != make_models.page():
        pytest.fail(
            "docs/models.md is not what the models are: run python tools/docs/make_models.py"
        )


@pytest.mark.slow
def test_the_states_counted_ahead_are_those_of_the_layers() -> None:
    assert make_models.STATES.read_text(encoding="utf-8") == make_models.states()


def test_every_model_is_on_the_page_and_links_to_its_cell() -> None:
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    cells = re.findall(r"^## (\S+)$", (DOCS / "cells.md").read_text(encoding="utf-8"), re.M)
    listed = dict(re.findall(r"^\| `(\S+)` \| \[\S+\]\(cells\.md#(\S+)\)", page, re.M))
    assert list(listed) == [one.name for one in catalog()]
    assert set(listed.values()) <= set(cells)
