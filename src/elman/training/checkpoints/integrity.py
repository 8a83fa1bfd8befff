"""Lengths and checksums in a checkpoint's meta file, which tell whole files from damaged ones.

``meta.json`` holds the length and the CRC-32 of every other file under ``files``. ``crc32`` is its
own CRC-32, computed without that line. Older checkpoints have neither and are accepted
unchecked. A CRC-32 finds accidental damage, not tampering, and is twice as fast as a SHA-256.
"""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from elman.base.run_files import META
from elman.base.whole_file import put_json, sync

UNFINISHED = ".unfinished-"
"""Prefix of the name of everything that is being written or removed."""
_FILES, _OWN = "files", "crc32"
_BLOCK = 4 << 20
Fingerprint = dict[str, Any]
"""Length and checksum of a file."""


class BadFileError(Exception):
    """A file of a checkpoint differs from what was saved.

    Args:
        file: The file.
        what: What is wrong with it. The message puts these words after the file's name.
    """

    def __init__(self, file: Path, what: str) -> None:
        super().__init__(f"{file}: {what}")
        self.file, self.what = file, what


class UnreadableError(BadFileError):
    """The operating system does not let us read a file, so nobody knows whether it is whole."""


def unreadable(file: Path, error: OSError) -> BadFileError:
    """Return the error that says why a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return BadFileError(file, "missing")
    return UnreadableError(file, f"cannot be read ({error.strerror or error})")


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the content of ``meta.json``.

    Raises:
        BadFileError: it is missing or damaged, or it is not the meta file of a checkpoint.
    """
    path = folder / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError):
        empty = path.stat().st_size == 0
        raise BadFileError(path, "damaged (empty)" if empty else "damaged (not JSON)") from None
    if not isinstance(meta, dict) or type(meta.get("step")) is not int:
        raise BadFileError(path, "damaged (no step number in it)")
    if meta.get(_OWN, _crc_of(meta)) != _crc_of(meta):
        raise BadFileError(path, "damaged (its checksum differs from the saved one)")
    return meta


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write ``meta.json`` with its own checksum; a crash never leaves half of it."""
    put_json(folder / META, meta | {_OWN: _crc_of(meta)})
    sync(folder)


def settle(path: Path) -> Fingerprint:
    """Wait until a file is on the disk; meanwhile read it, and return its length and checksum."""
    with ThreadPoolExecutor(1) as disk:
        synced = disk.submit(sync, path)
        found = _fingerprint(path)
        synced.result()
    return found


def files(found: dict[str, Fingerprint]) -> dict[str, Any]:
    """Return the length and checksum of each file, by its name, for the meta file."""
    return {_FILES: found}


def check_length(folder: Path, name: str, meta: dict[str, Any]) -> None:
    """Raise BadFileError if a file is missing or its length differs from the saved one."""
    path = folder / name
    try:
        length = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    saved = _saved(meta, name).get("bytes", length)
    if length != saved:
        raise BadFileError(path, f"damaged ({length:,} of {saved:,} bytes)")


def check(folder: Path, name: str, meta: dict[str, Any]) -> None:
    """Read a whole file; raise BadFileError if it differs from what was saved."""
    check_length(folder, name, meta)
    saved = _saved(meta, name).get("crc32")
    try:
        same = saved is None or _fingerprint(folder / name)["crc32"] == saved
    except OSError as error:
        raise unreadable(folder / name, error) from None
    if not same:
        raise BadFileError(folder / name, "damaged (its checksum differs from the saved one)")


def _saved(meta: dict[str, Any], name: str) -> dict[str, Any]:
    files = meta.get(_FILES)
    saved = files.get(name) if isinstance(files, dict) else None
    return saved if isinstance(saved, dict) else {}


def _fingerprint(path: Path) -> Fingerprint:
    length = crc = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            length, crc = length + len(block), zlib.crc32(block, crc)
    return {"bytes": length, "crc32": f"{crc:08x}"}


def _crc_of(meta: dict[str, Any]) -> str:
    rest = {key: value for key, value in meta.items() if key != _OWN}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"
