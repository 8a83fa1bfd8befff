"""Keeps a run alive when standard output or error can no longer be written.

The reader of a pipe dies (``| tee log`` at Ctrl-C), a terminal closes, or the disk under a log
fills. Once a run has started, text that cannot be written is dropped, so that the run goes on.
Before that, output is the command's only product, so the command ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from elman.base.errors import UserError


class _Lasting:
    """A text stream; its failures end the command, or are ignored after :func:`keep_going`."""

    def __init__(self, stream: TextIO, necessary: bool) -> None:
        self._stream, self._necessary = stream, necessary

    def write(self, text: str) -> int:
        """Write ``text`` if possible."""
        with self._survived():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write every line if possible."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush what was written if possible."""
        with self._survived():
            self._stream.flush()

    @contextlib.contextmanager
    def _survived(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if _keeps_going or not self._necessary:
                return
            if isinstance(error, BrokenPipeError):
                raise
            raise UserError(
                f"standard output cannot be written ({error.strerror}); redirect it elsewhere"
            ) from None
        except ValueError:
            if not self._stream.closed:
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_keeps_going = False
_wide = False


def keep_going() -> None:
    """From now on ignore failures of the output: the command has a run to finish."""
    global _keeps_going
    _keeps_going = True


def print_wide() -> None:
    """From now on tables have every column, on lines as long as they need (``--wide``)."""
    global _wide
    _wide = True


def is_wide() -> bool:
    """Return whether tables have every column at any width of the terminal."""
    return _wide


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Let standard output and error outlive their readers inside this context."""
    global _keeps_going, _wide
    _open_closed()
    before = sys.stdout, sys.stderr, _keeps_going, _wide
    out, err = _stream(1), _stream(2)
    sys.stdout, sys.stderr = cast(TextIO, _Lasting(out, True)), cast(TextIO, _Lasting(err, False))
    try:
        yield
    finally:
        sys.stdout, sys.stderr, _keeps_going, _wide = before
        for stream in (out, err):
            _settle(stream)


@contextlib.contextmanager
def hold_back_errors() -> Iterator[None]:
    """Print what native code writes to standard error behind this context; drop it at an error.

    A panic of Rust prints itself, and then comes as an exception, whose one line is enough. All
    threads of the process are held back, so this is for what takes little time.
    """
    _open_closed()
    before, held = os.dup(2), os.memfd_create("elman-errors")
    os.dup2(held, 2)
    try:
        yield
    except BaseException:
        os.truncate(held, 0)
        raise
    finally:
        os.dup2(before, 2)
        with contextlib.suppress(OSError):
            os.write(2, os.pread(held, os.fstat(held).st_size, 0))
        os.close(before)
        os.close(held)


def note(line: str, who: str = "elman: ") -> None:
    """Print a line of progress, or a warning, on standard error; drop it if that is not possible.

    Args:
        line: The line.
        who: What it begins with.
    """
    with contextlib.suppress(OSError):
        print(f"{who}{line}", file=sys.stderr, flush=True)


def _open_closed() -> None:
    """Open closed standard streams; otherwise a run's first file would become its output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def _stream(descriptor: int) -> TextIO:
    """Return the standard stream, set so that it can print any text in any encoding."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    if stream is None:  # it was closed when Python started
        return open(os.devnull, "w")
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None and stream.errors in ("strict", "surrogateescape"):
        with contextlib.suppress(OSError):  # closing flushes
            reconfigure(errors="backslashreplace")
    return stream


def _settle(stream: TextIO) -> None:
    """Leave nothing unwritten in a stream: Python would report it when it exits."""
    try:
        if not stream.closed:
            stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            stream.flush()
