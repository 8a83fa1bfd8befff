"""Compressed files as streams of decoded bytes, in memory that does not grow with the file.

Every format may hold several members (gzip), streams (xz, bz2) or frames (Zstandard), one after
another; a file that ends inside one is damaged, never a shorter text.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

from elman.base.errors import UserError, first_line

_STEP = 64 * 2**10
_LIMIT = 4 * 2**20
# Zstandard hands out all that its input holds: a piece of 16 KiB holds at most half a GiB.
_ZSTD_PIECE = 16 * 2**10
# `zstd --long=31`, as large dumps are made, needs a window of so many bytes.
_ZSTD_WINDOW = 2**31
_AGAIN = "; fetch or compress it again"


class Chunk(NamedTuple):
    """Decoded bytes, and how much of the file was read for all up to them."""

    data: bytes
    consumed: int


class _DamageError(Exception):
    """The compressed bytes are wrong; says how."""


class _Std:
    """One stream of ``bz2`` or ``lzma``, whose objects keep the input that they could not use."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the data decode to, in bounded pieces."""
        yield self._decoder.decompress(data, _LIMIT)
        while not (self._decoder.eof or self._decoder.needs_input):
            yield self._decoder.decompress(b"", _LIMIT)

    @property
    def ended(self) -> bool:
        """Whether this was the whole of it."""
        return bool(self._decoder.eof)

    @property
    def unused(self) -> bytes:
        """Input behind its end."""
        return bytes(self._decoder.unused_data)


class _Gzip(_Std):
    """One member of a gzip file; zlib checks its sum and length."""

    def __init__(self) -> None:
        super().__init__(zlib.decompressobj(wbits=31))

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            yield self._decoder.decompress(data, _LIMIT)
            data = self._decoder.unconsumed_tail


class _Zstd(_Std):
    """One frame of a Zstandard file."""

    def __init__(self, decoder: Any) -> None:
        super().__init__(decoder)
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        while len(view) and not self.ended:
            piece, view = view[:_ZSTD_PIECE], view[_ZSTD_PIECE:]
            yield self._decoder.decompress(piece)
        self._rest = bytes(view)

    @property
    def unused(self) -> bytes:
        return super().unused + self._rest


def _decoder(compression: str) -> tuple[Callable[[], _Std], tuple[type[BaseException], ...]]:
    """Return what decodes one member, and the errors with which it says that one is damaged."""
    if compression == "gz":
        return _Gzip, (zlib.error,)
    if compression == "zst":
        import zstandard

        # Its memory is used again for each of perhaps very many frames.
        frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return lambda: _Zstd(frames.decompressobj()), (zstandard.ZstdError,)
    # Some builds of Python lack them.
    name = {"xz": "lzma", "bz2": "bz2"}[compression]
    try:
        module = import_module(name)
    except ImportError:
        raise _DamageError(f"this Python was built without its module {name}") from None
    if compression == "bz2":
        return lambda: _Std(module.BZ2Decompressor()), (OSError, ValueError)
    return lambda: _Std(module.LZMADecompressor(module.FORMAT_XZ)), (module.LZMAError,)


def plain_chunks(path: str) -> Iterator[Chunk]:
    """Yield a file's bytes as they are."""
    with open(path, "rb", buffering=0) as raw:
        while data := raw.read(_LIMIT):
            yield Chunk(data, raw.tell())


def decoded_chunks(path: str, compression: str | None, where: str) -> Iterator[Chunk]:
    """Yield what a file decodes to, in chunks of some MiB at most.

    Args:
        path: The file.
        compression: ``gz``, ``zst``, ``xz``, ``bz2``, or None for bytes as they are.
        where: The setting and the file, for error lines.

    Raises:
        UserError: the file is damaged or ends too early.
        OSError: it cannot be read.
    """
    if compression is None:
        yield from plain_chunks(path)
        return
    try:
        with open(path, "rb", buffering=0) as raw:
            for data in _decoded(raw, compression):
                yield Chunk(data, raw.tell())
    except _DamageError as damage:
        raise UserError(f"{where}: cannot be read as {compression}: {damage}") from None


def _decoded(raw: BinaryIO, compression: str) -> Iterator[bytes]:
    begin, errors = _decoder(compression)
    padded = compression in ("gz", "xz")  # zeros may stand behind a member
    began, data = False, b""
    while True:
        data = data or raw.read(_STEP)
        if not data:
            return
        if began and padded and not (data := data.lstrip(b"\0")):
            continue
        began, member = True, begin()
        while not member.ended:
            data = data or raw.read(_STEP)
            if not data:
                raise _DamageError(f"it ends too early{_AGAIN}")
            try:
                yield from filter(None, member.feed(data))
            except errors as error:
                raise _DamageError(f"it is damaged ({first_line(error)}){_AGAIN}") from None
            data = member.unused if member.ended else b""
