"""Compilers that behave badly on purpose, and a cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from elman.kernels import compiler


@dataclass(frozen=True)
class FakeCompiler:
    """A script in front of the real compiler; it notes every call."""

    path: Path

    def calls(self, containing: str = "") -> int:
        """Return how often it was called with a text among its arguments."""
        log = self.path.with_suffix(".log")
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(containing in line for line in lines)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty kernel cache, in which no compiler is known either."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ELMAN_CACHE", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    compiler._search.cache_clear()
    return folder


@pytest.fixture
def fake_compiler(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], FakeCompiler]:
    """Return ``fake(script)``: $CXX is then g++ behind those lines of shell."""

    def make(script: str = "", name: str = "fake-g++") -> FakeCompiler:
        path = tmp_path / name
        log = path.with_suffix(".log")
        path.write_text(f'#!/bin/sh\necho "$*" >> {log}\n{script}\nexec g++ "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return FakeCompiler(path)

    return make
