"""Reads documents from JSON lines and Parquet columns, in pieces of joined text.

Memory use is limited to a chunk and the longest document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

from elman.base.errors import UserError, did_you_mean, first_line
from elman.data.streams import Chunk
from elman.sections.training import SEPARATOR

LONGEST_LINE = 2**30
"""Most bytes in a document's line; the whole line must fit in memory."""
_PARQUET_ROWS = 1024
_PARQUET_BUFFER = 2**20
_SHOWN_NAMES = 8


class Piece(NamedTuple):
    """A piece of text: whole documents, joined, or bytes of a file without documents.

    Attributes:
        data: The bytes.
        documents: Number of documents; 0 if the file is one text.
        consumed: Bytes of the file that were read up to the end of this piece.
        halves: Number of documents with half of a surrogate pair, which UTF-8 does not allow.
    """

    data: bytes
    documents: int
    consumed: int
    halves: int = 0


def json_documents(chunks: Iterator[Chunk], field: str, where: str) -> Iterator[Piece]:
    """Yield the documents of JSON lines; blank lines hold no document, but count as lines.

    Args:
        chunks: The file's text.
        field: Key of the text in each line's object. If no key has that name, a dot descends into
            an inner object.
        where: The setting and the file, for error messages.

    Raises:
        UserError: a line is not a JSON object, or its field is missing or not text.
    """
    number, held, held_bytes = 1, [b""], 0
    consumed = 0
    for data, consumed in chunks:
        first, *rest = data.split(b"\n")
        held.append(first)
        held_bytes += len(first)
        if held_bytes > LONGEST_LINE:
            raise UserError(
                f"{where}, line {number}: longer than 1 GiB; a file of JSON lines has one object "
                f"in each line"
            )
        if rest:
            lines = [b"".join(held), *rest[:-1]]
            yield from _json_piece(lines, number, field, where, consumed)
            number += len(lines)
            held, held_bytes = [rest[-1]], len(rest[-1])
    yield from _json_piece([b"".join(held)], number, field, where, consumed)


def _json_piece(
    lines: list[bytes], first: int, field: str, where: str, consumed: int
) -> Iterator[Piece]:
    """Yield one piece with the documents of these lines; nothing if there are none."""
    found, halves = [], 0
    for number, line in enumerate(lines, first):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line and not line.isspace():
            text = _field_of(_parsed(line, f"{where}, line {number}"), field, where, number)
            try:
                found.append(text.encode())
            except UnicodeEncodeError:
                halves += 1
                found.append(text.encode(errors="surrogatepass"))
    if found:
        yield Piece(SEPARATOR.join(found), len(found), consumed, halves)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1} of it)") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({first_line(error)})") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: {_type_word(record)}, but each line must be a JSON object")
    return record


def _field_of(record: dict[str, Any], field: str, where: str, number: int) -> str:
    node: Any = record
    if field in record:
        node = record[field]
    else:
        for name in field.split("."):
            if not isinstance(node, dict) or name not in node:
                raise UserError(_no_field(f"{where}, line {number}", field, list(record)))
            node = node[name]
    if not isinstance(node, str):
        raise UserError(f"{where}, line {number}: field {field} is {_type_word(node)}, not text")
    return node


def _no_field(where: str, field: str, names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    setting = where.split(".", 1)[0] + ".field"
    return (
        f"{where}: no field {field}{did_you_mean(field, names)}; it has: {shown or 'nothing'}; "
        f"type {setting}=<name>"
    )


def _type_word(value: Any) -> str:
    if value is None:
        return "null"
    words = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return words.get(type(value), "an object" if isinstance(value, dict) else "text")


def refuse_without_pyarrow(where: str) -> None:
    """Raise UserError with the install command if the reader of Parquet is missing."""
    if find_spec("pyarrow") is None:
        raise UserError(
            f"{where}: reading Parquet needs pyarrow; type: pip install 'elman[parquet]'"
        )


def parquet_documents(path: str, size: int, field: str, where: str) -> Iterator[Piece]:
    """Yield the documents of one column, a thousand rows at a time.

    Args:
        path: The file.
        size: Its bytes, to compute how much of it was read.
        field: The column. If no column has that name, a dot descends into a struct.
        where: The setting and the file, for error messages.

    Raises:
        UserError: pyarrow is missing, the file is damaged, or the column is missing or not text.
    """
    refuse_without_pyarrow(where)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # With pre_buffer the first row would have to wait for the whole row group.
        with pq.ParquetFile(path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as table:
            steps = _column_steps(pa, table.schema_arrow, field, where)
            rows, total = 0, max(1, table.metadata.num_rows)
            name = field if len(steps) > 1 else steps[0]
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[name]):
                if found := _column_bytes(pa, batch, steps, where, rows):
                    rows += len(found)
                    done = size * rows // total
                    yield Piece(SEPARATOR.join(found), len(found), done)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(
            f"{where}: cannot be read as Parquet: it is damaged ({first_line(error)}); "
            f"download or write it again"
        ) from None


def _column_steps(pa: Any, schema: Any, field: str, where: str) -> list[str]:
    """Return the path from the table to the column, checked against the schema."""
    steps = [field] if field in schema.names else field.split(".")
    kind: Any = pa.struct(list(schema))
    for step in steps:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            raise UserError(_no_field(where, field, list(schema.names)))
        kind = kind.field(step).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
    if kind not in text:
        raise UserError(f"{where}: column {field} holds {kind}, not text")
    return steps


def _column_bytes(pa: Any, batch: Any, steps: list[str], where: str, before: int) -> list[bytes]:
    import pyarrow.compute as pc

    column = batch.column(0)
    for step in steps[1:]:
        column = pc.struct_field(column, step)
    if column.null_count:
        row = before + column.is_null().to_pylist().index(True) + 1
        raise UserError(f"{where}, row {row}: column {'.'.join(steps)} is null, not text")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    found: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    return found
