"""Finds the system's C++ compiler once, and checks it by compiling a small program.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from elman.base.cache import cached, put_file
from elman.kernels.target import Target, host_target

BASE_FLAGS = ("-std=c++17", "-fopenmp", "-fPIC", "-shared")
# Newest first; the plain names come before them.
_NUMBERED = (*(f"g++-{n}" for n in range(16, 9, -1)), *(f"clang++-{n}" for n in range(23, 11, -1)))
_CANDIDATES = ("g++", "clang++", "c++", *_NUMBERED)
# The command that installs a compiler with OpenMP, by package manager.
_INSTALL = {
    "apt-get": "sudo apt-get install g++",
    "dnf": "sudo dnf install gcc-c++",
    "zypper": "sudo zypper install gcc-c++",
    "pacman": "sudo pacman -S gcc",
    "apk": "sudo apk add g++",
    "brew": "brew install gcc",
}
_ANYWHERE = "conda install -c conda-forge gxx"
# Uses C++17, OpenMP's header and runtime, and vector types, as the engines do.
_PROBE = """\
#include <omp.h>
#include <type_traits>
typedef float Vector __attribute__((vector_size(16)));
template <class T> T twice(T x) {
    if constexpr (std::is_integral_v<T>) return 2 * x;
    else return x + x;
}
extern "C" int probe() {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 64; ++i) sum += twice(i);
    return sum + int(twice(Vector{})[0]) + omp_get_max_threads();
}
"""


@dataclass(frozen=True)
class Compiler:
    """A compiler that works.

    Args:
        command: The words of its command; the program's path comes first.
        kind: ``g++`` or ``clang``.
        version: First line of ``--version``.
        target_flags: The flags for this machine's CPU that it accepts.
    """

    command: tuple[str, ...]
    kind: Literal["g++", "clang"]
    version: str
    target_flags: tuple[str, ...]

    @property
    def path(self) -> str:
        """The command as a person types it."""
        return shlex.join(self.command)


def find_compiler() -> Compiler | None:
    """Return this machine's C++ compiler: ``$CXX`` if it is set, else the first that works.

    A compiler works if it compiles and links C++17 with OpenMP. The answer is remembered in the
    process, and on the disk until the compiler's file changes.
    """
    return _search(os.environ.get("CXX", ""), os.environ.get("PATH", ""))[0]


def compiler_problem() -> str | None:
    """Return why there is no compiler and the command that fixes it; None if there is one."""
    return _search(os.environ.get("CXX", ""), os.environ.get("PATH", ""))[1]


@cache
def _search(named: str, path: str) -> tuple[Compiler | None, str | None]:
    """Return the compiler or the problem; the answer depends only on the arguments."""
    if named.strip():
        return _named(named)
    failures = []
    for name in _CANDIDATES:
        if (program := shutil.which(name)) is None:
            continue
        found = _proved((program,))
        if isinstance(found, Compiler):
            return found, None
        failures.append(f"{program}: {found}")
    if failures:
        return None, f"no C++ compiler with OpenMP ({failures[0]}); {install_command()}"
    return None, f"no C++ compiler (g++ or clang++) in PATH; {install_command()}"


def _named(named: str) -> tuple[Compiler | None, str | None]:
    remedy = "unset CXX or name a C++ compiler with OpenMP, as in CXX=g++"
    try:
        words = shlex.split(named)
    except ValueError:
        return None, f"CXX={named}: cannot be read; {remedy}"
    program = shutil.which(words[0])
    if program is None:
        return None, f"CXX={named}: no such program; {remedy}"
    found = _proved((program, *words[1:]))
    if isinstance(found, Compiler):
        return found, None
    return None, f"CXX={named}: {found}; {remedy}"


def install_command() -> str:
    """Return the command that installs a compiler here."""
    managers = (command for name, command in _INSTALL.items() if shutil.which(name))
    return next(managers, _ANYWHERE)


def _proved(command: tuple[str, ...]) -> Compiler | str:
    """Return the compiler behind ``command`` if it works, else its first error line."""
    target = host_target()
    record = cached("kernels", f"compilers/{_identity(command, target)}.json")
    if (known := _recalled(record)) is not None:
        return known
    complaint = ""
    for flags in target.flags:
        complaint = _probe(command, flags)
        if not complaint:
            found = Compiler(command, *_version(command), flags)
            _remember(record, found)
            return found
    return complaint


def _identity(command: tuple[str, ...], target: Target) -> str:
    """Return a hash of the program's file as it is now and of all that the check depends on."""
    parts: list[object] = [command, target, _PROBE, BASE_FLAGS]
    for word in command:
        with contextlib.suppress(OSError):
            about = os.stat(shutil.which(word) or word)
            parts.append((about.st_size, about.st_mtime_ns, about.st_ino))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _recalled(record: Path) -> Compiler | None:
    try:
        known = json.loads(record.read_text())
        return Compiler(
            tuple(known["command"]), known["kind"], known["version"], tuple(known["target_flags"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(record: Path, found: Compiler) -> None:
    """Save the result of the check; if that fails, the next process checks again."""
    with contextlib.suppress(OSError):
        put_file(record, json.dumps(asdict(found)))


def _probe(command: tuple[str, ...], flags: tuple[str, ...]) -> str:
    """Compile and link the probe; return an empty text, or the first error line."""
    try:
        with _scratch() as folder:
            source = folder / "probe.cpp"
            source.write_text(_PROBE)
            output = str(folder / "probe.so")
            done = run_compiler([*command, *BASE_FLAGS, *flags, str(source), "-o", output], folder)
    except OSError as error:
        return f"cannot write the files that test it: {error}"
    return "" if done.returncode == 0 else first_error(done.stderr)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="elman-probe-") as folder:
        yield Path(folder)


def _version(command: tuple[str, ...]) -> tuple[Literal["g++", "clang"], str]:
    with _scratch() as folder:
        printed = run_compiler([*command, "--version"], folder).stdout
    first = next(iter(printed.splitlines()), "unknown")
    return ("clang" if "clang" in printed.lower() else "g++"), first


def run_compiler(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler in ``folder``, with its own scratch files there and its messages in English.

    If the program cannot be started, this is a failed compilation with the system's reason as its
    error text.
    """
    try:
        # Signals interrupt the main thread alone, so not what lies between a start and its note.
        with ThreadPoolExecutor(1) as starting:
            process = starting.submit(_start, arguments, folder).result()
        return _finish(process)
    except OSError as error:
        return subprocess.CompletedProcess(arguments, 127, "", str(error.strerror or error))
    except BaseException:
        _stop_compilers()
        raise


_starting = threading.Lock()
_running: set[int] = set()
_refusing = threading.Event()


def _start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    with _starting:
        if _refusing.is_set():
            raise KeyboardInterrupt
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env=os.environ | {"LC_ALL": "C", "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Its own process group: the compiler's children must not outlive an interruption.
            process_group=0,
        )
        _running.add(process.pid)
    return process


def _finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    with process:
        try:
            output, complaint = process.communicate()
        except BaseException:
            _stop_compilers()  # or leaving this context would wait for it
            raise
        finally:
            stopped = process.pid not in _running
            _running.discard(process.pid)
    if stopped:
        raise KeyboardInterrupt  # Python raises it only in the main thread
    return subprocess.CompletedProcess(process.args, process.returncode, output, complaint)


def _stop_compilers() -> None:
    """Kill every compiler that a thread of this process waits for, and its children."""
    with _starting:  # what just starts is noted first
        while _running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(_running.pop(), signal.SIGKILL)


@contextlib.contextmanager
def no_compilers() -> Iterator[None]:
    """Kill every compiler, and let no thread start another inside this context.

    A thread that waited for a killed one would otherwise compile the same kernel itself.
    """
    _refusing.set()
    try:
        _stop_compilers()
        yield
    finally:
        _refusing.clear()


MISMATCH = "mend one of the two"
"""Words that end the message of an assertion that compares Python with C++."""
_MISMATCH = re.compile(rf'static.?assert[^\n]*?(?:: |")([^"\n:]+: [^"\n]*{MISMATCH})')


def first_error(complaint: str) -> str:
    """Return the most useful line of a compiler's output, without the text around it."""
    # A mismatch of two numbers causes many errors; the one that names them is the most useful.
    if found := _MISMATCH.search(complaint):
        return found[1]
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    errors = (line for line in lines if "error" in line.lower() or "cannot find" in line)
    return next(errors, lines[-1] if lines else "it fails without a message")
