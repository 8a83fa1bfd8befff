"""Files that are written whole or not at all."""

from __future__ import annotations

import ast
import errno
import os
import re
import stat
from pathlib import Path

import pytest

import elman
from elman.base import whole_file as module
from elman.base.cache import put_file
from elman.base.whole_file import (
    RESULT_BYTES,
    keep_room,
    put_bytes,
    put_json,
    put_text,
    unfinished,
    whole_file,
)


def write_half(path: Path, several: bool) -> None:
    with whole_file(path, several=several) as scratch:
        scratch.write_text("half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("several", [False, True])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "config.yaml"
    put_text(path, "old", several=several)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        put_text(path, "new", several=several)
    with pytest.raises(KeyboardInterrupt):
        write_half(path, several)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_inside_another_one_does_not_disturb_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with whole_file(path, several=True) as first:
        first.write_text("first")
        put_text(path, "second", several=True)
        assert path.read_text() == "second"
    assert path.read_text() == "first"


def test_a_name_of_the_longest_length_can_be_written_by_several(tmp_path: Path) -> None:
    put_text(tmp_path / ("n" * 255), "text", several=True)
    assert (tmp_path / ("n" * 255)).read_text() == "text"


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    unfinished(path).write_text("x" * 1000)
    put_json(path, {"jobs": 2})
    assert path.read_text() == '{\n  "jobs": 2\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_the_room_of_a_result_is_taken_before_and_used_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    keep_room(path)
    kept = os.stat(unfinished(path))
    assert kept.st_blocks * 512 >= RESULT_BYTES
    opened: list[int] = []

    def look(descriptor: int, *how: str) -> object:
        opened.append(os.fstat(descriptor).st_blocks * 512)
        return open(descriptor, *how)

    monkeypatch.setattr(module.os, "fdopen", look)
    put_bytes(path, b"{}\n")
    assert opened[0] >= RESULT_BYTES
    assert path.read_text() == "{}\n"
    assert path.stat().st_ino == kept.st_ino
    assert list(tmp_path.iterdir()) == [path]


def test_nobody_else_may_write_a_file_of_the_cache_even_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    modes: list[int] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    try:
        put_file(tmp_path / "cache" / "record.json", "{}")
    finally:
        os.umask(before)
    modes.append((tmp_path / "cache" / "record.json").stat().st_mode)
    assert [stat.S_IMODE(mode) for mode in modes] == [0o644, 0o644]


def test_no_other_file_of_the_package_renames_by_a_method_of_a_path() -> None:
    """Ruff refuses os.rename and os.replace; the methods of a path have no such names."""
    for file in Path(elman.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        calls = re.finditer(r"\.(?:rename|replace)\(", text)
        for call in ast.walk(ast.parse(text)) if any(calls) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                # str.replace takes two arguments, and that of a date has keywords alone.
                path_replace = call.func.attr == "replace" and len(call.args) == 1
                renames = call.func.attr == "rename" or (path_replace and not call.keywords)
                assert not renames, f"{file}, line {call.lineno}: use elman.base.whole_file"
