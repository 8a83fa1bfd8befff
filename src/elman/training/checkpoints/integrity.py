"""What tells a whole file of a checkpoint from a damaged one: lengths and checksums in its meta.

``meta.json`` holds under ``files`` the length and the CRC-32 of every other file, and under
``crc32`` its own, without that line. Checkpoints of before have neither and are taken as they are.
A CRC-32 finds damage, not intent, at twice the rate of a SHA-256.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

META = "meta.json"
UNFINISHED = ".unfinished-"
"""So begins the name of everything that is being written or removed."""
_FILES, _OWN = "files", "crc32"
_BLOCK = 4 << 20


class BadFileError(Exception):
    """A file of a checkpoint is not what was saved.

    Args:
        file: The file.
        what: What is wrong with it, as the words after its name.
    """

    def __init__(self, file: Path, what: str) -> None:
        super().__init__(f"{file}: {what}")
        self.file, self.what = file, what


class UnreadableError(BadFileError):
    """The system does not let us read a file, whole or not."""


def unreadable(file: Path, error: OSError) -> BadFileError:
    """Return what keeps us from reading a file."""
    if isinstance(error, FileNotFoundError):
        return BadFileError(file, "missing")
    return UnreadableError(file, f"cannot be read ({error.strerror or error})")


def read_meta(folder: Path) -> dict[str, Any]:
    """Return what ``meta.json`` says.

    Raises:
        BadFileError: it is missing, damaged, or no meta of a checkpoint.
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
        raise BadFileError(path, "damaged (names no step)")
    if meta.get(_OWN, _crc_of(meta)) != _crc_of(meta):
        raise BadFileError(path, "damaged (its checksum is not the saved one)")
    return meta


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write ``meta.json`` with its own checksum, whole or not at all."""
    scratch = folder / f"{UNFINISHED}{META}"
    text = json.dumps(meta | {_OWN: _crc_of(meta)}, indent=2) + "\n"
    scratch.write_text(text, encoding="utf-8")
    sync(scratch)
    os.replace(scratch, folder / META)
    sync(folder)


def fingerprints(folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the part of a meta that tells these files from damaged ones."""
    return {_FILES: {name: _fingerprint(folder / name) for name in names}}


def check_length(folder: Path, name: str, meta: dict[str, Any]) -> None:
    """Raise BadFileError if a file is missing or has another length than was saved."""
    path = folder / name
    try:
        length = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    saved = _saved(meta, name).get("bytes", length)
    if length != saved:
        raise BadFileError(path, f"damaged ({length:,} of {saved:,} bytes)")


def check(folder: Path, name: str, meta: dict[str, Any]) -> None:
    """Raise BadFileError if a file is not what was saved; reads all of it."""
    check_length(folder, name, meta)
    saved = _saved(meta, name).get("crc32")
    try:
        same = saved is None or _fingerprint(folder / name)["crc32"] == saved
    except OSError as error:
        raise unreadable(folder / name, error) from None
    if not same:
        raise BadFileError(folder / name, "damaged (its checksum is not the saved one)")


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _saved(meta: dict[str, Any], name: str) -> dict[str, Any]:
    files = meta.get(_FILES)
    saved = files.get(name) if isinstance(files, dict) else None
    return saved if isinstance(saved, dict) else {}


def _fingerprint(path: Path) -> dict[str, Any]:
    length = crc = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            length, crc = length + len(block), zlib.crc32(block, crc)
    return {"bytes": length, "crc32": f"{crc:08x}"}


def _crc_of(meta: dict[str, Any]) -> str:
    rest = {key: value for key, value in meta.items() if key != _OWN}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"
