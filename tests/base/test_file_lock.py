"""Locks on files of one process and another; tests/runs/test_without_locks.py has those without."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from elman.base.file_lock import FileLock, NoLocksError


def test_a_lock_is_held_by_one_until_it_gives_it_back(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.take("4711\n")
    assert first.take(), "again by the same"
    assert not second.take("4712\n")
    assert second.current_holder() == second.holder() == "pid 4711"
    first.drop()
    assert first.current_holder() is None
    assert second.take("1\n")
    assert first.holder() == "pid 1"


def test_those_who_share_a_lock_keep_out_who_wants_it_alone(tmp_path: Path) -> None:
    shared = [FileLock(tmp_path / "lock") for _ in range(2)]
    alone = FileLock(tmp_path / "lock")
    assert all(lock.take(shared=True) for lock in shared)
    assert not alone.take()
    shared[0].drop()
    assert not alone.take()
    shared[1].drop()
    assert alone.take()
    assert not shared[0].take(shared=True)


def test_who_waits_gets_the_lock_of_the_new_file_if_the_old_one_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second, third = (FileLock(path) for _ in range(3))
    assert first.take()
    waiter = threading.Thread(target=lambda: second.take(wait=True))
    waiter.start()
    path.unlink()
    first.drop()
    waiter.join(60)
    assert second.held
    assert path.exists()
    assert not third.take()


def test_without_locks_and_a_file_that_stands_for_one_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    lock = FileLock(tmp_path / "lock")
    with pytest.raises(NoLocksError, match="No locks available"):
        lock.take()
    assert not lock.held
    assert lock.current_holder() is None
