"""The default corpus: the same text every time, built once, by however many processes."""

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from elman.base.errors import UserError
from elman.data.corpus import default_corpus

PRINT_CORPUS = "from elman.data.corpus import default_corpus; print(default_corpus(print))"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ELMAN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "elman"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of three files, with all that has to be left out."""
    root = tmp_path / "library"
    kept = {"a.py": b"A", "json/b.py": b"BB", "os.py": b"CCC"}
    left_out = ["test/t.py", "json/tests/t.py", "idlelib/i.py", "site-packages/s.py"]
    left_out += ["dist-packages/d.py", "__pycache__/c.py", "notes.txt"]
    for name, content in {**kept, **dict.fromkeys(left_out, b"not this")}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(root)})
    return root


def test_text_is_the_sources_in_order_of_their_hashed_paths(cache: Path, library: Path) -> None:
    contents = {b"a.py": b"A", b"json/b.py": b"BB", b"os.py": b"CCC"}
    order = sorted(contents, key=lambda name: hashlib.sha256(name).hexdigest())
    text = default_corpus(lambda line: None).read_bytes()
    assert text == b"\x1e".join(contents[name] for name in order)


def test_built_once_and_announced_once(cache: Path, library: Path) -> None:
    lines: list[str] = []
    path = default_corpus(lines.append)
    assert lines == [
        f"building the default data, the Python standard library's text: 3 files, 0.0 kB -> {path}"
    ]
    inode = path.stat().st_ino
    assert default_corpus(lines.append) == path
    assert path.stat().st_ino == inode
    assert len(lines) == 1
    assert list(cache.iterdir()) == [path]


@pytest.mark.parametrize("damage", [b"", b"A"])
def test_a_damaged_cache_file_is_built_again(cache: Path, library: Path, damage: bytes) -> None:
    path = default_corpus(lambda line: None)
    text = path.read_bytes()
    path.write_bytes(damage)
    assert default_corpus(lambda line: None).read_bytes() == text


def test_another_library_is_another_file(cache: Path, library: Path) -> None:
    first = default_corpus(lambda line: None)
    (library / "a.py").write_bytes(b"longer")
    assert default_corpus(lambda line: None) != first


def test_a_failed_build_leaves_nothing_behind(
    cache: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device", "disk")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="No space left on device"):
        default_corpus(lambda line: None)
    assert list(cache.iterdir()) == []


def test_a_build_that_ends_inside_another_does_not_disturb_it(
    cache: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    inner: list[Path] = []

    def build_again_first(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        inner.append(default_corpus(lambda line: None))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", build_again_first)
    path = default_corpus(lambda line: None)
    assert inner == [path]
    assert sorted(path.read_bytes().split(b"\x1e")) == [b"A", b"BB", b"CCC"]
    assert list(cache.iterdir()) == [path]


def test_several_processes_build_the_real_one_at_once(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "ELMAN_CACHE": ""}
    command = [sys.executable, "-c", PRINT_CORPUS]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=120)[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0, 0]
    assert len({answer[-1] for answer in answers}) == 1
    path = Path(answers[0][-1])
    assert list(path.parent.iterdir()) == [path]
    version = ".".join(map(str, sys.version_info[:3]))
    assert path.name.startswith(f"stdlib-{version}")
    text = path.read_bytes()
    assert len(text) > 5_000_000
    assert text.count(b"\x1e") > 400
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.splitlines() == [str(path)]


def test_default_place_is_the_home_folders_cache(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("ELMAN_CACHE", "")
    assert default_corpus(lambda line: None).parent == tmp_path / ".cache" / "elman"
    monkeypatch.setenv("ELMAN_CACHE", "~/mine")
    assert default_corpus(lambda line: None).parent == tmp_path / "mine"


def test_error_line_of_a_python_without_sources(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "python.zip"
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(nowhere)})
    with pytest.raises(UserError) as caught:
        default_corpus(lambda line: None)
    assert str(caught.value) == (
        f"data.path: this Python has no source text of its standard library in {nowhere}; "
        f"name a text of your own, as in data.path=FILE"
    )


def test_error_line_of_a_cache_that_cannot_be_written(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"in the way")
    monkeypatch.setenv("ELMAN_CACHE", str(blocked / "elman"))
    with pytest.raises(UserError) as caught:
        default_corpus(lambda line: None)
    assert str(caught.value) == (
        f"data.path: cannot build the default data (Not a directory: {blocked}/elman); set "
        f"ELMAN_CACHE to a writable folder, or name a text of your own: data.path=FILE"
    )
