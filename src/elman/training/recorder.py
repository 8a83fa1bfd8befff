"""Where a run's numbers go: metrics.jsonl, the dashboards, result.json."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.disk import Appender
from elman.base.errors import first_line
from elman.base.seals import sealed_tree
from elman.base.whole_file import put_json, rename
from elman.config.run_config import RunConfig
from elman.evaluation.result import RunResult
from elman.training.trackio_writer import Trackio
from elman.training.weights_and_biases import WeightsAndBiases
from elman.training.writer import Writer

# A record is some hundred bytes.
_LONGEST_LINE = 1 << 16

_log = logging.getLogger("elman.train")


class Recorder:
    """Appends records to a run's streams; nothing written is ever rewritten.

    Every record has ``kind`` and ``step``. Kinds: ``session`` (a start or a resumption), ``step``
    (one optimizer step), ``window`` (rates over some steps), ``validation``.
    """

    def __init__(
        self, folder: Path, config: RunConfig, say: Callable[[str], None] = _log.warning
    ) -> None:
        self._say = say
        # First, since it may refuse the run, whose folder then stays as it is.
        self._writers: list[Writer] = []
        if config.log.wandb:
            self._writers.append(WeightsAndBiases(folder, config, say))
        if config.log.trackio:
            self._writers.append(Trackio(folder, config, say))
        mend_last_line(folder / run_files.METRICS)
        self._stream = Appender(folder / run_files.METRICS)
        if config.log.tensorboard:
            self._writers.append(_TensorBoard(folder))
        self._shown = list(self._writers)

    def steps(self, records: list[dict[str, Any]]) -> None:
        """Append optimizer steps, each with step, loss, lr and grad_norm."""
        self._append([{"kind": "step", **record} for record in records])
        for record in records:
            values = {key: value for key, value in record.items() if key != "step"}
            self._show("step", values, record["step"])

    def fill(self, result: RunResult) -> None:
        """Set what the result says of the dashboards."""
        for writer in self._writers:
            writer.fill(result)

    def begin(self, step: int) -> None:
        """Let the dashboards forget what an earlier session showed of the steps after ``step``."""
        for writer in list(self._shown):
            self._guarded(writer, partial(writer.begin, step))

    def event(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Append one record of another kind; its numbers go to the dashboards too."""
        self._append([{"kind": kind, "step": step, **values}])
        self._show(kind, values, step)

    def close(self) -> None:
        """Write what waits for disk space, close every stream, and say what is lost."""
        lost = {run_files.METRICS: self._stream.close()}
        for writer in list(self._shown):
            lost[writer.name] = self._guarded(writer, writer.close) or 0
        named = [f"{size:,} bytes of {name}" for name, size in lost.items() if size]
        if named:
            self._say(f"warning: lost for lack of disk space: {' and '.join(named)}")

    def finish(self, *, failed: bool) -> None:
        """Wait a while for what the dashboards have not sent; call it when the result is written.

        Args:
            failed: Whether the run failed.
        """
        for writer in self._writers:
            writer.finish(failed=failed)
        self._writers.clear()

    def _append(self, records: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in records)
        self._stream.append(lines.encode())

    def _show(self, kind: str, values: Mapping[str, Any], step: int) -> None:
        """Show the numbers of one record, called as in the record."""
        numbers = {
            f"{kind}/{key}": value
            for key, value in values.items()
            if value is None or isinstance(value, int | float)
        }
        for writer in list(self._shown):
            self._guarded(writer, partial(writer.scalars, numbers, step))

    def _guarded(self, writer: Writer, act: Callable[[], int | None]) -> int | None:
        """Call a dashboard; one that fails is dropped with a warning and never ends a run."""
        try:
            return act()
        except Exception as error:
            self._shown.remove(writer)
            writer.failed(error)
            self._say(f"warning: {writer.name} gets no more numbers ({first_line(error)})")
            return None


class NoRecorder(Recorder):
    """The recorder of a rank that does not lead: rank 0 records the same numbers."""

    def __init__(self) -> None:
        """Open nothing."""
        self._writers = []

    def begin(self, step: int) -> None:
        """Do nothing."""

    def steps(self, records: list[dict[str, Any]]) -> None:
        """Do nothing."""

    def event(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _TensorBoard(Writer):
    """Writes TensorBoard's event file itself.

    torch's SummaryWriter uses a thread. A full disk ends that thread with a traceback, and then the
    caller waits forever.
    """

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        place = folder / run_files.TENSORBOARD
        place.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{_later(place):.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = Appender(place / name)
        self.file.append(_event(file_version="brain.Event:2"))

    def begin(self, step: int) -> None:
        """Let it drop what an earlier session, which was killed, wrote after ``step``."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        start = SessionLog(status=SessionLog.START)
        self.file.append(_event(step=step + 1, session_log=start))

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Write numbers of one step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if value is not None
        ]
        self.file.append(_event(step=step, summary=Summary(value=shown)))

    def close(self) -> int:
        """Close the file; return the number of bytes that found no room."""
        return self.file.close()


def _later(place: Path) -> float:
    """Return a time for the name of a new file of events: TensorBoard reads them in that order.

    It is later than that of every file there, also where the clock was set back.
    """
    names = [path.name.split(".") for path in place.glob("events.out.tfevents.*")]
    known = [float(".".join(parts[3:5])) for parts in names if "".join(parts[3:5]).isdecimal()]
    return max([time.time(), *(moment + 1e-6 for moment in known)])


def _event(**fields: Any) -> bytes:
    """Return one record of an event file: length, its checksum, the event, its checksum."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **fields).SerializeToString())
    return record.getvalue()


def mend_last_line(path: Path) -> None:
    """Cut off the last line of a file of records if a kill or a full disk left a part of it.

    The next record would else stand behind it on the same line, and be lost too.
    """
    if not path.is_file():
        return
    with path.open("r+b") as stream:
        end = stream.seek(0, os.SEEK_END)
        start = max(0, end - _LONGEST_LINE)
        stream.seek(start)
        tail = stream.read()
        if not tail or tail.endswith(b"\n"):
            return
        last = tail[tail.rfind(b"\n") + 1 :]
        try:
            json.loads(last)
        except ValueError:
            stream.truncate(end - len(last))
        else:
            stream.write(b"\n")


def write_result(folder: Path, result: RunResult) -> Path:
    """Write ``result.json`` atomically; an earlier session's result is kept under a number.

    It has its own digest, and that of ``metrics.jsonl``: a report finds what was changed later.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / run_files.RESULT
    if path.exists():
        rename(path, run_files.next_earlier_result(folder))
    put_json(path, sealed_tree(result.tree(), folder / run_files.METRICS))
    return path
