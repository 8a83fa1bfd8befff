"""Stand-ins for the packages of dashboards, which have their public functions."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.small_run import TEXT

STUBS = Path(__file__).parents[1] / "stubs"


@contextmanager
def stand_in(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Put the stand-in into the place of a package, in a folder with a text."""
    monkeypatch.chdir(folder)
    Path("text.txt").write_bytes(TEXT)
    for module in _loaded(name):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(STUBS / f"stub_{name}")
    stub = importlib.import_module(name)
    stub.failing.clear()
    yield stub
    for module in _loaded(name):
        del sys.modules[module]


def _loaded(name: str) -> list[str]:
    return [one for one in sys.modules if one.partition(".")[0] == name]


def failing(error: Exception) -> Callable[[], None]:
    """Return a function that raises an error."""

    def fail() -> None:
        raise error

    return fail


def result_of(run: str) -> dict[str, Any]:
    """Return a run's result."""
    result: dict[str, Any] = json.loads(Path(run, "result.json").read_text())
    return result
