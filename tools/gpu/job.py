"""What a check of a GPU declares, and one run of it: what was requested, and its lines of JSON."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Check:
    """What a module of this folder declares as ``CHECK``.

    Args:
        parts: What it does, by name; each reports its results as rows.
        default: The parts that run where none is named; none: all of them.
        names: The names that ``--only`` chooses from; None: any that the parts understand.
        settings: What ``key=value`` changes; a value is read as the type of the one here.
        item: What runs for one name in a process of its own (``--item``).
        on_cpu: The parts that ``--device cpu`` tries out.
        gpus: GPUs that it needs.
        variables: Environment variables that must be there before a GPU is used.
        problem: Returns why nothing can be checked on a machine with a GPU, or None.
    """

    parts: Mapping[str, Callable[[Job], None]]
    default: tuple[str, ...] = ()
    names: Callable[[], Iterable[str]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    item: Callable[[Job, str], None] | None = None
    on_cpu: tuple[str, ...] = ()
    gpus: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    problem: Callable[[], str | None] | None = None


@dataclass
class Job:
    """One run of a check.

    Args:
        name: The check's name, which is its module's and its file's.
        out: Folder of its files.
        device: ``cuda`` or ``cpu``.
        only: The names to which it is restricted; none: all.
        quick: Whether the check leaves out what takes long.
        settings: Every setting of the check.
        part: The part that runs now.
    """

    name: str
    out: Path
    device: str = "cuda"
    only: tuple[str, ...] = ()
    quick: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    rows: list[Row] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Return the file of the results, a line of JSON for each."""
        return self.out / f"{self.name}.jsonl"

    @property
    def passed(self) -> bool:
        """Return whether no result says that it is wrong."""
        return all(row.get("passed", True) for row in self.rows)

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Return those of some names to which the run is restricted."""
        return [name for name in names if not self.only or name in self.only]

    def report(self, row: Mapping[str, Any]) -> None:
        """Print a result and append it to the file at once."""
        line = {"part": self.part, **row}
        if not self.rows:
            self.out.mkdir(parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
        self.rows.append(line)
        text = json.dumps(line)
        print(text, flush=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")

    def attempt(self, row: Mapping[str, Any], call: Callable[[], Row]) -> Row:
        """Report what a check returns, or its error, which is a result that is wrong."""
        return self._reported(row, call, {"passed": False})

    def measure(self, row: Mapping[str, Any], call: Callable[[], Row]) -> Row:
        """Report what a measurement returns, or its error, which is no wrong result."""
        return self._reported(row, call, {})

    def made(self, row: Mapping[str, Any], make: Callable[[], Value]) -> Value | None:
        """Return what a call makes to be timed; its error is reported, and is no wrong result."""
        try:
            return make()
        except Exception as error:
            self.report({**row, "error": _text(error)})
            return None

    def _reported(self, row: Mapping[str, Any], call: Callable[[], Row], verdict: Row) -> Row:
        began = time.perf_counter()
        result = {**row, **guarded(call, verdict)}
        self.report({**result, "s": round(time.perf_counter() - began, 2)})
        return result


def guarded(call: Callable[[], Row], verdict: Mapping[str, Any]) -> Row:
    """Return what a call returns, or its error with a verdict; the trace goes to stderr."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"error": _text(error), **verdict}


def _text(error: BaseException) -> str:
    """Return an error in a few words."""
    return f"{type(error).__name__}: {error}"[:500]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file of results; none where there is no file."""
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def failures(rows: Sequence[Row]) -> list[str]:
    """Return the results that are wrong, each in a few words."""
    return [
        ", ".join(str(value) for value in row.values() if isinstance(value, str))[:200]
        for row in rows
        if not row.get("passed", True)
    ]
