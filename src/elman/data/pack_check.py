"""Whether a packed text still has the bytes that were packed.

A text of at most 64 MiB is read whole each time that a process first opens it. A larger one is read
whole if its size, its times or its place on the disk are not those of the last whole read, which
``checked.json`` holds. The system sets the time of a change itself (ctime), so that a changed text
cannot look old.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.cache import chosen_cache, put_file
from elman.base.errors import UserError
from elman.data.files import ByteSource

TEXT, RECORD, CHECKED = "text", "pack.json", "checked.json"
CHEAP_BYTES = 64 * 2**20
"""Largest text that is read whole each time."""
# Texts that this process has read whole, by what is true of their files then.
_read: dict[str, list[int]] = {}


def is_whole(source: ByteSource, record: Mapping[str, Any], reading: Callable[[], None]) -> bool:
    """Whether the bytes of a text are those of its record.

    Args:
        source: The one file of a pack.
        record: Its record.
        reading: Called before a large text is read whole.
    """
    quick = {"bytes": len(source), "quick_sha256": source.quick_hash()}
    if not quick.items() <= record.items():
        return False
    path = source.paths[0]
    now = _state_of(path)
    known = _read.get(path) or (None if len(source) <= CHEAP_BYTES else _noted(path))
    if known == now:
        return True
    if len(source) > CHEAP_BYTES:
        reading()
    if source.whole_hash() != record["sha256"]:
        return False
    _note(path, now)
    return True


def note_whole(path: str) -> None:
    """Note that a text has just been written whole."""
    _note(path, _state_of(path))


def _note(path: str, state: list[int]) -> None:
    _read[path] = state
    with suppress(OSError):  # a cache may be read-only
        put_file(Path(path).with_name(CHECKED), json.dumps(state))


def _state_of(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _noted(path: str) -> Any:
    try:
        return json.loads(Path(path).with_name(CHECKED).read_text())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class CheckedPack:
    """One pack of the cache.

    Args:
        folder: Its folder.
        bytes: Bytes of its text.
        problem: What is wrong with it; empty if it is whole.
    """

    folder: Path
    bytes: int
    problem: str = ""


def checked_packs(reading: Callable[[Path], None]) -> Iterator[CheckedPack]:
    """Read every finished pack of the cache whole, and say whether it has the packed bytes.

    Args:
        reading: Called before each one.
    """
    try:
        folders = sorted(chosen_cache("data").iterdir())
    except OSError:
        return
    for folder in folders:
        if (folder / RECORD).is_file() and (folder / TEXT).is_file():
            reading(folder)
            yield _checked(folder)


def _checked(folder: Path) -> CheckedPack:
    size = (folder / TEXT).stat().st_size
    try:
        expected = json.loads((folder / RECORD).read_text())["sha256"]
        with ByteSource(folder / TEXT) as source:
            found = source.whole_hash()
    except (ValueError, KeyError, TypeError) as error:  # UserError is a ValueError
        said = str(error) if isinstance(error, UserError) else "its record cannot be read"
        return CheckedPack(folder, size, said)
    except OSError as error:
        return CheckedPack(folder, size, f"cannot be read ({error.strerror})")
    return CheckedPack(folder, size, "" if found == expected else "its bytes have changed")
