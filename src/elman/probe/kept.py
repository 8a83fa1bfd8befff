"""Keeps the parts of a probe that are measured, so that a killed one goes on with the others.

They lie in the cache until the probe has all of its parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from elman.base.cache import cached, put_file
from elman.base.errors import UserError
from elman.base.output import note


class KeptParts:
    """The parts that an earlier probe of exactly this kind has measured before it was killed.

    Args:
        facts: All that the numbers depend on.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        text = json.dumps(facts, sort_keys=True, default=str)
        name = f"probe/{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
        self._path: Path | None = None
        self._parts: dict[str, Any] = {}
        with suppress(UserError):  # a cache that others may write holds nothing of ours
            self._path = cached("text", name)
        if self._path is not None:
            with suppress(OSError, ValueError):
                self._parts = json.loads(self._path.read_text(encoding="utf-8"))

    def get(self, part: str) -> dict[str, Any] | None:
        """Return what was kept of a part, or None."""
        kept: dict[str, Any] | None = self._parts.get(part)
        return kept

    def put(self, part: str, record: dict[str, Any]) -> None:
        """Keep a part; where nothing can be written, nothing is kept, with a note."""
        self._parts[part] = record
        if self._path is None:
            return
        try:
            put_file(self._path, json.dumps(self._parts))
        except OSError as error:
            note(f"{self._path}: part {part} is not kept ({error.strerror})")

    def forget(self) -> None:
        """Remove what was kept: the probe has all of its parts."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
