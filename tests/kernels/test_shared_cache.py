"""A cache in which others may write: what they could have planted is never loaded."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base import cache as caches
from elman.base.errors import UserError
from elman.kernels import build, compiler
from elman.ops.add_norm import cpu as add_norm
from elman.ops.causal_conv import cpu as causal_conv
from elman.ops.matrix_state import cpu as matrix_state
from elman.training.optim import muon_kernel

STRANGER, OTHER_USER = 4321, 1234
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
Train = Callable[[], Any]


@pytest.fixture
def cached_run(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Callable[..., Any]]:
    """Return a cache in which a run has put everything, and a function that runs it again."""
    cache = tmp_path / "shared" / "cache"
    cache.parent.mkdir()
    monkeypatch.setenv("ELMAN_CACHE", str(cache))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "learn this line by heart, whoever wrote it"}\n' * 100)

    def again(*overrides: str) -> Any:
        for loaded in (build._loaded, matrix_state._loaded, matrix_state._found):
            loaded.clear()  # as a new process would
        compiler._search.cache_clear()
        muon_kernel._kernel.cache_clear()
        for table in (add_norm.KERNELS, causal_conv.KERNELS):
            table.forget()
        caches._say_read_only.cache_clear()
        settings = ("train.steps=1", "train.val_every=null", "kernels.backend=cpu")
        place = f"run{len(overrides)}"  # a checkpoint of another shape would be in the way
        return train(f"data.path={texts}", *settings, *overrides, folder=place)

    umask = os.umask(0)
    try:
        assert again().result["status"] == "ok"
    finally:
        os.umask(umask)
    return cache, again


def _restored(path: Path, change: Callable[[Path], None], check: Callable[[], None]) -> None:
    found = path.stat()
    change(path)
    try:
        check()
    finally:
        os.chown(path, found.st_uid, found.st_gid)
        path.chmod(stat.S_IMODE(found.st_mode))


def _made(cache: Path) -> dict[Path, int]:
    """Return when each file was written, but the note that a pack was read whole after a chown."""
    files = (path for path in cache.rglob("*") if path.is_file() and path.name != "checked.json")
    return {path: path.stat().st_mtime_ns for path in files}


@as_root
@pytest.mark.required
@pytest.mark.compiler
def test_nothing_that_somebody_else_may_have_written_is_loaded(
    cached_run: tuple[Path, Train], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the library, its record, the parity record, the compiler's record and the pack."""
    cache, again = cached_run
    places = [cache, *cache.rglob("*")]
    # With a umask of 0 nothing was made that others may write.
    assert not [path for path in places if path.stat().st_mode & 0o022]
    unread = ("lock", "source.cpp")
    read = [path for path in places if path.name not in unread]
    assert {path.name for path in read} > {"kernel.so", "build.json", "pack.json", "text"}
    assert {path.parent.name for path in read} > {"parity", "compilers"}

    def refused(path: Path, why: str) -> None:
        with pytest.raises(UserError, match=why) as raised:
            again()
        line = str(raised.value)
        assert line.startswith(f"{path}: ")
        assert "it is not used; type ch" in line
        assert "ELMAN_CACHE" in line

    for path, mode in zip(read, itertools.cycle((0o020, 0o002)), strict=False):
        _restored(
            path,
            lambda path: os.chown(path, STRANGER, -1),
            lambda path=path: refused(path, f"belongs to user {STRANGER}, who may have put any"),  # type: ignore[misc]
        )
        _restored(
            path,
            lambda path, mode=mode: path.chmod(path.stat().st_mode | mode),  # type: ignore[misc]
            lambda path=path: refused(path, r"other users may write it \(mode \d+\)"),  # type: ignore[misc]
        )
    before = _made(cache)
    assert again().result["status"] == "ok"
    assert _made(cache) == before  # nothing was made again


@as_root
@pytest.mark.compiler
def test_a_shared_cache_that_its_owner_alone_writes_is_read_and_the_rest_is_made_in_ones_own(
    cached_run: tuple[Path, Train],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cache, again = cached_run
    for path in (cache, *cache.rglob("*")):
        os.chown(path, STRANGER, -1)
    shared = _made(cache)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    capsys.readouterr()
    assert again().result["status"] == "ok"
    assert "compiling" not in (said := capsys.readouterr().err)
    assert "read-only" not in said
    assert not (tmp_path / "own").exists()

    result = again("model.n_state=16").result
    assert result["status"] == "ok", result["error"]
    said = capsys.readouterr().err
    own = tmp_path / "own" / "elman"
    assert said.count(f"{cache} is read-only here; what it lacks is made in {own}") == 1
    assert list(own.glob("kernels/*/kernel.so"))
    assert _made(cache) == shared


@as_root
def test_a_shared_cache_that_somebody_else_could_have_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody can make a folder in /tmp and give it the modes of a safe cache."""
    above, cache = tmp_path / "tmp", tmp_path / "tmp" / "cache"
    cache.mkdir(parents=True)
    above.chmod(0o1777)
    record = cache / "parity" / "e88.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"parity": {}}))
    monkeypatch.setenv("ELMAN_CACHE", str(cache))
    assert caches.cached("kernels", "parity/e88.json") == record  # ours: a sticky parent is fine
    for path in (cache, record.parent, record):
        os.chown(path, STRANGER, -1)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    with pytest.raises(UserError, match=rf"{cache}: .*others may write in {above} above it"):
        caches.cached("kernels", "parity/e88.json")
    above.chmod(0o755)
    assert caches.cached("kernels", "parity/e88.json") == record
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match=r"root may write it.*type chown -R root"):
        caches.cached("kernels", "parity/e88.json")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a number for a user; a folder named ~ would appear where it runs."""
    for name in ("HOME", "XDG_CACHE_HOME", "ELMAN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda name: name)
    with pytest.raises(UserError, match=r"no home folder \(HOME is not set\).*set ELMAN_CACHE"):
        caches.cached("kernels", "x")
