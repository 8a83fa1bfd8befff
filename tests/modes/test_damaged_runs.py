"""Damaged and refused runs: one line that says what to do, nothing written, nothing replaced."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

import elman as package
from elman.base.errors import UserError
from elman.cli.main import main
from elman.modes import train_checks
from elman.training import first_pass
from elman.training.training_state import TrainingState
from tests.small_run import E1, TEXT, Elman

TINY = (*E1, "log.tensorboard=false")
OLDER, NEWEST = "step-0000004", "step-0000006"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run with two checkpoints, beside its data."""
    place = tmp_path_factory.mktemp("finished")
    (place / "text.txt").write_bytes(TEXT)
    (place / "other.txt").write_bytes(TEXT[::-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        settings = ("train.steps=6", "train.save_every=2", "data.path=text.txt")
        assert main([*TINY, *settings, "hydra.run.dir=run"]) == 0
    names = sorted(path.name for path in (place / "run" / "checkpoints").glob("step-*"))
    assert names == [OLDER, NEWEST]
    return place / "run"


def contents(run: Path) -> dict[str, bytes]:
    """Return every file of a run folder but its lock, which says who ran there last."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def changed(run: Path, before: dict[str, bytes]) -> list[str]:
    """Return the files that are not as before."""
    now = contents(run)
    return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))


REFUSED = {
    "other data": ("data.path=other.txt", "differs from the data that the run was trained on"),
    "fewer steps": ("train.steps=3", "its budget is used up (6 steps"),
    "as many steps": ("train.steps=6", "its budget is used up (6 steps"),
    "another way to read": ("train.tbptt=true", "resume with train.tbptt=false"),
    "another split": ("data.val_bytes=300", "differs from the data that the run was trained on"),
}


@pytest.mark.required
@pytest.mark.parametrize(("override", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_refused_resume_changes_nothing_and_the_right_one_goes_on(
    elman: Elman, run: Path, finished: Path, override: str, reason: str
) -> None:
    shutil.copy(finished.parent / "other.txt", "other.txt")
    (run / "train.log").unlink()
    before = contents(run)
    status, said = elman("train.resume=run", override)
    assert status == 2
    assert reason in said
    assert changed(run, before) == []

    status, said = elman("train.resume=run", "train.steps=8")
    assert status == 0, said
    assert "resuming after step 6" in said
    assert yaml.safe_load((run / "config.yaml").read_text())["train"]["steps"] == 8
    noted = run / ".hydra" / "resume-001"
    assert sorted(path.name for path in noted.iterdir()) == [
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    ]
    assert yaml.safe_load((noted / "overrides.yaml").read_text()) == [
        "train.resume=run",
        "train.steps=8",
    ]
    assert yaml.safe_load((noted / "hydra.yaml").read_text())["hydra"]["run"]["dir"] == str(run)
    assert json.loads((run / "result-001.json").read_text())["steps"] == 6


def test_a_resume_that_does_not_fit_into_memory_changes_nothing(
    elman: Elman, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(train_checks, "available_memory", lambda device: 1 << 20)
        status, said = elman("train.resume=run", "train.steps=8", "train.batch_size=4096")
        assert status == 4
        assert changed(run, before) == []
        assert "elman: oom: a step of 4096 rows" in said
    with monkeypatch.context() as patch:

        def exhausted(state: TrainingState) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

        patch.setattr(first_pass, "prepare_step", exhausted)
        status, said = elman("train.resume=run", "train.steps=8", "train.batch_size=64")
        assert status == 4
        assert changed(run, before) == ["train.log"]  # the traceback
    assert elman("train.resume=run", "train.steps=8")[0] == 0


def flip(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) * 3 // 4] ^= 1
    path.write_bytes(whole)


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.write_bytes(b"caf\xe9: 1\n")


def without_checksums(folder: Path) -> None:
    """Make a checkpoint one of those that were saved before there were checksums."""
    meta = json.loads((folder / "meta.json").read_text())
    old = {key: meta[key] for key in ("step", "val_bpb")}
    (folder / "meta.json").write_text(json.dumps(old))


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "weights with a flipped bit": ("model.safetensors", flip),
    "weights cut short": ("model.safetensors", cut),
    "no weights": ("model.safetensors", Path.unlink),
    "an empty meta": ("meta.json", empty),
    "a meta cut short": ("meta.json", cut),
    "a meta with a flipped bit": ("meta.json", flip),
    "no meta": ("meta.json", Path.unlink),
    "a configuration with a flipped bit": ("config.yaml", flip),
    "a configuration that is no UTF-8": ("config.yaml", foreign),
    "a state with a flipped bit": ("state.pt", flip),
    "a state cut short": ("state.pt", cut),
    "an empty state": ("state.pt", empty),
    "no state": ("state.pt", Path.unlink),
}
# The files that each use reads of the newest checkpoint.
USES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "eval": (("mode=eval", "eval.checkpoint="), ("model.safetensors", "meta.json", "config.yaml")),
    "generate": (
        ("mode=generate", "generate.max_bytes=3", "generate.checkpoint="),
        ("model.safetensors", "meta.json", "config.yaml"),
    ),
    "init_from": (
        (*TINY, "train.steps=1", "data.path=run/../text.txt", "train.init_from="),
        ("model.safetensors", "meta.json"),
    ),
}


def one_line_about(said: str, file: Path) -> None:
    assert said.count("\n") == 1, said
    assert said.startswith(f"elman: error: {file}: "), said
    assert "internal error" not in said
    assert "weights_only" not in said


@pytest.mark.required
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("name", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_one_line_with_another_that_is_whole(
    elman: Elman, run: Path, use: str, name: str, damage: Callable[[Path], None]
) -> None:
    (run.parent / "text.txt").write_bytes(TEXT)
    arguments, reads = USES[use]
    newest = run / "checkpoints" / NEWEST
    damage(newest / name)
    status, said = elman(*arguments[:-1], f"{arguments[-1]}run")
    if name not in reads:
        assert status == 0, said
        return
    assert status == 2
    one_line_about(said, Path("run/checkpoints") / NEWEST / name)
    (good,) = re.findall(r"name (\S+) instead", said)
    assert good == f"run/checkpoints/{OLDER}"
    assert elman(*arguments[:-1], f"{arguments[-1]}{good}")[0] == 0


@pytest.mark.required
@pytest.mark.parametrize(("name", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_resume_from_a_damaged_checkpoint_takes_no_older_one_by_itself(
    elman: Elman, run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    newest = run / "checkpoints" / NEWEST
    damage(newest / name)
    before = contents(run)
    status, said = elman("train.resume=run", "train.steps=8")
    if name == "config.yaml":  # a run resumes with the one in its own folder
        assert status == 0, said
        return
    assert status == 2
    one_line_about(said, newest / name)
    assert f"run/checkpoints/{OLDER} is whole" in said
    assert changed(run, before) == []
    # What it advises works.
    (advice,) = re.findall(r"\((mv [^)]+)\)", said)
    subprocess.run(shlex.split(advice), check=True)
    status, said = elman("train.resume=run", "train.steps=8")
    assert status == 0, said
    assert "resuming after step 4" in said


def test_without_another_checkpoint_the_line_says_so(elman: Elman, run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / OLDER)
    flip(run / "checkpoints" / NEWEST / "model.safetensors")
    status, said = elman("mode=eval", "eval.checkpoint=run")
    assert (status, said.count("\n")) == (2, 1)
    assert "no other checkpoint beside it is whole" in said
    status, said = elman("train.resume=run", "train.steps=8")
    assert (status, said.count("\n")) == (2, 1)
    assert "no other checkpoint of the run is whole" in said


def test_an_older_one_that_is_damaged_too_is_not_offered(elman: Elman, run: Path) -> None:
    flip(run / "checkpoints" / OLDER / "state.pt")
    flip(run / "checkpoints" / NEWEST / "model.safetensors")
    assert "no other checkpoint" in elman("mode=eval", "eval.checkpoint=run")[1]


def test_the_best_one_damaged_is_named_by_its_link(elman: Elman, run: Path) -> None:
    best = run / "checkpoints" / "best"
    flip(best / "model.safetensors")
    _, said = elman("mode=eval", "eval.checkpoint=run/checkpoints/best")
    one_line_about(said, Path("run/checkpoints/best/model.safetensors"))
    shutil.rmtree(best.resolve())
    status, said = elman("mode=eval", "eval.checkpoint=run/checkpoints/best")
    assert (status, said.count("\n")) == (2, 1)


def test_elman_load_says_the_same(run: Path) -> None:
    flip(run / "checkpoints" / NEWEST / "model.safetensors")
    with pytest.raises(UserError, match=rf"damaged .*; name run/checkpoints/{OLDER} instead"):
        package.load(run)
    assert package.load(run / "checkpoints" / OLDER).num_params() > 0


def test_a_checkpoint_without_checksums_still_serves(elman: Elman, run: Path) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        without_checksums(path)
    assert package.load(run).num_params() > 0
    assert elman("mode=eval", "eval.checkpoint=run")[0] == 0
    assert elman("train.resume=run", "train.steps=8")[0] == 0


@pytest.mark.parametrize("damage", [cut, empty, foreign], ids=lambda damage: damage.__name__)
def test_without_checksums_damage_is_one_line_too(
    elman: Elman, run: Path, damage: Callable[[Path], None]
) -> None:
    newest = run / "checkpoints" / NEWEST
    without_checksums(newest)
    for name in ("config.yaml", "model.safetensors", "state.pt"):
        whole = (newest / name).read_bytes()
        damage(newest / name)
        resumes = name == "state.pt"
        arguments = ["train.resume=run", "train.steps=8"] if resumes else ["mode=eval"]
        if not resumes:
            arguments.append("eval.checkpoint=run")
        status, said = elman(*arguments)
        if name != "config.yaml" or damage is not cut:  # half a configuration lacks sections
            one_line_about(said, (run if resumes else Path("run")) / "checkpoints" / NEWEST / name)
        assert (status, said.count("\n")) == (2, 1)
        (newest / name).write_bytes(whole)


@pytest.mark.parametrize(
    "text",
    [b"caf\xe9: 1\n", b"model: &x {cell: *x}\n", b"train: &x [*x]\n", b"model: " + b"[" * 3000],
    ids=["no UTF-8", "includes itself", "a list in itself", "nested"],
)
def test_a_configuration_that_cannot_be_read_is_one_line(
    elman: Elman, run: Path, text: bytes
) -> None:
    (run / "config.yaml").write_bytes(text)
    status, said = elman("train.resume=run", "train.steps=8")
    assert status == 2
    one_line_about(said, run / "config.yaml")
    newest = run / "checkpoints" / NEWEST
    without_checksums(newest)
    (newest / "config.yaml").write_bytes(text)
    status, said = elman("mode=eval", "eval.checkpoint=run")
    assert status == 2
    one_line_about(said, Path("run/checkpoints") / NEWEST / "config.yaml")


def test_a_checkpoint_is_no_run_to_resume(elman: Elman, run: Path) -> None:
    before = contents(run)
    status, said = elman(f"train.resume=run/checkpoints/{OLDER}", "train.steps=8")
    assert (status, said.count("\n")) == (2, 1)
    assert f"name {run}" in said
    assert changed(run, before) == []


USERS = {
    "no UTF-8": (
        {"a": b"defaults: [/cell/e88@_here_, _self_]\ndim: 256\n# caf\xe9\n"},
        r"a\.yaml: not UTF-8: byte 0xe9 at position \d+; save it as UTF-8",
    ),
    "itself": (
        {"a": b"defaults: [a@_here_, _self_]\ndim: 256\n"},
        r"a\.yaml: its defaults include",
    ),
    "each other": (
        {"a": b"defaults: [/model/b@_here_]\n", "b": b"defaults: [/model/a@_here_]\n"},
        r"a\.yaml: its defaults include itself through \S+b\.yaml",
    ),
    "an alias": (
        {"a": b"defaults: [/cell/e88@_here_, _self_]\ndim: &x [*x]\n"},
        r"a\.yaml: includes itself through a YAML alias",
    ),
    "a zero byte": ({"a": b"dim: \x00\n"}, r"a\.yaml: not YAML: "),
}


@pytest.mark.parametrize(("files", "line"), USERS.values(), ids=USERS)
def test_a_file_of_the_users_own_that_cannot_be_read_is_one_line(
    elman: Elman,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, bytes],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine" / "model"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_bytes(text)
    (folder / "folder.yaml").mkdir()
    status, said = elman("--config-dir", "mine", "model=a", "train.steps=1")
    assert (status, said.count("\n")) == (2, 1)
    assert re.search(line, said), said
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert elman("--config-dir", "mine", "mode=models", "models.filter=zzz")[0] in (0, 2)


def test_a_suite_that_is_no_utf8_is_one_line(
    elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "benchmark").mkdir(parents=True)
    (tmp_path / "mine" / "benchmark" / "own.yaml").write_bytes(b"# caf\xe9\n")
    status, said = elman("--config-dir", "mine", "mode=suites")
    assert (status, said.count("\n")) == (2, 1)
    assert "own.yaml: not UTF-8" in said
