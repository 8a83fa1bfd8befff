"""Writes ``parity.json``: what was checked, with which result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.whole_file import put_json


def write_parity(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write ``parity.json`` whole and return its path.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / run_files.PARITY
    put_json(path, result)
    return path
