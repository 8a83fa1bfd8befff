"""What every dashboard of a run has in common; each shows the numbers of ``metrics.jsonl``.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from elman.base.errors import first_line
from elman.base.whole_file import put_text
from elman.evaluation.result import RunResult

FINISH_SECONDS = 60.0
"""Longest wait for what is still to be sent, after the result is written."""


class Writer:
    """Shows a run's numbers somewhere. No failure in it ends a run or costs its result.

    A number is called ``kind/field``, as in a record of ``metrics.jsonl``.
    """

    name: ClassVar[str]

    def begin(self, step: int) -> None:
        """Forget what an earlier session showed of the steps after ``step``, if it can."""

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Show numbers of one step."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Note that it has failed; it is not called again until :meth:`finish`."""

    def close(self) -> int:
        """Close what it writes; return the number of bytes that found no room."""
        return 0

    def fill(self, result: RunResult) -> None:
        """Set what the result says of it."""

    def finish(self, *, failed: bool) -> None:
        """Send what is still to be sent, now that the result is written.

        Args:
            failed: Whether the run failed.
        """


def done_in_time(act: Callable[[], object], name: str, late: Callable[[], None]) -> str | None:
    """Call something that may hang, for :data:`FINISH_SECONDS` at most; return what went wrong.

    Args:
        act: What to call.
        name: The name of its thread.
        late: Called if it has not returned in time.
    """
    problems: list[str] = []

    def call() -> None:
        try:
            act()
        except Exception as error:
            problems.append(first_line(error))

    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    try:
        thread.join(FINISH_SECONDS)
    finally:
        if thread.is_alive():
            problems.append(f"not everything was sent within {FINISH_SECONDS:.0f} s")
            late()
    return next(iter(problems), None)


def remembered(path: Path, key: str, new: Callable[[], str]) -> str:
    """Return what a file of a run keeps for its later sessions; it is made if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_text(encoding="utf-8"))[key])
    value = new()
    with contextlib.suppress(OSError):  # a full disk: the run goes on
        put_text(path, json.dumps({key: value}) + "\n")
    return value
