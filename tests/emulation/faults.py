"""Faults planted in the kernels' sources, by mechanism, and how the emulation notices one.

Each engine has a few faults of each mechanism: the first of them stands for the mechanism, and
slow runs plant the others. A fault runs in a process of its own: what the emulator does not stop
may crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.build import digest
from elman.kernels.sources import included_sources, source_folder
from tests.emulation import emulator

INDEX = "wrong index"
BARRIER = "missing barrier"
COUNT = "wrong count of what an exchange waits for"
BUFFER = "stale or overlapping buffer"
SUM = "wrong sum"
TAIL = "wrong end"
RESET = "ignored reset"
ORDER = "wrong order of values"
SETTING = "ignored setting"

Table = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By mechanism and what is wrong: old text, new text, and what the engine says beside them."""


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Args:
        what: In words.
        mechanism: Which of those above.
        file: The source, under csrc.
        text: The whole source with the fault.
        case: What shows it, in the engine's own words.
        first: Whether it stands for its mechanism.
    """

    what: str
    mechanism: str
    file: str
    text: str
    case: tuple[str, ...] = ()
    first: bool = False

    def repaired(self) -> Fault:
        """Return the same case over the sources as they are."""
        return replace(self, what="", text=(source_folder() / self.file).read_text())


class Engine(NamedTuple):
    """The faults of an engine, and what says how one was noticed: see :func:`noticed`."""

    faults: list[Fault]
    outcome: Callable[[Fault], str]


def faults_of(table: Table, *files: str) -> list[Fault]:
    """Return the faults of a table, in whichever source has the old text.

    Args:
        table: Old text, new text and what shows the fault, by mechanism and what is wrong.
        files: The sources, under csrc.
    """
    texts = {file: (source_folder() / file).read_text() for file in files}
    found = []
    for mechanism, edits in table.items():
        for number, (what, (old, new, *case)) in enumerate(edits.items()):
            ((file, whole),) = [one for one in texts.items() if _pattern(old).search(one[1])]
            fault = Fault(what, mechanism, file, edited(whole, old, new), tuple(case), number == 0)
            found.append(fault)
    return found


def faults_in(folder: str, table: Table) -> list[Fault]:
    """Return the faults of a table that names its sources, without ``.cuh``, before the texts."""
    return [
        replace(fault, first=number == 0)
        for mechanism, edits in table.items()
        for number, (what, (stem, *texts)) in enumerate(edits.items())
        for fault in faults_of({mechanism: {what: tuple(texts)}}, f"{folder}/{stem}.cuh")
    ]


def left_out(pattern: re.Pattern[str], file: str) -> Iterator[tuple[str, str]]:
    """Yield each match of a pattern in a source, and the source without it."""
    whole = (source_folder() / file).read_text()
    for number, match in enumerate(pattern.finditer(whole), 1):
        what = f"{Path(file).stem}: {match[1]} no. {number} left out"
        yield what, whole[: match.start()] + ";" + whole[match.end() :]


def _pattern(old: str) -> re.Pattern[str]:
    """Return what finds a text however its lines are indented."""
    return re.compile(r"\n\s*".join(re.escape(line.strip()) for line in old.strip().split("\n")))


def edited(source: str, old: str, new: str) -> str:
    """Return a source with one text, however its lines are indented, in the place of another."""
    text, count = _pattern(old).subn(lambda _: new, source, count=1)
    assert count, old
    return text


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[Path]:
    """Yield a copy of all sources with a fault."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "csrc")
        shutil.copytree(source_folder(), root)
        (root / fault.file).write_text(fault.text)
        yield root


def outcome(run: Callable[[Path, Fault], str], fault: Fault) -> str:
    """Return how a run over a copy of the sources with a fault ends, in a process of its own."""
    with planted(fault) as root:
        return in_process(run, root, fault)


def in_process(function: Callable[..., str], *arguments: Any) -> str:
    """Call a function in a forked process: it may crash or never end."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def call() -> None:
        faulthandler.disable()  # a crash is an outcome, not news
        send.send(function(*arguments))

    process = context.Process(target=call)
    process.start()
    send.close()
    said = "crash"
    # The end of the pipe without a word is a process that died.
    with contextlib.suppress(EOFError):
        said = receive.recv() if receive.poll(120) else "never ends"
    process.kill()
    process.join()
    return said


def library_over(text: str, root: Path) -> ctypes.CDLL:
    """Return the library of a text with the sources in ``root``."""
    sources = [path.relative_to(source_folder()) for path in included_sources(text)]
    if all((root / path).read_bytes() == (source_folder() / path).read_bytes() for path in sources):
        return emulator.loaded(text)
    library = root.parent / f"{digest(text.encode())}.so"
    if not library.exists():
        emulator.compile_unit(text, root, library)
    return ctypes.CDLL(str(library))


def verdict(same: Callable[[], bool]) -> str:
    """Return what an emulator or a compiler says of a comparison, or how it ends.

    Args:
        same: Runs an engine with a fault, and returns whether it computes what the whole one does.
    """
    try:
        return "-" if same() else "wrong numbers"
    except (emulator.FaultError, UserError) as fault:
        return str(fault)
    except AssertionError as refused:
        return refusal(refused)


def verdict_on_bits(tensors: Callable[[int, emulator.Library], list[Tensor]], root: Path) -> str:
    """Return the verdict on an engine with a fault, compared to the bit in two orders of threads.

    Args:
        tensors: Runs the engine in an order, as a library has it; returns what it computes.
        root: The sources with the fault.
    """
    emulator.poison(setattr)
    whole = tensors(1, functools.partial(library_over, root=source_folder()))

    def same() -> bool:
        library = functools.partial(library_over, root=root)
        runs = (zip(tensors(seed, library), whole, strict=True) for seed in (1, 2))
        return all(torch.equal(left, right) for run in runs for left, right in run)

    return verdict(same)


def refusal(refused: AssertionError) -> str:
    """Return what a compiler has against a fault.

    The sizes that Python and C++ both count are compared by the kernels themselves. With any other
    error the fault was never tested, see :func:`noticed`.
    """
    by_itself = re.search("static assertion failed.*", str(refused))
    return by_itself[0] if by_itself else f"does not compile: {str(refused)[:200]}"


def noticed(said: str) -> bool:
    """Return whether an outcome says that a fault was noticed."""
    return said != "-" and not said.startswith("does not compile")
