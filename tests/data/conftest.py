"""A cache of packed data for every test of its own."""

from pathlib import Path

import pytest


@pytest.fixture
def pack_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packs, empty."""
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"
