"""Recognizes the kind of a file by the magic numbers at its beginning.

:mod:`elman.data.planning` reads only a few formats. The others are recognized so that nobody trains
on a picture or an archive by mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

HEAD_BYTES = 512
"""First bytes that are enough for every known kind; a tar archive's mark is at byte 257."""
TAIL_BYTES = 8

UNPACK = "unpack it and name the files in it"
REPACK = "unpack it, or save it as .zst or .gz"
EXPORT = "save its text as .jsonl or .parquet"
NO_TEXT = "name a file that holds text"


@dataclass(frozen=True)
class Kind:
    """A format that elman does not read.

    Args:
        name: Name of the format, with its article.
        advice: What a person can do about it.
    """

    name: str
    advice: str


_COMPRESSIONS = {
    "gz": (b"\x1f\x8b\x08",),
    # A Zstandard file may also begin with a skippable frame.
    "zst": (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16))),
    "xz": (b"\xfd7zXZ\x00",),
}
PARQUET = b"PAR1"
"""First and last bytes of a Parquet file."""
ARROW_FILE = b"ARROW1\x00\x00"
"""First bytes of an Arrow file with random access; ``save_to_disk`` writes streams instead."""
JSON_BLANKS = b"\xef\xbb\xbf \t\r\n"
"""What may stand before a JSON text; the first three bytes are the mark of UTF-8."""


def compression_of(head: bytes) -> str | None:
    """Return ``gz``, ``zst``, ``xz`` or ``bz2`` if a file of that kind begins so, or None."""
    for name, starts in _COMPRESSIONS.items():
        if head.startswith(starts):
            return name
    # A text may begin with "BZh"; in bzip2, the digits of pi (or of its root if empty) follow.
    ends = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")
    if head.startswith(b"BZh") and head[3:4] in b"123456789" and head[4:10] in ends:
        return "bz2"
    return None


_ZIP = Kind("a zip archive", UNPACK)
_SEVEN = Kind("a 7z archive", UNPACK)
_UTF_16 = Kind("text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8")
_UTF_32 = Kind("text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8")
_PICTURE = Kind("a picture", NO_TEXT)
_SOUND = Kind("an audio or video file", NO_TEXT)
_PROGRAM = Kind("a compiled program", NO_TEXT)
_WEIGHTS = Kind("a file of weights", NO_TEXT)
_STARTS: dict[bytes, Kind] = {
    b"PK\x03\x04": _ZIP,
    b"PK\x05\x06": _ZIP,
    b"7z\xbc\xaf\x27\x1c": _SEVEN,
    b"Rar!\x1a\x07": Kind("a rar archive", UNPACK),
    b"!<arch>\n": Kind("an ar archive", UNPACK),
    b"\x04\x22\x4d\x18": Kind("an lz4 file", REPACK),
    b"\x02\x21\x4c\x18": Kind("an lz4 file", REPACK),
    b"LZIP\x01": Kind("an lzip file", REPACK),
    b"\x1f\x9d": Kind("a file of compress (.Z)", REPACK),
    b"\xff\x06\x00\x00sNaPpY": Kind("a Snappy file", REPACK),
    b"FEA1\x00": Kind("an old Feather file", EXPORT),
    b"\x89HDF\r\n\x1a\n": Kind("an HDF5 file", EXPORT),
    b"\x93NUMPY": Kind("a NumPy array", EXPORT),
    b"Obj\x01": Kind("an Avro file", EXPORT),
    b"SQLite format 3\x00": Kind("an SQLite database", EXPORT),
    b"MMIDIDX\x00": Kind("a Megatron index", EXPORT),
    b"%PDF-": Kind("a PDF document", EXPORT),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": Kind("an old Office document", EXPORT),
    b"\x89PNG\r\n\x1a\n": _PICTURE,
    b"\xff\xd8\xff": _PICTURE,
    b"GIF87a": _PICTURE,
    b"GIF89a": _PICTURE,
    b"II*\x00": _PICTURE,
    b"MM\x00*": _PICTURE,
    b"OggS\x00": _SOUND,
    b"fLaC\x00": _SOUND,
    b"ID3\x02": _SOUND,
    b"ID3\x03": _SOUND,
    b"ID3\x04": _SOUND,
    b"\x1aE\xdf\xa3": _SOUND,
    b"\x7fELF": _PROGRAM,
    b"\x00asm\x01\x00\x00\x00": _PROGRAM,
    b"\xca\xfe\xba\xbe": _PROGRAM,
    b"\xcf\xfa\xed\xfe": _PROGRAM,
    b"GGUF\x02\x00": _WEIGHTS,
    b"GGUF\x03\x00": _WEIGHTS,
    b"\xff\xfe\x00\x00": _UTF_32,
    b"\x00\x00\xfe\xff": _UTF_32,
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
}


def is_arrow(head: bytes) -> bool:
    """Whether a file begins like an Arrow file, or like an Arrow stream.

    A stream has no magic number, only a continuation mark and the schema's length.
    """
    length = int.from_bytes(head[4:8], "little")
    stream = head.startswith(b"\xff" * 4) and 0 < length < 2**24 and length % 8 == 0
    return stream or head.startswith(ARROW_FILE)


def _is_pickle(head: bytes, tail: bytes) -> bool:
    return head.startswith(b"\x80") and head[1:2] in b"\x02\x03\x04\x05" and tail.endswith(b".")


def _is_safetensors(head: bytes, tail: bytes) -> bool:
    return head[8:10] == b'{"' and 0 < int.from_bytes(head[:8], "little") < 2**27


def _is_windows_program(head: bytes, tail: bytes) -> bool:
    place = int.from_bytes(head[60:64], "little")
    return head.startswith(b"MZ") and place < len(head) and head[place : place + 4] == b"PE\0\0"


# These need more than the first bytes; the tail is empty if it is unknown.
_LOOKS: list[tuple[Callable[[bytes, bytes], bool], Kind]] = [
    (lambda head, tail: head[257:262] == b"ustar", Kind("a tar archive", UNPACK)),
    (lambda head, tail: head[:4] == b"RIFF" and head[8:12] == b"WEBP", _PICTURE),
    (lambda head, tail: head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"AVI "), _SOUND),
    (lambda head, tail: head[:3] == b"\0\0\0" and head[4:8] == b"ftyp", _SOUND),
    (lambda head, tail: head[:3] == b"ORC" == tail[4:7], Kind("an ORC table", EXPORT)),
    (_is_pickle, Kind("a Python pickle", EXPORT)),
    (_is_safetensors, _WEIGHTS),
    (_is_windows_program, _PROGRAM),
]


def unreadable(head: bytes, tail: bytes) -> Kind | None:
    """Return the kind of a file that is recognized but not read, or None.

    Args:
        head: Its first :data:`HEAD_BYTES`.
        tail: Its last :data:`TAIL_BYTES`; empty if unknown.
    """
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    return next((kind for looks, kind in _LOOKS if looks(head, tail)), None)


# Formats without a magic number.
UNREADABLE_NAMES = {
    ".br": Kind("a Brotli file", REPACK),
    ".lzma": Kind("an lzma file", REPACK),
    ".tfrecord": Kind("a TFRecord file", EXPORT),
}
