"""Compressed files, JSON lines and Parquet: what is read of them, and what each mistake prints."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from elman.base.errors import UserError
from elman.data import documents, streams, tables
from elman.data.opening import open_source
from elman.sections.training import DataFormat

pytestmark = pytest.mark.usefixtures("pack_cache")

DOCUMENTS = ["one\nmore", "zw\u00f6lf \U0001f600", "", 'a "quoted" \x1e\r\n line', "last"]
JOINED = "\x1e".join(DOCUMENTS).encode()
LINES = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS).encode()
TEXT = b"".join(b"line %d\n" % number for number in range(20_000))


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zst,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def write(name: str, content: bytes) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(content)
    return name


def write_table(name: str, columns: dict[str, Any], **options: Any) -> str:
    pq.write_table(pa.table(columns), name, **options)
    return name


def read(names: str | list[str], format_: DataFormat = "auto", field: str = "text") -> bytes:
    with open_source(names, format_, field) as source:
        described = source.describe()
        text = source.read(0, len(source)).tobytes()
    assert described["sha256"] == hashlib.sha256(text).hexdigest()
    assert described["bytes"] == len(text)
    return text


def error_line(name: str, format_: DataFormat = "auto", field: str = "text") -> str:
    """Return the line, without the setting and the folder in front."""
    with pytest.raises(UserError) as caught:
        open_source(name, format_, field)
    line = str(caught.value)
    assert "\n" not in line
    prefix = f"data.path={Path(name).absolute()}"
    assert line.startswith(prefix)
    return line.removeprefix(prefix).removeprefix(": ")


# ------------------------------------------------------------------ compressed files


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_compressed_text_is_the_text(folder: Path, compression: str) -> None:
    compress = COMPRESS[compression]
    assert read(write(f"a.txt.{compression}", compress(TEXT))) == TEXT
    assert read(write("no-suffix", compress(TEXT))) == TEXT
    assert read(write(f"b.jsonl.{compression}", compress(LINES))) == JOINED


@pytest.mark.parametrize("compression", COMPRESS)
def test_every_member_of_a_compressed_file_is_read(folder: Path, compression: str) -> None:
    compress = COMPRESS[compression]
    parts = [TEXT[:100], b"", TEXT[100:1000], TEXT[1000:]]
    members = b"".join(map(compress, parts))
    assert read(write(f"a.{compression}", members)) == TEXT
    if compression in ("gz", "xz"):
        assert read(write(f"padded.{compression}", members + bytes(512))) == TEXT


def test_zstd_frames_to_skip_and_many_small_ones(folder: Path) -> None:
    skipped = b"\x5e\x2a\x4d\x18\x04\x00\x00\x00abcd"
    frames = [zst(TEXT[start : start + 50]) for start in range(0, len(TEXT), 50)]
    assert read(write("a.zst", skipped + skipped.join(frames))) == TEXT


def test_zstd_with_the_window_of_large_dumps(folder: Path) -> None:
    long = zstandard.ZstdCompressionParameters.from_level(1, window_log=31, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=long).compressobj()
    assert read(write("a.zst", compressor.compress(TEXT) + compressor.flush())) == TEXT


@pytest.mark.parametrize("compression", COMPRESS)
def test_what_expands_a_thousandfold_comes_in_bounded_chunks(
    folder: Path, compression: str
) -> None:
    from elman.data.streams import decoded_chunks

    size = 40_000_000
    name = write(f"a.{compression}", COMPRESS[compression](bytes(size)))
    lengths = [len(chunk.data) for chunk in decoded_chunks(name, compression, "")]
    assert sum(lengths) == size
    limit = 40_000_000 if compression == "zst" else 4 * 2**20
    assert max(lengths) <= limit


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_error_line_of_a_compressed_file_that_is_cut_off(
    folder: Path, compression: str, cut: int
) -> None:
    data = COMPRESS[compression](TEXT)
    assert error_line(write(f"a.{compression}", data[:-cut])) == (
        f"cannot be read as {compression}: it ends too early; download or compress it again"
    )


@pytest.mark.parametrize("compression", COMPRESS)
def test_error_line_of_a_damaged_compressed_file(folder: Path, compression: str) -> None:
    checked = zstandard.ZstdCompressor(write_checksum=True).compress
    data = bytearray((COMPRESS | {"zst": checked})[compression](TEXT))
    data[len(data) // 2] ^= 0xFF
    line = error_line(write(f"a.{compression}", bytes(data)))
    assert line.startswith(f"cannot be read as {compression}: it is damaged (")
    assert line.endswith("; download or compress it again")


@pytest.mark.parametrize("compression", COMPRESS)
def test_error_line_of_something_else_behind_the_last_member(
    folder: Path, compression: str
) -> None:
    data = COMPRESS[compression](TEXT) + b"something else"
    assert "it is damaged" in error_line(write(f"a.{compression}", data))


def test_error_line_of_a_name_that_its_bytes_belie(folder: Path) -> None:
    assert error_line(write("a.zst", TEXT)) == (
        "named .zst, but it does not begin like a zst file; download it again, or type "
        "data.format=raw to read its bytes as they are"
    )
    assert error_line(write("a.parquet", TEXT)) == (
        "not Parquet; it does not begin like Parquet; download it again"
    )


# ------------------------------------------------------------------ formats


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.parquet", "a.json", "a.json.gz"])
def test_raw_reads_the_bytes_as_they_are(folder: Path, name: str) -> None:
    content = COMPRESS.get(name.rsplit(".", 1)[-1], bytes)(LINES)
    assert read(write(name, content), "raw") == content


def test_text_decompresses_and_takes_nothing_apart(folder: Path) -> None:
    assert read(write("a.jsonl.zst", zst(LINES)), "text") == LINES
    assert read(write("b.jsonl", LINES), "text") == LINES


def test_jsonl_reads_lines_of_any_name(folder: Path) -> None:
    assert read(write("a.txt", LINES), "jsonl") == JOINED


def test_json_of_several_objects_is_lines(folder: Path) -> None:
    assert read(write("many.json", LINES)) == JOINED
    assert read(write("many.json.gz", gzip.compress(LINES))) == JOINED
    long = json.dumps({"text": "x" * 100_000}).encode()
    assert (
        read(write("long.json", long + b"\n" + long)) == b"x" * 100_000 + b"\x1e" + b"x" * 100_000
    )
    for number, single in enumerate([b'{"text": "a"}\n', b'{\n"text": "a"}']):
        assert read(write(f"{number}.json", single)) == b"a"
    assert read(write("indented.json", b'{\n"text": "a"\n}\n{\n"text": "b"\n}')) == b"a\x1eb"


ARRAY = json.dumps([{"id": "number", "text": text} for text in DOCUMENTS], indent=1).encode()
ARRAY = ARRAY.replace(b'"number"', b"1" * 5000)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.jsonl"])
def test_a_json_array_is_its_documents(folder: Path, name: str) -> None:
    content = ARRAY if not name.endswith("gz") else gzip.compress(ARRAY)
    assert read(write(name, content)) == JOINED
    assert read(write("marked.json", b"\xef\xbb\xbf" + ARRAY)) == JOINED


def test_a_json_array_of_texts_needs_no_field(folder: Path) -> None:
    assert read(write("a.json", json.dumps(DOCUMENTS).encode())) == JOINED
    assert read(write("b.txt", b' [ {"t": {"x": "a"}} ] '), "json", "t.x") == b"a"


def test_a_json_array_is_read_in_parts_of_any_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write("a.json", ARRAY)
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(streams, "_LIMIT", size)
        monkeypatch.setenv("ELMAN_CACHE", f"cache-{size}")
        assert read(name) == JOINED


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'[{"text": "a"}, 5]', ", document 2: a number, but each document must be a JSON object"),
        (
            b'[\n{"text": "a"},\n{"t": 1}]',
            ", document 2: no field text; it has: t; type data.field=",
        ),
        (b'[{"text": "a"},\n{"text": "b"}', ", line 2: its array is cut off"),
        (b'[{"text": "a"},\n{"text": "b', ", line 2: not JSON (Unterminated string starting at)"),
        (b'[{"text": "a"}\n{"text": "b"}]', ", line 2: ',' or ']' is missing"),
        (b'[{"text": "a"}]\n[]', ", line 2: something follows the end of its array"),
        (b'[{"text": "\xe9"}]', ", line 1: not UTF-8 from here on"),
        (b"[" * 100_000, ", line 1: nested too deeply"),
        (b'{"data": [{"text": "a"}]}', "one JSON object, not documents; save its texts as an arr"),
        (b"just text", "not JSON; save its texts as an array of objects or as JSON lines, or type"),
        (b"[]", "holds no text; name files that do"),
    ],
)
def test_error_line_of_json_that_is_no_array_of_documents(
    folder: Path, content: bytes, line: str
) -> None:
    assert error_line(write("a.json", content)).startswith(line)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_documents_that_are_all_empty_are_refused_with_the_fields_that_there_are(
    folder: Path, text: str
) -> None:
    record = {"text": text, "content": "real text"}
    lines = "\n".join(json.dumps(record) for _ in range(5000)).encode()
    said = "all 5,000 documents are empty in field text; other fields: content; type "
    assert error_line(write("a.jsonl", lines)) == said + "data.field=<name>"
    assert error_line(write("a.json", b"[" + lines.replace(b"\n", b",") + b"]")).startswith(said)
    name = write_table("a.parquet", {"text": [text] * 5000, "content": ["real text"] * 5000})
    assert error_line(name).startswith(said)
    assert read(write("b.jsonl", lines), field="content").startswith(b"real text\x1ereal")
    some = lines + b'\n{"text": "x"}'
    assert read(write("c.jsonl", some)).endswith(b"\x1ex")


def test_a_number_of_many_digits_in_another_field_does_not_matter(folder: Path) -> None:
    line = b'{"n": ' + b"1" * 5000 + b', "text": "a"}\n'
    assert read(write("a.jsonl", line)) == b"a"


def test_a_plain_file_stays_where_it_is(folder: Path, pack_cache: Path) -> None:
    with open_source(write("a.bin", bytes(range(256)))) as source:
        assert source.paths == (str(folder / "a.bin"),)
        assert "packed" not in source.describe()
    assert not pack_cache.exists()


def test_texts_follow_one_another_and_documents_are_joined(folder: Path) -> None:
    write("1.txt", b"plain")
    write("2.txt.gz", gzip.compress(b" and packed"))
    write("3.jsonl", b'{"text": "a"}\n{"text": "b"}')
    write("4.jsonl.gz", gzip.compress(b'{"text": "c"}'))
    write("5.txt", b"again")
    write("6.gz", gzip.compress(b""))
    write("7.txt", b"end")
    names = [path.name for path in folder.iterdir()]
    assert read(names) == b"plain and packed\x1ea\x1eb\x1ec\x1eagainend"


# ------------------------------------------------------------------ JSON lines

ODD_LINES: dict[str, tuple[bytes, bytes]] = {
    "CRLF": (b'{"text": "a"}\r\n{"text": "b"}\r\n', b"a\x1eb"),
    "blank lines": (b'\n  \n{"text": "a"}\n\n\t\n{"text": "b"}\n\n', b"a\x1eb"),
    "no newline at the end": (b'{"text": "a"}\n{"text": "b"}', b"a\x1eb"),
    "byte order mark": (b'\xef\xbb\xbf{"text": "a"}\n', b"a"),
    "escapes": (rb'{"text": "\u00e9 \ud83d\ude00 \n\t\u0000"}', "é 😀 \n\t\0".encode()),
    "half a surrogate pair": (rb'{"text": "a\ud83d"}', b"a\xed\xa0\xbd"),
    "other fields": (b'{"id": 3, "meta": {"x": [1]}, "text": "a"}', b"a"),
    "empty documents": (b'{"text": ""}\n{"text": "a"}\n{"text": ""}', b"\x1ea\x1e"),
}


@pytest.mark.parametrize(("lines", "text"), ODD_LINES.values(), ids=ODD_LINES)
def test_json_lines(folder: Path, lines: bytes, text: bytes) -> None:
    assert read(write("a.jsonl", lines)) == text


@pytest.mark.parametrize(("lines", "text"), ODD_LINES.values(), ids=ODD_LINES)
def test_lines_may_fall_on_any_border_of_chunks(
    folder: Path, lines: bytes, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elman.data import streams

    monkeypatch.setattr(streams, "_LIMIT", 3)
    assert read(write("a.jsonl", lines)) == text


def test_a_huge_line(folder: Path) -> None:
    document = "0123456789" * 3_000_000
    lines = json.dumps({"text": document}) + "\n" + json.dumps({"text": "b"})
    assert read(write("a.jsonl.gz", gzip.compress(lines.encode(), 1))) == (
        document.encode() + b"\x1eb"
    )


def test_a_dot_descends_where_no_key_has_that_name(folder: Path) -> None:
    line = {"text": "t", "meta": {"text": "inner", "a": {"b": "deep"}}, "meta.a": "dotted"}
    name = write("a.jsonl", json.dumps(line).encode())
    for field, text in {"meta.text": b"inner", "meta.a.b": b"deep", "meta.a": b"dotted"}.items():
        assert read(name, field=field) == text


BAD_LINES: dict[str, tuple[bytes, str]] = {
    "no object": (b"[1]", "a list, but each line must be a JSON object"),
    "a number": (b"3", "a number, but each line must be a JSON object"),
    "no JSON": (b"hello", "not JSON (Expecting value: line 1 column 1 (char 0))"),
    "cut off": (b'{"text": "a', "not JSON (Unterminated string starting at: line 1 column 10 "),
    "no UTF-8": (b'{"text": "\xff"}', "not UTF-8 (byte 11 of it)"),
    "nested too deeply": (b'{"text": ' + b"[" * 100_000, "nested too deeply"),
    "no field": (
        b'{"txt": "a", "b": 1}',
        "no field text (did you mean txt?); it has: txt, b; type data.field=<name>",
    ),
    "empty object": (b"{}", "no field text; it has: nothing; type data.field=<name>"),
    "null": (b'{"text": null}', "field text is null, not text"),
    "list": (b'{"text": ["a"]}', "field text is a list, not text"),
    "truth": (b'{"text": true}', "field text is true or false, not text"),
}


@pytest.mark.parametrize(("line", "words"), BAD_LINES.values(), ids=BAD_LINES)
def test_error_line_of_a_line_names_file_and_number(folder: Path, line: bytes, words: str) -> None:
    name = write("a.jsonl.gz", gzip.compress(b'{"text": "fine"}\n\n' + line + b"\n"))
    assert error_line(name).startswith(f", line 3: {words}")


def test_error_line_deep_in_a_large_file(folder: Path, pack_cache: Path) -> None:
    good = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    name = write("a.jsonl", good * 20_000 + b'{"text": 3}\n' + good)
    assert error_line(name) == ", line 20001: field text is a number, not text"
    assert {path.name for path in pack_cache.glob("*/*")} == {"lock"}


def test_error_line_of_a_file_without_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST_LINE", 10_000)
    name = write("a.jsonl", b'{"text": "' + b"x" * 20_000)
    assert error_line(name) == (
        ", line 1: longer than 1 GiB; a file of JSON lines has one object in each line"
    )


@pytest.mark.parametrize("empty", [b"\n \n", gzip.compress(b"")], ids=["lines", "gz"])
def test_error_line_of_files_that_hold_nothing(folder: Path, empty: bytes) -> None:
    assert error_line(write("a.jsonl", empty)) == "holds no text; name files that do"


# ------------------------------------------------------------------ Parquet

COLUMNS: dict[str, Any] = {
    "string": pa.array(DOCUMENTS),
    "large string": pa.array(DOCUMENTS, pa.large_string()),
    "dictionary": pa.array(DOCUMENTS).dictionary_encode(),
    "binary": pa.array([text.encode() for text in DOCUMENTS]),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_of_parquet_is_its_documents(folder: Path, column: Any) -> None:
    write_table("a.parquet", {"id": list(range(len(DOCUMENTS))), "text": column}, row_group_size=2)
    assert read("a.parquet") == JOINED


def test_a_parquet_file_of_many_rows_and_any_name(folder: Path) -> None:
    texts = [f"document {number}" for number in range(5000)]
    write_table("a", {"text": texts}, row_group_size=1700)
    assert read("a") == "\x1e".join(texts).encode()


def test_a_dot_descends_into_a_struct(folder: Path) -> None:
    structs = [{"text": text, "n": 1} for text in DOCUMENTS]
    write_table("a.parquet", {"meta": structs, "a.b": DOCUMENTS})
    assert read("a.parquet", field="meta.text") == JOINED
    assert read("a.parquet", field="a.b") == JOINED


def test_error_lines_of_parquet(folder: Path) -> None:
    write_table("a.parquet", {"content": ["a"], "n": [1], "none": pa.array([None], pa.string())})
    assert error_line("a.parquet") == (
        "no field text (did you mean content?); it has: content, n, none; type data.field=<name>"
    )
    assert error_line("a.parquet", field="n") == "column n holds int64, not text"
    assert error_line("a.parquet", field="n.x") == (
        "no field n.x (did you mean n?); it has: content, n, none; type data.field=<name>"
    )
    assert error_line("a.parquet", field="none") == ", row 1: column none is null, not text"
    assert error_line("a.parquet", "text").startswith("Parquet, not text; drop data.format, or ")
    data = Path("a.parquet").read_bytes()
    assert "it ends too early" in error_line(write("cut.parquet", data[:-3]))
    damaged = data[:4] + bytes(len(data) - 12) + data[-8:]
    line = error_line(write("bad.parquet", damaged))
    assert line.startswith("cannot be read as Parquet: it is damaged (")
    inside = error_line(write("a.parquet.gz", gzip.compress(data)))
    assert inside.startswith("Parquet inside gz; unpack it, or type data.format=raw")


def test_error_line_without_pyarrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    assert util.find_spec("pyarrow") is not None
    write_table("a.parquet", {"text": ["a"]})
    assert error_line("a.parquet") == (
        "reading Parquet needs pyarrow; type: pip install 'elman[parquet]'"
    )
    assert error_line(write("a.arrow", arrow(stream=True))) == (
        "reading Arrow needs pyarrow; type: pip install 'elman[parquet]'"
    )


# ------------------------------------------------------------------ what is not read


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as zipped:
            zipped.writestr("a.txt", "text")
    else:
        with tarfile.open(fileobj=out, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("a.txt"))
    return out.getvalue()


def arrow(stream: bool, columns: dict[str, Any] | None = None) -> bytes:
    out = io.BytesIO()
    table = pa.table(columns or {"text": ["a"]})
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_files_and_streams_are_their_documents(folder: Path, stream: bool) -> None:
    table = {"meta": [{"text": text} for text in DOCUMENTS], "text": DOCUMENTS}
    content = arrow(stream, table)
    assert read(write("a.arrow", content)) == JOINED
    assert read(write("b", content), "arrow", "meta.text") == JOINED
    assert error_line("a.arrow", field="txt").startswith("no field txt (did you mean text?); it h")
    assert error_line(write("cut.arrow", content[:-9])).startswith(
        "cannot be read as Arrow: it is damaged ("
    )
    assert error_line("a.arrow", "text").startswith("Arrow, not text; drop data.format")
    assert error_line(write("c.arrow", TEXT)) == (
        "not Arrow; it does not begin like Arrow; download it again"
    )


def array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(3))
    return out.getvalue()


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "zip": (archive("zip"), "a zip archive; unpack it"),
    "tar": (archive("tar"), "a tar archive; unpack it"),
    "tar.gz": (gzip.compress(archive("tar")), "a tar archive inside gz; unpack it"),
    "twice": (zst(gzip.compress(b"a")), "gz inside zst; unpack it once"),
    "7z": (b"7z\xbc\xaf\x27\x1c\x00\x04", "a 7z archive; unpack it"),
    "lz4": (b"\x04\x22\x4d\x18\x64\x40\xa7", "an lz4 file; unpack it, or save it as .zst or .gz"),
    "UTF-16": ("text".encode("utf-16"), "text in UTF-16; convert it: iconv -f UTF-16"),
    "UTF-32": ("text".encode("utf-32"), "text in UTF-32; convert it: iconv -f UTF-32"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0\0", "an HDF5 file; save its text"),
    "npy": (array(), "a NumPy array; save its text"),
    "pickle": (pickle.dumps({"a": 1}), "a Python pickle; save its text"),
    "old pickle": (pickle.dumps(["a"], protocol=2), "a Python pickle; save its text"),
    "pdf": (b"%PDF-1.7\n", "a PDF document; save its text"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0", "a picture; name a file that holds text"),
    "jpeg": (b"\xff\xd8\xff\xe0", "a picture; name a file that holds text"),
    "program": (b"\x7fELF\x02\x01", "a compiled program; name a file that holds text"),
    "safetensors": (b"\x10\0\0\0\0\0\0\0" + b'{"a": 3}        ', "a file of weights; name a file"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_error_line_of_what_is_not_read_whatever_its_name(
    folder: Path, content: bytes, words: str
) -> None:
    name = write("a.txt", content)
    line = error_line(name)
    assert line.startswith(words)
    assert line.endswith(", or type data.format=raw to read its bytes as they are")
    assert read(name, "raw") == content
    assert error_line(name, "text") == line


def test_texts_that_begin_almost_like_something_else_are_texts(folder: Path) -> None:
    texts = [b"PK is a name", b"BZh1 is no bzip2", b"BMW", b"MZ" + b"x" * 70, b"ORCs", b"ID3 tags"]
    texts += [b"\x80\x02 and no stop", b"\xffa\xfe\0", b"Obj = 3", b"RIFF on a theme"]
    for number, text in enumerate(texts):
        assert read(write(f"{number}.txt", text)) == text


def test_error_lines_name_the_setting_of_the_mode(folder: Path) -> None:
    name = write("a.zip", archive("zip"))
    with pytest.raises(UserError, match=r"^eval\.path=.*or type eval\.format=raw to read"):
        open_source(name, setting="eval.path")
    name = write("a.jsonl", b"{}")
    with pytest.raises(UserError, match=r"^eval\.path=.*; type eval\.field=<name>"):
        open_source(name, setting="eval.path")
