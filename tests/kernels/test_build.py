"""Compiling a kernel at first use: once, whole or not at all, and with errors of one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from elman.base.errors import UserError
from elman.kernels import build
from elman.kernels.build import load_library
from elman.kernels.cache import kernel_cache
from elman.kernels.compiler import _search, run_compiler
from elman.kernels.entry import _sweep as entry_sweep
from elman.kernels.target import Target
from tests.waiting import eventually, gone

pytestmark = pytest.mark.compiler

SOURCE = 'extern "C" int answer() { return 42; }\n'
LOADER = f"""
import sys
from elman.kernels.build import load_library
print(load_library({SOURCE!r}, "test").answer())
"""
# A compilation that ends when a file is there.
WAITING = 'case "$*" in *-O3*) while [ ! -e {} ]; do sleep 0.02; done;; esac'


@pytest.fixture(autouse=True)
def nothing_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process."""
    monkeypatch.setattr(build, "_loaded", {})


def start() -> subprocess.Popen[str]:
    """Start a process that loads the kernel; it inherits the test's environment."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", LOADER], text=True, env=os.environ, **pipes)


def entry(cache: Path) -> Path:
    """Return the folder of the one kernel in the cache."""
    (folder,) = cache.glob("test-*")
    return folder


def test_a_kernel_is_compiled_said_and_called(cache: Path, capsys) -> None:
    assert load_library(SOURCE, "test").answer() == 42
    said = capsys.readouterr().err
    assert said == "elman: compiling the test kernel for this CPU, once (2 to 5 s) ...\n"
    record = json.loads((entry(cache) / "build.json").read_text())
    assert record["seconds"] > 0
    assert (entry(cache) / "source.cpp").read_text() == SOURCE


def test_a_second_load_compiles_nothing(fake_compiler, capsys) -> None:
    fake = fake_compiler()
    first = load_library(SOURCE, "test")
    calls = fake.calls()
    assert load_library(SOURCE, "test") is first
    capsys.readouterr()
    other = start()
    assert other.communicate() == ("42\n", "")
    assert fake.calls() == calls


@pytest.mark.parametrize("what", ["source", "headers", "compiler", "target"])
def test_what_a_kernel_depends_on_is_in_its_name(
    fake_compiler, cache: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    fake_compiler()
    load_library(SOURCE, "test")
    source = SOURCE
    if what == "source":
        source = SOURCE.replace("42", "43")
    elif what == "headers":
        monkeypatch.setattr(build, "sources_hash", lambda text: "other")
    elif what == "target":
        monkeypatch.setattr(build, "host_target", lambda: Target("another CPU", ((),)))
    else:
        fake_compiler('case "$*" in *--version*) echo "g++ 99"; exit;; esac')
        _search.cache_clear()
    load_library(source, "test")
    assert len(list(cache.glob("test-*"))) == 2


def test_two_processes_at_once_compile_once(fake_compiler, cache: Path, tmp_path: Path) -> None:
    fake = fake_compiler(WAITING.format(tmp_path / "go"))
    processes = [start(), start()]
    said = sorted(process.stderr.readline() for process in processes)  # type: ignore[union-attr]
    (tmp_path / "go").touch()
    assert [process.communicate() for process in processes] == [("42\n", "")] * 2
    assert fake.calls("-O3") == 1
    assert said == [
        "elman: another process is compiling the test kernel: waiting for it ...\n",
        "elman: compiling the test kernel for this CPU, once (2 to 5 s) ...\n",
    ]


def test_threads_that_ask_for_one_kernel_compile_it_once(fake_compiler) -> None:
    fake = fake_compiler()
    sources = [SOURCE, SOURCE, SOURCE.replace("42", "43")]
    with ThreadPoolExecutor(3) as pool:
        libraries = list(pool.map(load_library, sources, ["test"] * 3))
    assert [library.answer() for library in libraries] == [42, 42, 43]
    assert libraries[0] is libraries[1]
    assert fake.calls("-O3") == 2


def test_a_killed_compilation_leaves_nothing_half_made(
    fake_compiler, cache: Path, tmp_path: Path
) -> None:
    fake_compiler(WAITING.format(tmp_path / "go"))
    killed = start()
    while not list(cache.glob("test-*/building-*/source.cpp")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (entry(cache) / "kernel.so").exists()
    # The same compiler by another name: the script that still runs must not change under it.
    fake_compiler(name="another-g++")
    assert load_library(SOURCE, "test").answer() == 42
    assert {path.name for path in entry(cache).iterdir()} == {
        "kernel.so",
        "source.cpp",
        "build.json",
        "lock",
    }
    (tmp_path / "go").touch()


@pytest.mark.parametrize(
    "name", ["SIGUSR1", "SIGINT", pytest.param("SIGHUP", marks=pytest.mark.slow)]
)
def test_a_signal_ends_compiler_and_litter(
    fake_compiler, cache: Path, tmp_path: Path, text_file: Path, name: str
) -> None:
    fake_compiler(f'case "$*" in *-O3*) sleep 1000 & echo $! > {tmp_path}/pid; wait;; esac')
    command = [sys.executable, "-m", "elman", f"data.path={text_file}", "train.device=cpu"]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.Signals[name])
    _, said = run.communicate(timeout=90)  # the compiler would take 1000 s
    told = "" if name == "SIGINT" else f" ({name})"
    line = f"elman: interrupted{told} before the first step: nothing to save"
    assert (run.returncode, said.splitlines()[-1]) == (130, line)
    assert not list(cache.glob("e88*"))
    assert not (tmp_path / "outputs").exists()
    compiler = int((tmp_path / "pid").read_text())
    eventually(lambda: gone(compiler))


def test_a_signal_while_a_compiler_starts_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_compiler(["sleep", "1000"], tmp_path)
    eventually(lambda: gone(started[0]))


def test_what_killed_processes_left_is_swept_and_what_runs_is_not(
    fake_compiler, cache: Path, tmp_path: Path
) -> None:
    fake_compiler(WAITING.format(tmp_path / "go"))
    running = start()
    while not list(cache.glob("test-*/building-*/source.cpp")):
        assert running.poll() is None
        time.sleep(0.01)
    left = cache / "killed-0123" / "building-abc"
    left.mkdir(parents=True)
    (left.parent / "lock").touch()
    beside, fresh = (cache / "parity" / f".e1.json.{number}.unfinished" for number in (17, 18))
    beside.parent.mkdir()
    beside.touch()
    fresh.touch()
    os.utime(beside, (0, 0))
    fake_compiler(name="another-g++")
    entry_sweep.cache_clear()
    assert load_library(SOURCE.replace("42", "43"), "other").answer() == 43
    assert not left.parent.exists()
    assert (beside.exists(), fresh.exists()) == (False, True)
    (tmp_path / "go").touch()
    assert running.communicate(timeout=180)[0] == "42\n"


def test_who_waits_for_a_process_that_gives_up_compiles(
    fake_compiler, cache: Path, tmp_path: Path
) -> None:
    fake_compiler(WAITING.format(tmp_path / "go"))
    first, second = start(), start()
    said = {process.stderr.readline().split()[1]: process for process in (first, second)}  # type: ignore[union-attr]
    said["compiling"].send_signal(signal.SIGINT)
    said["compiling"].communicate(timeout=180)
    (tmp_path / "go").touch()
    assert said["another"].communicate(timeout=180)[0] == "42\n"
    assert (entry(cache) / "build.json").exists()


@pytest.mark.parametrize("damage", ["truncated", "no-record", "bad-record", "no-library"])
def test_a_damaged_entry_is_compiled_again(cache: Path, capsys, damage: str) -> None:
    load_library(SOURCE, "test")
    library, record = entry(cache) / "kernel.so", entry(cache) / "build.json"
    if damage == "truncated":
        # A new file: this process has the old one mapped.
        half = library.read_bytes()[:4096]
        library.unlink()
        library.write_bytes(half)
    elif damage == "no-record":
        record.unlink()
    elif damage == "bad-record":
        record.write_text("[1")
    else:
        library.unlink()
    ended = start().communicate()
    assert ended[0] == "42\n"
    assert "compiling the test kernel" in ended[1]


def test_a_finished_kernel_needs_no_writable_cache(cache: Path, monkeypatch) -> None:
    load_library(SOURCE, "test")
    (entry(cache) / "lock").unlink()
    (entry(cache) / "lock").mkdir()  # taking the lock would fail
    monkeypatch.setattr(build, "_loaded", {})
    assert load_library(SOURCE, "test").answer() == 42


def test_a_refused_text_is_one_line_with_the_place_of_the_rest(cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_library("int f() { return undeclared; }", "test")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("compiling the test kernel failed: ")
    assert "'undeclared' was not declared" in text or "undeclared identifier" in text
    log = (entry(cache) / "build.log").read_text()
    assert str(log.splitlines()[0]).endswith("source.cpp -o kernel.so")
    assert not list(entry(cache).glob("building-*"))


def test_a_full_disk_is_one_line_with_what_to_set(fake_compiler, cache: Path) -> None:
    message = "echo 'fatal error: writing: No space left on device' >&2; exit 1"
    fake_compiler(f'case "$*" in *-O3*) {message};; esac')
    with pytest.raises(UserError) as caught:
        load_library(SOURCE, "test")
    assert str(caught.value) == (
        f"cannot write compiled kernels (No space left on device: {cache}); "
        "set ELMAN_CACHE to a folder that can be written and has space"
    )


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot write compiled kernels \(Not a directory: /.*set"):
        load_library(SOURCE, "test")


def test_a_library_that_cannot_be_loaded_is_one_line(cache: Path) -> None:
    source = 'extern "C" int missing(); extern "C" int f() { return missing(); }'
    with pytest.raises(UserError, match=r"cannot load the compiled kernel \(.*ELMAN_CACHE"):
        load_library(source, "test")


def test_no_compiler_is_one_line(cache: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"kernels.backend=cpu: no C\+\+ compiler .* install"):
        load_library(SOURCE, "test")


def test_libraries_share_no_static_data(cache: Path) -> None:
    """The loader would make one variable of both, and a kernel would run with the other's sizes."""
    text = """
    template <class T> int &count() { static int value = %d; return value; }
    extern "C" int next() { return ++count<int>(); }
    """
    one, two = load_library(text % 1, "one"), load_library(text % 100, "two")
    assert (one.next(), two.next(), one.next()) == (2, 101, 3)


def test_nan_and_denormals_survive(cache: Path) -> None:
    """What -ffast-math would break, in this library and in the whole process."""
    import ctypes
    import math

    source = 'extern "C" double f(double x) { return x != x ? 1.0 : x * 0.5; }'
    library = load_library(source, "test")
    library.f.restype, library.f.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.f(math.nan) == 1.0
    assert library.f(1e-310) == 5e-311
    assert 1e-310 * 0.5 == 5e-311


def test_the_cache_is_in_the_users_own_by_default(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("ELMAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernel_cache() == tmp_path / "elman" / "kernels"
    monkeypatch.setenv("ELMAN_CACHE", "~/mine")
    assert kernel_cache() == Path.home() / "mine"
