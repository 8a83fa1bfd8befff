"""Compilations by children: what they leave is used, and a child that fails costs only time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from elman.kernels import forks
from elman.kernels.forks import ForkingExecutor
from tests.waiting import eventually, gone


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "cpu_share", lambda: 4)


def note(place: Path, name: str) -> str:
    """Stand for a compilation: make a file if it is not there; return who made it."""
    file = place / name
    if not file.exists():
        file.write_text(str(os.getpid()))
    return file.read_text()


def test_children_call_first_and_this_process_finds_what_they_leave(tmp_path: Path) -> None:
    with ForkingExecutor() as pool:
        made = [pool.submit(note, tmp_path, str(i)) for i in range(9)]
    makers = {future.result() for future in made}
    assert len(makers) == 9
    assert str(os.getpid()) not in makers
    assert all(gone(int(maker)) for maker in makers)


def test_on_one_core_there_are_no_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "cpu_share", lambda: 1)
    with ForkingExecutor() as pool:
        assert pool.submit(note, tmp_path, "a").result() == str(os.getpid())


def in_a_child() -> bool:
    return os.getpid() != HERE


HERE = os.getpid()


def fails() -> str:
    if in_a_child():
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("not a kernel")


def hangs() -> str:
    while in_a_child():
        time.sleep(1)
    return "made here"


def talks() -> str:
    os.write(1, b"compiled\n") if in_a_child() else None
    return "quiet"


def test_a_child_that_dies_leaves_the_error_to_this_process() -> None:
    with ForkingExecutor() as pool, pytest.raises(ValueError, match="not a kernel"):
        pool.submit(fails).result()


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE_SECONDS", 0.2)
    with ForkingExecutor() as pool:
        assert pool.submit(hangs).result() == "made here"


def test_a_process_that_cannot_fork_calls_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_room)
    with ForkingExecutor() as pool:
        assert pool.submit(hangs).result() == "made here"


def test_a_child_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with ForkingExecutor() as pool:
        assert pool.submit(talks).result() == "quiet"
    assert capfd.readouterr() == ("", "")


def test_who_gives_up_ends_the_children(tmp_path: Path) -> None:
    def waits(name: str) -> None:
        if in_a_child():
            (tmp_path / name).write_text(str(os.getpid()))
            time.sleep(1000)

    pool = ForkingExecutor()
    for name in ("a", "b", "c", "d", "never"):
        pool.submit(waits, name)
    eventually(lambda: all((tmp_path / name).exists() for name in "abcd"))
    eventually(lambda: all((tmp_path / name).read_text() for name in "abcd"))
    began = time.monotonic()
    pool.shutdown(wait=False, cancel_futures=True)
    eventually(lambda: all(gone(int((tmp_path / name).read_text())) for name in "abcd"))
    assert not (tmp_path / "never").exists()
    assert time.monotonic() - began < 60
