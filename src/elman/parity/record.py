"""Writes ``parity.json``: what was checked, with which result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.disk import whole_file


def write_parity(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write ``parity.json`` whole and return its path.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / run_files.PARITY
    with whole_file(path) as stream:
        stream.write(json.dumps(result, indent=2) + "\n")
    return path
