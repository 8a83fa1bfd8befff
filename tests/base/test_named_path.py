"""A path that cannot be used is refused in one line that names its setting, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elman.base.errors import UserError
from elman.base.named_path import readable_file, writable_file
from elman.cli.main import main

SMALL = (
    "model=e1",
    "model.dim=128",
    "model.depth=1",
    "data.path=text.txt",
    "train.steps=1",
    "train.batch_size=2",
    "train.chunk_size=16",
    "data.val_sample=64",
    "data.val_window=16",
    "log.tensorboard=false",
)
WRONG = {
    ".": "this is a folder; name a file in it",
    "": "this is a folder",
    "/": "this is a folder",
    "folder": "this is a folder",
    "folder/": "this is a folder",
    "text.txt/": "this is a folder",
    "missing/deeper/state": "no such folder",
    "text.txt/state": "is a file, not a folder",
    "pipe": "this is a pipe; name an ordinary file",
    "circle": "its links form a circle",
    "dangling": "no such folder",
    "x" * 300: "the name is too long",
    "/".join(["y" * 200] * 30): "the name is too long",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run and things that are no ordinary file."""
    place = tmp_path_factory.mktemp("place")
    (place / "text.txt").write_bytes(b"def add(left, right):\n    return left + right\n" * 99)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main([*SMALL, "hydra.run.dir=run"]) == 0
    (place / "folder").mkdir()
    os.mkfifo(place / "pipe")
    (place / "circle").symlink_to("circle")
    (place / "dangling").symlink_to("nowhere/state")
    return place


@pytest.mark.parametrize(("name", "why"), WRONG.items(), ids=[name[:20] for name in WRONG])
def test_a_file_that_cannot_be_written_is_refused_before_the_text(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    why: str,
) -> None:
    monkeypatch.chdir(place)
    before = sorted(os.listdir())
    command = ["mode=generate", "generate.checkpoint=run", "generate.max_bytes=2"]
    assert main([*command, f"generate.save_state='{name}'"]) == 2
    out, said = capfd.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert said.startswith("elman: error: generate.save_state=")
    assert why in said
    assert len(said) < 400
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("name", [".", "pipe", "missing", "x" * 300])
def test_a_file_that_cannot_be_read_is_refused_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(place)
    assert main(["mode=generate", "generate.checkpoint=run", f"generate.state={name}"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("elman: error: generate.state=")
    assert said.count("\n") == 1


def test_a_saved_state_goes_where_a_link_leads(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(place)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "state")
    name = tmp_path / ("s" * 250)  # as long as a name can be, almost
    command = ["mode=generate", "generate.checkpoint=run", "generate.max_bytes=2"]
    for path in (link, name):
        assert main([*command, f"generate.save_state={path}"]) == 0
        assert main([*command, f"generate.state={path}"]) == 0
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == sorted(["link", "state", name.name])


LONG = {
    "train.resume": [],
    "train.init_from": [*SMALL],
    "eval.checkpoint": ["mode=eval"],
    "generate.checkpoint": ["mode=generate"],
    "report.dir": ["mode=report"],
    "sweep.resume": ["-m"],
    "sweep.add": ["-m", "train.seed=5"],
    "data.path": [],
    "hydra.run.dir": [*SMALL],
    "hydra.sweep.dir": ["-m", *SMALL, "train.seed=1,2"],
    "data.nosuch": [],
}


@pytest.mark.parametrize("key", LONG)
def test_a_name_that_no_file_can_have_is_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], key: str
) -> None:
    monkeypatch.chdir(place)
    before = sorted(os.listdir())
    for name in ("x" * 300, "/".join(["y" * 200] * 30)):
        assert main([*LONG[key], f"{key}={name}"]) == 2
        said = capfd.readouterr().err
        assert said.startswith("elman: error: ")
        assert said.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_an_empty_name_of_a_sweep_starts_none(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(["-m", "sweep.resume=''"]) == 2
    assert "sweep.resume=: names no folder" in capfd.readouterr().err


def test_a_folder_without_the_right_to_write_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"^key=\S+state: may not be written; name a file where"):
        writable_file("key", str(tmp_path / "state"))
    (tmp_path / "there").touch()
    with pytest.raises(UserError, match=r"^key=\S+there: may not be read; name a file that you"):
        readable_file("key", str(tmp_path / "there"))


def test_a_folder_that_takes_no_new_file_is_named() -> None:
    with pytest.raises(UserError, match=r"^key=/proc/x: (/proc takes no file|may not be written)"):
        writable_file("key", "/proc/x")


def test_a_run_folder_without_the_right_to_write_is_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    opened = os.open

    def refusing(path, flags, *mode, **how):
        if str(path).endswith(".lock") and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *mode, **how)

    monkeypatch.setattr(os, "open", refusing)
    assert main(["train.resume=run", "train.steps=2"]) == 2
    said = capfd.readouterr().err
    named = "elman: error: train.resume=run: permission denied (.lock in it)"
    assert said == f"{named}; name another path\n"
