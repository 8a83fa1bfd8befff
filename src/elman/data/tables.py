"""Reads documents from the columns of Parquet and Arrow files, in pieces of joined text.

Memory use is limited to a batch of rows and the pages that pyarrow holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, BinaryIO

from elman.base.errors import UserError, first_line
from elman.data.documents import Piece, no_field
from elman.data.sniffing import ARROW_FILE
from elman.sections.training import SEPARATOR

_ROWS = 1024
_BUFFER = 2**20
# A stream ends with the mark of a message, and the length zero of its description.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def refuse_without_pyarrow(where: str, kind: str) -> None:
    """Raise UserError with the install command if the reader of tables is missing."""
    if find_spec("pyarrow") is None:
        raise UserError(
            f"{where}: reading {kind} needs pyarrow; type: pip install 'elman[parquet]'"
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
    refuse_without_pyarrow(where, "Parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # With pre_buffer the first row would have to wait for the whole row group.
        with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as table:
            steps = _column_steps(pa, table.schema_arrow, field, where)
            rows, total = 0, max(1, table.metadata.num_rows)
            name = field if len(steps) > 1 else steps[0]
            for batch in table.iter_batches(batch_size=_ROWS, columns=[name]):
                if found := _column_bytes(pa, batch, steps, where, rows):
                    rows += len(found)
                    yield _piece(found, size * rows // total, table.schema_arrow.names)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(error, "Parquet", where) from None


def arrow_documents(path: str, field: str, where: str) -> Iterator[Piece]:
    """Yield the documents of one column of an Arrow file or stream, as ``save_to_disk`` writes.

    Args:
        path: The file.
        field: As :func:`parquet_documents`.
        where: The setting and the file, for error messages.

    Raises:
        UserError: as :func:`parquet_documents`.
    """
    refuse_without_pyarrow(where, "Arrow")
    import pyarrow as pa

    try:
        with open(path, "rb") as raw:
            rows = 0
            for batch in _arrow_batches(pa, raw):
                steps = _column_steps(pa, batch.schema, field, where)
                column = batch.select([steps[0]])
                for start in range(0, batch.num_rows, _ROWS):
                    found = _column_bytes(pa, column.slice(start, _ROWS), steps, where, rows)
                    rows += len(found)
                    yield _piece(found, raw.tell(), batch.schema.names)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(error, "Arrow", where) from None


def _arrow_batches(pa: Any, raw: BinaryIO) -> Iterator[Any]:
    """Yield the record batches of a file with random access, or of a stream."""
    import pyarrow.ipc as ipc

    whole = raw.read(len(ARROW_FILE)) == ARROW_FILE
    raw.seek(0)
    if not whole:
        with ipc.open_stream(raw) as stream:
            yield from stream
            _refuse_more(pa, raw)
        return
    with ipc.open_file(raw) as table:
        for index in range(table.num_record_batches):
            yield table.get_batch(index)


def _refuse_more(pa: Any, raw: BinaryIO) -> None:
    """Raise pyarrow's error if a stream ended without its last mark: it is cut off."""
    raw.seek(-len(_END_OF_STREAM), os.SEEK_END)
    if raw.read() != _END_OF_STREAM:
        raise pa.ArrowInvalid("it ends too early")


def _piece(found: list[bytes], consumed: int, fields: list[str]) -> Piece:
    blank = sum(not text.strip() for text in found)
    return Piece(SEPARATOR.join(found), len(found), consumed, 0, blank, tuple(fields))


def _damaged(error: Exception, kind: str, where: str) -> Exception:
    """Return the error for a file that pyarrow cannot read; a failure of the disk is itself."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return UserError(
        f"{where}: cannot be read as {kind}: it is damaged ({first_line(error)}); "
        f"download or write it again"
    )


def _column_steps(pa: Any, schema: Any, field: str, where: str) -> list[str]:
    """Return the path from the table to the column, checked against the schema."""
    steps = [field] if field in schema.names else field.split(".")
    kind: Any = pa.struct(list(schema))
    for step in steps:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            raise UserError(no_field(where, field, list(schema.names)))
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
