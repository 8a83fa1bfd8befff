"""Where a run works in another folder, what it prints is typed in the first one."""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

import pytest

from elman.cli.main import main

SMALL = (
    *("model=e1", "model.dim=128", "model.depth=1", "train.batch_size=1", "train.chunk_size=16"),
    *("train.steps=1", "train.device=cpu", "data.val_sample=32", "data.val_window=32"),
    *("kernels.backend=reference", "data.path=text.txt"),
)


@pytest.mark.parametrize("chdir", [True, False])
def test_printed_commands_name_the_run_from_where_it_was_typed(
    chdir: bool,
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    there = ["hydra.run.dir=runs/one", f"hydra.job.chdir={chdir}"]
    assert main([*SMALL, *there]) == 0
    said = capsys.readouterr().out
    assert "everything about it: runs/one\n" in said
    command = re.search(r"score it +elman (mode=eval .*)", said)
    assert command is not None
    assert shlex.split(command[1]) == ["mode=eval", "eval.checkpoint=runs/one"]
    assert main([*shlex.split(command[1]), "eval.path=text.txt", "eval.max_bytes=64"]) == 0
    there = ["hydra.run.dir=runs/two", f"hydra.job.chdir={chdir}", "train.init_from=runs/one"]
    assert main([*SMALL, *there]) == 0
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("umask", [0o027, 0o002])
def test_every_file_of_a_run_follows_the_umask(
    umask: int, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    before = os.umask(umask)
    try:
        assert main([*SMALL, "hydra.run.dir=run"]) == 0
        saves = ["generate.save_state=state", "generate.max_bytes=2", "generate.device=cpu"]
        assert main(["mode=generate", "generate.checkpoint=run", *saves]) == 0
        assert main(["mode=report", "report.dir=run", "report.out=report"]) == 0
    finally:
        os.umask(before)
    made = [path for name in ("run", "report") for path in (tmp_path / name).rglob("*")]
    assert len(made) > 10
    for path in (*made, tmp_path / "state"):
        if not path.is_symlink():
            wanted = (0o777 if path.is_dir() else 0o666) & ~umask
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path
