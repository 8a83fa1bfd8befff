"""What is said of an unexpected error: one line with its place in the code, and a whole traceback.

The place is that of the user's own code where there is some: a cell, a resolver or an entry point
of another package. Else it is the innermost frame of elman. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from elman.base.errors import first_line
from elman.base.typed_in import relative

_OURS = Path(__file__).resolve().parents[1]
_INSTALLED = ("site-packages", "dist-packages")


class _Frame(NamedTuple):
    """One line of a traceback."""

    file: str
    line: int
    function: str
    module: str


def place_of(error: BaseException) -> str:
    """Return file, line and function where an error came up; empty if it has no traceback."""
    if isinstance(error, SyntaxError) and error.filename and os.path.isabs(error.filename):
        return f"{relative(Path(error.filename))}, line {error.lineno}"
    chains = [list(_inside(one)) for one in _chain(error)]
    candidates = [frame for frames in chains for frame in reversed(frames) if _is_users(frame)]
    candidates += [frame for frames in chains for frame in reversed(frames) if _is_ours(frame)]
    candidates += [frame for frames in chains for frame in reversed(frames)]
    if not candidates:
        return ""
    frame = candidates[0]
    function = "" if frame.function.startswith("<") else f", in {frame.function}"
    return f"{relative(Path(frame.file))}, line {frame.line}{function}"


def in_users_code(error: BaseException) -> bool:
    """Whether an error came up in code of the user, or of a package that adds to elman."""
    return any(_is_users(frame) for one in _chain(error) for frame in _inside(one))


def error_line(error: BaseException) -> str:
    """Return type, message and place of an unexpected error, on one line."""
    place = place_of(error)
    message = (error.msg if isinstance(error, SyntaxError) else "") or first_line(error)
    said = f"{type(error).__name__}: {' '.join(message.split())}"
    return f"{said} ({place})" if place else said


def error_line_with_traceback(error: BaseException, log: Path | None = None) -> str:
    """Return the line about an unexpected error, and keep its traceback.

    Args:
        error: The error.
        log: The file that gets the traceback; without one, it goes to a file of its own.
    """
    return f"{error_line(error)}; {kept_traceback(error, log)}"


def kept_traceback(error: BaseException, log: Path | None = None) -> str:
    """Append a traceback to ``log`` or, where that is not possible, write a file of its own.

    Returns:
        Words that say where it is.
    """
    trace = "".join(traceback.format_exception(error))
    if log is not None:
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
            stream.write(trace)
            stream.flush()
            return f"whole traceback in {log}"
    with contextlib.suppress(OSError):
        descriptor, path = tempfile.mkstemp(prefix="elman-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(trace)
            stream.flush()
        return f"whole traceback in {path}"
    return "there is no room for its traceback"


@contextlib.contextmanager
def threads_told() -> Iterator[None]:
    """Let an error that ends a thread be one line too; Python prints its whole traceback."""
    before = threading.excepthook

    def say(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or issubclass(args.exc_type, SystemExit):
            return
        name = args.thread.name if args.thread is not None else "a thread"
        # Nothing else may fail here: this is called where nobody can catch it.
        with contextlib.suppress(OSError, ValueError):
            os.write(
                2, f"elman: {name} failed: {error_line_with_traceback(args.exc_value)}\n".encode()
            )

    threading.excepthook = say
    try:
        yield
    finally:
        threading.excepthook = before


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came from, the error first."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)


def _inside(error: BaseException) -> Iterator[_Frame]:
    """Yield the frames of an error from elman's first one on, outermost first.

    Frames outside it belong to whoever calls elman. torch.compile keeps the frames of the code that
    it was compiling apart.
    """
    frames = [
        _Frame(one.f_code.co_filename, line, one.f_code.co_name, str(one.f_globals.get("__name__")))
        for one, line in traceback.walk_tb(error.__traceback__)
    ]
    frames += [
        _Frame(one.filename, one.lineno or 0, one.name, "")
        for one in getattr(error, "real_stack", None) or ()
    ]
    first = next((n for n, frame in enumerate(frames) if _is_ours(frame)), 0)
    yield from frames[first:]


def _is_ours(frame: _Frame) -> bool:
    return _below(frame.file, _OURS) or frame.module.startswith("hydra_plugins.elman_")


def _is_users(frame: _Frame) -> bool:
    """Whether a frame is in code that is neither elman's, nor Python's, nor a library's."""
    if not os.path.isabs(frame.file) or _is_ours(frame):
        return False
    if any(part in _INSTALLED for part in Path(frame.file).parts):
        return frame.module.partition(".")[0] in _cell_packages()
    generated = f"{os.sep}torchinductor" in frame.file
    return not generated and not any(_below(frame.file, place) for place in _python())


@cache
def _cell_packages() -> frozenset[str]:
    """Return the installed packages that add cells to elman."""
    named = entry_points(group="elman.cells")
    return frozenset(one.value.partition(":")[0].partition(".")[0] for one in named)


@cache
def _python() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib")})


def _below(file: str, folder: Path) -> bool:
    try:
        return Path(os.path.realpath(file)).is_relative_to(folder)
    except (OSError, ValueError):
        return False
