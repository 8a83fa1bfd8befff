"""Seals: digests beside what a run wrote, by which a later change of it is found.

A seal is no signature: who changes a file on purpose can remove it. It finds a flipped digit, and
an edit that nobody remembers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEY = "digests"
"""Where a sealed tree keeps its seal."""
_BLOCK = 1 << 20
_OWN = "of the rest of this file"
_LINE = re.compile(rb"^# sha256 of the lines above: ([0-9a-f]{64})\s*\Z", re.MULTILINE)


def sealed_text(text: str) -> str:
    """Return lines of YAML with a last line that has their digest."""
    return f"{text}# sha256 of the lines above: {_digest(text.encode())}\n"


def text_is_changed(content: bytes) -> bool:
    """Whether sealed lines are not what was sealed; False for lines without a seal."""
    if not content.rpartition(b"\n")[0].rpartition(b"\n")[2].startswith(b"#"):
        return False  # no run writes a remark, but for the seal
    found = _LINE.search(content)
    return found is None or _digest(content[: found.start()]) != found.group(1).decode()


def sealed_tree(tree: Mapping[str, Any], beside: Path) -> dict[str, Any]:
    """Return what is to be written as JSON with its digest, and with that of a file as it is now.

    Args:
        tree: The content.
        beside: A file of lines that only grows; it need not exist.

    Raises:
        OSError: that file cannot be read.
    """
    size = _whole_lines(beside) if beside.exists() else 0
    files = {beside.name: {"bytes": size, "sha256": _of_file(beside, size)}}
    whole = {**tree, KEY: files}
    return {**whole, KEY: {**files, _OWN: _of_tree(whole)}}


def tree_is_changed(tree: Any) -> bool:
    """Whether a sealed tree is not what was sealed; False for one without a seal."""
    seal = tree.get(KEY) if isinstance(tree, dict) else None
    if not isinstance(seal, dict) or _OWN not in seal:
        return False
    files = {name: value for name, value in seal.items() if name != _OWN}
    return bool(_of_tree({**tree, KEY: files}) != seal[_OWN])


def file_is_changed(tree: Any, path: Path) -> bool:
    """Whether the part of a file that a sealed tree knows is not what it was; what is new is not.

    Raises:
        OSError: the file cannot be read.
    """
    seal = tree.get(KEY) if isinstance(tree, dict) else None
    known = seal.get(path.name) if isinstance(seal, dict) else None
    if not isinstance(known, dict) or not isinstance(known.get("bytes"), int):
        return False
    return path.exists() and _of_file(path, known["bytes"]) != known.get("sha256")


def _whole_lines(path: Path) -> int:
    """Return the bytes up to the end of the last whole line: a part of one may be cut off later."""
    with path.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        start = stream.seek(max(0, end - _BLOCK))
        return start + stream.read().rfind(b"\n") + 1


def _of_file(path: Path, size: int) -> str:
    """Return the digest of the first bytes of a file."""
    found = hashlib.sha256()
    if size:
        with path.open("rb") as stream:
            while size > 0 and (block := stream.read(min(size, _BLOCK))):
                found.update(block)
                size -= len(block)
    return found.hexdigest()


def _of_tree(tree: Mapping[str, Any]) -> str:
    return _digest(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
