"""Files read as one text: what is found, what is read, and the line that each mistake gets."""

import glob
import hashlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.base.errors import UserError
from elman.data import files
from elman.data.files import ByteSource
from elman.data.matching import anchored
from tests.properties import examples

UNPRIVILEGED = 65534


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, also the home folder, with a few texts in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "none").mkdir()
    for name, content in {
        "b.txt": b"bbbb",
        "a.txt": b"aa",
        "deep/er/c.txt": b"ccc",
        "deep/readme.md": b"m",
        "deep/empty.txt": b"",
        "void/one.txt": b"",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def read_all(source: ByteSource) -> bytes:
    return source.read(0, len(source)).tobytes()


def error_line(names: str | list[str], setting: str = "data.path") -> str:
    with pytest.raises(UserError) as caught:
        ByteSource(names, setting=setting)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param("b.txt", b"bbbb", id="relative file"),
        pytest.param("~/a.txt", b"aa", id="home folder"),
        pytest.param("*.txt", b"aabbbb", id="glob, sorted"),
        pytest.param("**/*.txt", b"aabbbbccc", id="recursive glob"),
        pytest.param("**/*", b"aabbbbcccm", id="glob over folders"),
        pytest.param(["b.txt", "a.txt"], b"aabbbb", id="list, sorted"),
        pytest.param(["b.txt", "./b.txt", "*.txt"], b"aabbbb", id="duplicates"),
        pytest.param(["deep/*/c.txt", "a.txt"], b"aaccc", id="list with a glob"),
        pytest.param("deep", b"cccm", id="folder"),
        pytest.param(["~/deep/er/", "a.txt"], b"aaccc", id="list with a folder"),
        pytest.param("~/de*/**/**/*.txt", b"ccc", id="glob in the home folder"),
    ],
)
def test_names_become_one_sorted_text(folder: Path, names: str | list[str], text: bytes) -> None:
    with ByteSource(names) as source:
        assert len(source) == len(text)
        assert read_all(source) == text
        assert list(source.paths) == sorted(source.paths)
        assert all(os.path.isabs(path) for path in source.paths)


def test_a_link_to_a_file_that_is_there_already_counts_once(folder: Path) -> None:
    (folder / "link.txt").symlink_to("a.txt")
    os.link(folder / "a.txt", folder / "second.txt")
    with ByteSource("*.txt") as source:
        assert read_all(source) == b"aabbbb"


def test_an_existing_name_with_glob_characters_is_taken_literally(folder: Path) -> None:
    (folder / "x[1].txt").write_bytes(b"bracket")
    (folder / "x1.txt").write_bytes(b"plain")
    with ByteSource("x[1].txt") as source:
        assert read_all(source) == b"bracket"


@pytest.mark.parametrize("typed", ["*.txt", "**/*", "./*.txt", ".", "deep/../*.txt"])
def test_only_what_was_typed_is_a_pattern(
    folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    for name in ("exp[1]", "exp1"):
        (folder / name / "deep").mkdir(parents=True)
        (folder / name / "a.txt").write_text(f"text of {name}")
    monkeypatch.chdir(folder / "exp[1]")
    with ByteSource(typed) as source:
        assert read_all(source) == b"text of exp[1]"
    monkeypatch.setenv("HOME", str(folder / "exp[1]"))
    home = typed if typed == "." else f"~/{typed}"
    written = anchored(home), anchored(typed)
    monkeypatch.chdir(folder)
    for name in written:
        with ByteSource(name) as source:
            assert read_all(source) == b"text of exp[1]"


def test_a_folder_that_exists_is_no_pattern(folder: Path) -> None:
    for name in ("exp[1]", "exp1"):
        (folder / name).mkdir()
        (folder / name / "a.txt").write_text(f"text of {name}")
    for typed in ("exp[1]/*.txt", "exp[1]", "exp[1]/a.txt"):
        for name in (typed, anchored(typed)):
            with ByteSource(name) as source:
                assert read_all(source) == b"text of exp[1]"
    (folder / "exp[1]" / "a.txt").unlink()
    line = error_line(anchored("exp[1]/a.txt"))
    assert "no such file in" in line or "matches no file" in line


def test_links_in_a_circle_are_followed_once(folder: Path) -> None:
    for name in ("one", "two", "three"):
        (folder / "deep" / name).symlink_to(folder)
        (folder / "deep" / "er" / name).symlink_to("..")
    with ByteSource("**/*.txt") as source:
        assert read_all(source) == b"aabbbbccc"


@pytest.mark.parametrize(
    ("names", "line"),
    [
        pytest.param(
            "bb.txt",
            "data.path={f}/bb.txt: no such file in {f}; name a file that exists",
            id="missing file, short names",
        ),
        pytest.param(
            "q-9",
            "data.path={f}/q-9: no such file in {f}; name a file that exists",
            id="missing file, nothing near",
        ),
        pytest.param(
            "depe/er/c.txt",
            "data.path={f}/depe/er/c.txt: no such folder depe in {f} (did you mean deep?)",
            id="missing folder",
        ),
        pytest.param(
            "a.txt/c.txt",
            "data.path={f}/a.txt/c.txt: {f}/a.txt is a file, not a folder; name that file",
            id="file as folder",
        ),
        pytest.param(
            "*.tex",
            "data.path=*.tex: matches no file under {f}; to see what is there type: ls",
            id="glob without matches",
        ),
        pytest.param(
            "deep/**/*.tex",
            "data.path=deep/**/*.tex: matches no file under {f}/deep; "
            "to see what is there type: ls {f}/deep",
            id="recursive glob without matches",
        ),
        pytest.param(
            "depe/*.txt",
            "data.path=depe/*.txt: no such folder depe in {f} (did you mean deep?)",
            id="glob in a missing folder",
        ),
        pytest.param(
            "dee*",
            "data.path=dee*: matches folders only; "
            "for every file in them type 'data.path=dee*/**/*'",
            id="glob of folders",
        ),
        pytest.param(
            "none",
            "data.path=none: a folder without a file to read; to see what is there type: "
            "ls {f}/none",
            id="empty folder",
        ),
        pytest.param(
            ["a.txt", "deep/empty.txt"],
            "data.path={f}/deep/empty.txt: the file is empty; name one that holds text",
            id="empty file",
        ),
        pytest.param(
            "void/*",
            "data.path=void/*: matches empty files only; name others",
            id="glob of empty files",
        ),
        pytest.param("", "data.path: names no file; type data.path=FILE", id="empty name"),
        pytest.param([], "data.path: names no file; type data.path=FILE", id="empty list"),
        pytest.param(
            "/dev/null",
            "data.path=/dev/null: a device or socket, not a regular file; "
            "save its bytes in a file and name that",
            id="device",
        ),
        pytest.param(
            "a" * 300,
            "data.path={f}/" + "a" * 300 + ": File name too long; name another file",
            id="name too long",
        ),
    ],
)
def test_error_line(folder: Path, names: str | list[str], line: str) -> None:
    assert error_line(names) == line.replace("{f}", str(folder))


def test_error_line_names_the_setting_that_named_the_file(folder: Path) -> None:
    assert error_line("q-9", setting="eval.path").startswith(f"eval.path={folder}/q-9: ")


def test_error_line_of_a_pipe_does_not_wait_for_a_writer(folder: Path) -> None:
    os.mkfifo("pipe")
    assert error_line("pipe") == (
        f"data.path={folder}/pipe: a pipe, not a regular file; "
        f"save its bytes in a file and name that"
    )


def test_error_line_of_a_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        assert error_line("s").startswith(f"data.path={folder}/s: a device or socket, not a ")


def test_error_line_of_a_broken_link(folder: Path) -> None:
    Path("link").symlink_to("gone.txt")
    assert error_line("link") == (
        f"data.path={folder}/link: a link to gone.txt, which does not exist; name another file"
    )


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions do not bind root: act as nobody for a while where the tests run as root."""
    user = os.geteuid()
    os.seteuid(UNPRIVILEGED if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder whose parents everybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(os.path.realpath(name))


@pytest.mark.parametrize("closed", ["inner/text.txt", "inner"])
def test_error_line_without_permission(open_folder: Path, closed: str) -> None:
    path = open_folder / "inner" / "text.txt"
    path.parent.mkdir(mode=0o755)
    path.write_bytes(b"text")
    (open_folder / closed).chmod(0)
    with unprivileged():
        line = error_line(str(path))
    (open_folder / "inner").chmod(0o755)
    assert line == (
        f"data.path={path}: you may not read it; "
        f"type: chmod u+rX {open_folder / closed}, or name another"
    )


def test_a_folder_that_one_may_not_read_is_not_passed_over(open_folder: Path) -> None:
    (open_folder / "a.txt").write_bytes(b"text")
    (open_folder / "closed").mkdir(mode=0)
    with unprivileged():
        line = error_line(f"{open_folder}/**/*.txt")
    assert line == (
        f"data.path={open_folder}/closed: you may not read it; "
        f"type: chmod u+rX {open_folder}/closed, or name another"
    )


def in_subprocess(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


MANY = """
import resource, sys
from elman.data.files import ByteSource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))
print(len(ByteSource(sys.argv[1])))
"""


@pytest.fixture
def many(tmp_path: Path) -> str:
    for index in range(100):
        (tmp_path / f"{index}.txt").write_bytes(b"x")
    return str(tmp_path / "*.txt")


def test_more_files_than_the_soft_limit_on_descriptors(many: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert in_subprocess(MANY, many, str(hard)).stdout == "100\n"


def test_error_line_of_more_files_than_the_hard_limit(many: str) -> None:
    assert in_subprocess(MANY, many, "64").stderr.splitlines()[-1] == (
        "elman.base.errors.UserError: data.path: 100 files, more than this process may hold open; "
        "join them into one (cat), or type: ulimit -n 356"
    )


@examples()
@given(parts=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6), choose=st.data())
def test_every_window_is_that_of_the_joined_text(parts: list[bytes], choose: st.DataObject) -> None:
    text = b"".join(parts)
    length = choose.draw(st.integers(1, len(text)))
    offset = st.integers(0, len(text) - length)
    offsets = choose.draw(st.lists(offset, min_size=1, max_size=8))
    with tempfile.TemporaryDirectory() as folder:
        for index, part in enumerate(parts):
            Path(folder, f"{index}.bin").write_bytes(part)
        with ByteSource(f"{folder}/*.bin") as source:
            rows = source.gather(np.array(offsets), length)
            singles = [source.read(offset, length).tobytes() for offset in offsets]
    expected = [text[offset : offset + length] for offset in offsets]
    assert [row.tobytes() for row in rows] == expected
    assert singles == expected
    assert rows.dtype == np.uint8
    assert rows.flags.writeable


def test_short_reads_are_completed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, place: pread(fd, min(length, 2), place))
    with ByteSource("**/*.txt") as source:
        assert read_all(source) == b"aabbbbccc"
        assert source.gather(np.array([0, 2, 4]), 4).tobytes() == b"aabbbbbbbbcc"


def test_a_file_that_grew_adds_nothing(folder: Path) -> None:
    with ByteSource(["a.txt", "b.txt"]) as source:
        with open("a.txt", "ab") as grown:
            grown.write(b"more")
        assert read_all(source) == b"aabbbb"
        assert source.gather(np.array([1]), 3).tobytes() == b"abb"


def test_a_file_replaced_by_another_is_read_as_it_was(folder: Path) -> None:
    with ByteSource("b.txt") as source:
        Path("new").write_bytes(b"n")
        os.replace("new", "b.txt")
        assert read_all(source) == b"bbbb"


READS: dict[str, Callable[[ByteSource], object]] = {
    "read": lambda source: source.read(0, len(source)),
    "gather": lambda source: source.gather(np.array([0, 60_000]), 10_000),
    "describe": lambda source: source.describe(),
}


@pytest.mark.parametrize("reading", READS)
@pytest.mark.parametrize("left", [0, 65_000])
def test_error_line_of_a_file_that_shrinks_while_open(
    tmp_path: Path, reading: str, left: int
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(100_000))
    with ByteSource(path) as source:
        os.truncate(path, left)
        with pytest.raises(UserError) as caught:
            READS[reading](source)
    assert str(caught.value) == (
        f"data.path={path}: shrank from 100000 bytes to {left} while being read; "
        f"put the whole file back and resume, or start a new run on it as it is"
    )


def test_a_failing_disk_is_reported_with_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, length: int, place: int) -> bytes:
        raise OSError(5, "Input/output error")

    with ByteSource("a.txt") as source:
        monkeypatch.setattr(os, "pread", fail)
        with pytest.raises(OSError, match=r"Input/output error: .*a\.txt"):
            source.gather(np.array([0]), 2)


def test_description(folder: Path) -> None:
    with ByteSource("*.txt") as source:
        assert source.describe() == {
            "paths": [str(folder / "a.txt"), str(folder / "b.txt")],
            "bytes": 6,
            "sha256": hashlib.sha256(b"aabbbb").hexdigest(),
            "sample_sha256": None,
        }


def sparse(path: Path, size: int, marks: dict[int, bytes]) -> dict[str, object]:
    with open(path, "wb") as out:
        out.truncate(size)
        for place, mark in marks.items():
            out.seek(place)
            out.write(mark)
    with ByteSource(path) as source:
        return source.describe()


def test_description_of_a_large_file_samples_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FULL_HASH_LIMIT", 8 * 2**20)
    size = 12 * 2**20
    assert sparse(tmp_path / "limit", 8 * 2**20, {})["sample_sha256"] is None
    plain = sparse(tmp_path / "plain", size, {})
    assert plain["sha256"] is None
    blocks = hashlib.sha256(b"%d" % size + bytes(1024 * 4096)).hexdigest()
    assert plain["sample_sha256"] == blocks
    different = [
        sparse(tmp_path / "first", size, {0: b"x"}),
        sparse(tmp_path / "last", size, {size - 1: b"x"}),
        sparse(tmp_path / "longer", size + 1, {}),
    ]
    assert len({str(other["sample_sha256"]) for other in [plain, *different]}) == 4


def test_closing_gives_the_descriptors_back(folder: Path) -> None:
    def n_open() -> int:
        return len(glob.glob("/dev/fd/*"))

    before = n_open()
    source = ByteSource("**/*.txt")
    assert n_open() == before + 3
    source.close()
    source.close()
    assert n_open() == before
    error_line(["a.txt", "b.txt", "gone.txt"])
    assert n_open() == before
