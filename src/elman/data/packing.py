"""Packs data that cannot be read in place into one file of the cache, once.

One folder of the cache holds one pack. ``text`` has the bytes. ``pack.json`` has their sources and
their hash; without it the bytes do not count. ``checked.json`` says when all bytes were last read,
and ``lock`` is the lock. While the pack is made there are ``text.part`` and ``state.json``, which
says where the last whole source file ended. NumPy only; no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from elman.base.cache import (
    CACHE_VARIABLE,
    cached,
    check_unshared,
    keep_from_others,
    make_cache_folder,
    put_file,
)
from elman.base.errors import UserError
from elman.base.file_lock import FileLock
from elman.base.units import size_text
from elman.base.whole_file import HALF_WRITTEN, rename, sync
from elman.data.documents import Piece, listed_names
from elman.data.files import ByteSource
from elman.data.pack_check import CHECKED, RECORD, TEXT, is_whole, note_whole
from elman.data.planning import SourceFile
from elman.data.progress import PackingProgress
from elman.data.writing import HashedFile
from elman.sections.training import SEPARATOR

_VERSION = 1
_LOCK, _HOLDER = "lock", "lock.holder"
_PART, _STATE = "text.part", "state.json"
LISTED = 1000
"""Most source files listed in a result; a hash covers all of them."""
# Interval between two saved states from which packing can resume; each waits for the disk.
_STATE_SECONDS = 2.0
_HASH_STEP = 4 * 2**20
_BUFFER = 2**20
_SAMPLE_BYTES = 4 * 2**20
_WAIT_SECONDS = 0.5


class PackedSource(ByteSource):
    """The one file of a pack, described by its source files."""

    def __init__(self, text: Path, record: dict[str, Any], setting: str) -> None:
        super().__init__(text, setting=setting)
        self._record = record
        self._sources: list[dict[str, Any]] = record["sources"]

    @property
    def label(self) -> str:
        """The first source file and the number of the others."""
        return _label([source["path"] for source in self._sources])

    def describe(self) -> dict[str, Any]:
        """Return :meth:`ByteSource.describe` and ``packed``, the sources of the bytes.

        Above 256 MiB, ``sha256`` is the hash of all bytes from when they were packed. At most the
        first 1,000 source files are listed; ``sources_sha256`` covers the whole list.
        """
        own = super().describe()
        own["sha256"] = own["sha256"] or self._record["sha256"]
        listed = self._sources[:LISTED]
        return own | {
            "paths": [source["path"] for source in listed],
            "packed": {
                "file": self.paths[0],
                "files": len(self._sources),
                "sources": listed,
                "sources_sha256": _hash_of(self._sources),
                "field": self._record["field"],
                "joiner": SEPARATOR.hex(),
                "documents": self._record["documents"],
            },
        }

    def is_whole(self) -> bool:
        """Whether the bytes match the record, see :mod:`elman.data.pack_check`."""
        return is_whole(self, self._record, self._say_reading)

    def _say_reading(self) -> None:
        with PackingProgress(0) as progress:
            progress.say(
                f"reading {self.paths[0]} ({size_text(len(self))}) once to check it: it may have "
                f"changed since it was packed"
            )


@dataclass
class _State:
    """How far packing got: whole source files, and the text written from them."""

    files: int = 0
    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()
    documents: int = 0
    halves: int = 0
    blank: int = 0
    # Whether there is anything but blanks.
    solid: bool = False
    # What the text so far ends with: a document or raw bytes; "" while it is empty.
    ends_with: str = ""


@dataclass(frozen=True)
class Pack:
    """Files to be read as one text through the cache.

    Args:
        files: The files, in order.
        field: The field with a document's text.
        setting: The configuration key that named the files, for error messages.
    """

    files: tuple[SourceFile, ...]
    field: str
    setting: str

    def open(self) -> PackedSource:
        """Return the packed text; make it unless it exists and is whole.

        Any number of processes may call this at once: one packs, the others wait and say so.

        Raises:
            UserError: a file is damaged or has unexpected content, the files have no text, or the
                text does not fit in the cache.
        """
        if (source := self.finished()) is not None:
            return source
        expected = self._expected_bytes()
        with PackingProgress(sum(file.bytes for file in self.files)) as progress:
            try:
                make_cache_folder(self.folder)
                with self._locked(progress):
                    if (source := self.finished()) is None:
                        self._refuse_without_space(expected)
                        _Packing(self, progress).run()
                        source = self.finished()
            except OSError as error:
                raise self._cannot_write(error) from None
        assert source is not None, "just packed"
        return source

    def finished(self) -> PackedSource | None:
        """Return the packed text if it exists and is whole.

        Raises:
            UserError: somebody else may have written it.
        """
        text = self.folder / TEXT
        for name in (TEXT, RECORD, CHECKED, _PART, _STATE):
            check_unshared(self.folder / name)
        try:
            record = json.loads((self.folder / RECORD).read_text())
            if not text.is_file() or record["version"] != _VERSION:
                return None
            source = PackedSource(text, record, self.setting)
            if source.is_whole():
                return source
        except (OSError, ValueError, KeyError, TypeError):  # UserError is a ValueError
            return None
        source.close()
        return None

    @cached_property
    def folder(self) -> Path:
        """Its folder in the cache; the name is a hash of everything that the text depends on."""
        key = _hash_of([_VERSION, self.field_read, self.sources])
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(self.files[0].path))[:40]
        return cached("data", f"{name}-{key[:20]}", RECORD)

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The files as in the record."""
        return [asdict(file) for file in self.files]

    @property
    def field_read(self) -> str | None:
        """The field; None if no file has fields."""
        return self.field if any(file.content != "raw" for file in self.files) else None

    @property
    def where(self) -> str:
        """The setting and the files, for error messages."""
        return f"{self.setting}={_label([file.path for file in self.files])}"

    def pieces(self, file: SourceFile) -> Iterator[Piece]:
        """Yield the text of one file.

        Raises:
            UserError: it cannot be read, or it changed since it was inspected.
        """
        try:
            yield from file.pieces(self.field, self.setting)
            status = os.stat(file.path)
        except OSError as error:
            raise UserError(
                f"{self.setting}={file.path}: {error.strerror}; type the command again once it can "
                f"be read"
            ) from None
        if (status.st_size, status.st_mtime_ns) != (file.bytes, file.modified_ns):
            raise UserError(
                f"{self.setting}={file.path}: changed while it was packed; type the command "
                f"again once it is complete"
            )

    def _expected_bytes(self) -> int:
        """Estimate the bytes of text from the first MiB of a few files of each kind."""
        kinds: defaultdict[tuple[str | None, str], list[SourceFile]] = defaultdict(list)
        for file in self.files:
            kinds[file.compression, file.content].append(file)
        expected = 0.0
        for group in kinds.values():
            total = sum(file.bytes for file in group)
            if group[0].plain:
                expected += total
                continue
            read = text = 0
            for file in {group[0].path: group[0], group[-1].path: group[-1]}.values():
                sampled, consumed = self._sampled(file)
                text += sampled
                read += consumed
            expected += total * text / max(1, read)
        return int(expected)

    def _sampled(self, file: SourceFile) -> tuple[int, int]:
        """Return the bytes of text in the start of a file, and the bytes read for them."""
        text, consumed = 0, 0
        for piece in self.pieces(file):
            text, consumed = text + len(piece.data), piece.consumed
            if text >= _SAMPLE_BYTES:
                return text, consumed
        return text, file.bytes

    def _refuse_without_space(self, expected: int) -> None:
        there = sum(
            (self.folder / name).stat().st_size
            for name in (TEXT, _PART)
            if (self.folder / name).exists()
        )
        free = shutil.disk_usage(self.folder).free + there
        if expected > free:
            raise UserError(
                f"{self.where}: packed it takes about {size_text(expected)}, but only "
                f"{size_text(free)} are free for {self.folder}; set {CACHE_VARIABLE} to a folder "
                f"on a larger disk"
            )

    def _cannot_write(self, error: OSError) -> UserError:
        with suppress(OSError):
            _discard(self.folder)
        return UserError(
            f"{self.where}: cannot pack it ({error.strerror}: {error.filename or self.folder}); "
            f"set {CACHE_VARIABLE} to a folder that can be written and has space"
        )

    @contextmanager
    def _locked(self, progress: PackingProgress) -> Iterator[None]:
        """Hold the pack's lock; the system frees it when its holder dies for any reason.

        Where the file system has no locks, a file stands for it.
        """
        lock = FileLock(
            self.folder / _LOCK,
            mode=0o644,
            stand_in=self.folder / _HOLDER,
            lasting="data is packed",
        )
        told = False
        try:
            while not lock.take():
                if remedy := lock.remedy():
                    raise UserError(
                        f"{self.folder}: {lock.holder()} packs in it; {remedy}, or set "
                        f"{CACHE_VARIABLE} to another folder"
                    )
                if not told:
                    progress.say(f"another process is packing {self.where}: waiting for it ...")
                    told = True
                with suppress(OSError):
                    so_far = size_text((self.folder / _PART).stat().st_size)
                    progress.show(f"waiting for another process: {so_far} packed")
                time.sleep(_WAIT_SECONDS)
            yield
        finally:
            lock.drop()


class _Packing:
    """One process that makes one pack and holds its lock."""

    def __init__(self, pack: Pack, progress: PackingProgress) -> None:
        self._pack, self._progress = pack, progress
        self._folder = pack.folder
        self._state = _State()
        self._fields: tuple[str, ...] = ()

    def run(self) -> None:
        """Write the text and then its record."""
        files = self._pack.files
        size = size_text(sum(file.bytes for file in files))
        why = (
            ", because they are too many to hold open" if all(file.plain for file in files) else ""
        )
        self._progress.say(f"packing {self._pack.where} ({size}) into {self._folder}, once{why}")
        with suppress(FileNotFoundError):
            os.unlink(self._folder / TEXT)
            self._progress.say("what was packed there before is damaged, and is made again")
        try:
            with self._begun() as out:
                self._write(out)
        except UserError:
            _discard(self._folder)
            raise
        except KeyboardInterrupt:
            self._progress.say(
                f"interrupted: {self._state.files} of {len(self._pack.files)} files are packed; "
                f"the same command continues after them"
            )
            raise
        self._record()
        self._progress.say(self._summary())

    @contextmanager
    def _begun(self) -> Iterator[HashedFile]:
        """Open the text after the last whole file of an interrupted start, if there is one."""
        part = self._folder / _PART
        part.touch()
        keep_from_others(part)
        with open(part, "r+b", buffering=0) as raw:
            if (digest := self._continued(raw)) is None:
                self._state, digest = _State(), hashlib.sha256()
            raw.seek(self._state.bytes)
            raw.truncate()
            with open(raw.fileno(), "wb", buffering=_BUFFER, closefd=False) as buffered:
                yield HashedFile(buffered, digest, self._state.bytes)

    def _continued(self, raw: BinaryIO) -> hashlib._Hash | None:
        """Return the hash of an earlier start's text if it matches the saved state."""
        try:
            self._state = _State(**json.loads((self._folder / _STATE).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        self._progress.say(
            f"continuing after {self._state.files} of {len(self._pack.files)} files, packed before"
        )
        digest, left = hashlib.sha256(), self._state.bytes
        while left and (block := raw.read(min(left, _HASH_STEP))):
            digest.update(block)
            left -= len(block)
            self._progress.show(f"checking what was packed before: {size_text(left)} left")
        return digest if digest.hexdigest() == self._state.sha256 else None

    def _write(self, out: HashedFile) -> None:
        ends = list(accumulate((file.bytes for file in self._pack.files), initial=0))
        saved_at = time.monotonic()
        for index in range(self._state.files, len(self._pack.files)):
            file = self._pack.files[index]
            separate = file.content != "raw" or self._state.ends_with == "document"
            for piece in self._pack.pieces(file):
                self._add(out, piece, separate)
                separate = file.content != "raw"
                self._progress.packing(ends[index] + piece.consumed, out.n_bytes)
            self._state.files = index + 1
            if time.monotonic() - saved_at > _STATE_SECONDS:
                self._save(out)
                saved_at = time.monotonic()
        if not self._state.solid:
            raise UserError(f"{self._pack.where}: {self._nothing()}")
        self._state.bytes, self._state.sha256 = out.n_bytes, out.sync()

    def _add(self, out: HashedFile, piece: Piece, separate: bool) -> None:
        state = self._state
        if separate and state.ends_with:
            out.put(SEPARATOR)
        out.put(piece.data)
        state.ends_with = "document" if piece.documents else "bytes"
        state.documents += piece.documents
        state.halves += piece.halves
        state.blank += piece.blank
        if not state.solid:
            solid = piece.blank < piece.documents if piece.documents else not piece.data.isspace()
            state.solid = solid and bool(piece.data)
        self._fields = self._fields or piece.fields

    def _nothing(self) -> str:
        """Return what is wrong with text that is empty, or nothing but blanks."""
        documents = self._state.documents
        if not documents:
            return "holds no text; name files that do"
        which = "the only document is" if documents == 1 else f"all {documents:,} documents are"
        others = [name for name in self._fields if name != self._pack.field]
        if not others:
            return f"{which} empty in field {self._pack.field}; name files that hold text"
        key = self._pack.setting.split(".", 1)[0] + ".field"
        return (
            f"{which} empty in field {self._pack.field}; other fields: {listed_names(others)}; "
            f"type {key}=<name>"
        )

    def _save(self, out: HashedFile) -> None:
        """Save the state, so that a later start can continue from here."""
        self._state.bytes, self._state.sha256 = out.n_bytes, out.sync()
        put_file(self._folder / _STATE, json.dumps(asdict(self._state)))

    def _record(self) -> None:
        """Finish the pack: write its record, then give the text its final name."""
        with ByteSource(self._folder / _PART) as text:
            quick = text.quick_hash()
        record = {
            "version": _VERSION,
            "bytes": self._state.bytes,
            "sha256": self._state.sha256,
            "quick_sha256": quick,
            "documents": self._state.documents,
            "halves": self._state.halves,
            "field": self._pack.field_read,
            "joiner": SEPARATOR.hex(),
            "sources": self._pack.sources,
        }
        put_file(self._folder / RECORD, json.dumps(record))
        rename(self._folder / _PART, self._folder / TEXT)
        sync(self._folder)
        note_whole(str(self._folder / TEXT))
        with suppress(FileNotFoundError):
            os.unlink(self._folder / _STATE)

    def _summary(self) -> str:
        state, seconds = self._state, self._progress.seconds
        empty = f" ({state.blank:,} of them empty)" if state.blank else ""
        documents = f"{state.documents:,} documents{empty}, " if state.documents else ""
        halves = (
            f"; {state.halves:,} documents have half of a surrogate pair, stored as its three bytes"
            if state.halves
            else ""
        )
        return f"packed: {documents}{state.bytes:,} bytes of text in {seconds:.1f} s{halves}"


def _label(paths: list[str]) -> str:
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _hash_of(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _discard(folder: Path) -> None:
    """Remove unfinished files; the lock stays, because others may wait for it."""
    for path in (folder / _PART, folder / _STATE, *folder.glob(HALF_WRITTEN)):
        path.unlink(missing_ok=True)
