"""The file that says what was checked and how it went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "parity.json"


def write_parity(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write ``parity.json`` and return its path."""
    path = folder / FILE
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path
