"""File systems without locks: NFS without its lock service, Lustre without flock, some of FUSE."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elman.base import file_lock, run_files
from elman.base.errors import UserError
from elman.devices import locks
from elman.devices.locks import GpuLock
from elman.kernels.entry import making
from elman.runs.folder import RunLock, lock_holder

CODES = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO, errno.EPERM]
# One function, as a user's file system would answer.
NO_FLOCK = """
#include <errno.h>
#include <stdlib.h>
int flock(int descriptor, int operation) { errno = atoi(getenv("FLOCK_ERRNO")); return -1; }
"""
HOLDS = """
import fcntl, sys, time
from pathlib import Path
def refused(descriptor, operation): raise OSError(37, "No locks available")
fcntl.flock = refused
from elman.runs.folder import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every lock of this process be refused, and every note be said again."""

    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    file_lock.say_no_locks.cache_clear()
    monkeypatch.setattr(fcntl, "flock", refused)


@pytest.fixture
def preloaded(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no process gets a lock."""
    library = tmp_path / "no_flock.so"
    (tmp_path / "no_flock.c").write_text(NO_FLOCK)
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "no_flock.c")]
    subprocess.run(command, check=True)
    cache = str(tmp_path / "cache")
    return os.environ | {"LD_PRELOAD": str(library), "ELMAN_CACHE": cache, "OMP_NUM_THREADS": "1"}


@pytest.mark.compiler
@pytest.mark.parametrize(
    "code",
    [
        code if code == errno.ENOLCK else pytest.param(code, marks=pytest.mark.slow)
        for code in CODES
    ],
)
def test_a_run_says_that_there_are_no_locks_and_goes_on(
    tmp_path: Path, preloaded: dict[str, str], code: int
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "learn this line by heart"}\n' * 200)
    settings = ["model.dim=128", "model.depth=1", "model.n_heads=2", "model.n_state=8"]
    settings += ["train.steps=2", "train.val_every=null", "data.val_sample=64", "data.val_window=8"]
    settings += ["train.batch_size=2", "train.chunk_size=8", "train.device=cpu"]
    ended = subprocess.run(
        [sys.executable, "-m", "elman", f"data.path={texts}", *settings, "log.tensorboard=false"],
        cwd=tmp_path,
        env=preloaded | {"FLOCK_ERRNO": str(code)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stderr.splitlines() if "has no locks" in line]
    assert all(f"({os.strerror(code)})" in line for line in told)
    places = [line.removeprefix("elman: ").partition(": ")[0] for line in told]
    assert [Path(place).relative_to(tmp_path).parts[0] for place in places] == [
        "cache",  # the pack
        "outputs",
        "cache",  # the kernels
    ]
    assert not list(tmp_path.rglob("*.holder"))


def test_without_locks_a_second_process_is_kept_out_until_the_first_is_killed(
    tmp_path: Path, no_locks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        try:
            with pytest.raises(UserError, match=rf"another process \(pid {first.pid} of .*wait"):
                RunLock(tmp_path).acquire()
            assert str(lock_holder(tmp_path)).startswith(f"{first.pid} of ")
        finally:
            first.send_signal(signal.SIGKILL)
    assert lock_holder(tmp_path) is None
    with RunLock(tmp_path):
        assert str(lock_holder(tmp_path)).startswith(f"{os.getpid()} of ")
        assert "its file system has no locks (No locks available)" in capsys.readouterr().err
    assert not (tmp_path / run_files.LOCK_HOLDER).exists()


def test_a_process_of_another_machine_is_left_to_the_user(tmp_path: Path, no_locks: None) -> None:
    """Nobody here can tell whether it lives: the line says what to type if it does not."""
    file = tmp_path / run_files.LOCK_HOLDER
    file.write_text(json.dumps({"pid": 7, "host": "node7/of another start", "started": "1"}))
    with pytest.raises(UserError, match=r"pid 7 of node7.*no locks.*type rm .*\.lock\.holder"):
        RunLock(tmp_path).acquire()
    file.unlink()
    with RunLock(tmp_path):
        pass


def test_without_locks_no_gpu_is_given_out(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    with pytest.raises(UserError, match=r"no locks \(No locks available\).*ELMAN_LOCKS=<folder>"):
        GpuLock("GPU-x", "run").take()


def test_without_locks_the_scratch_of_another_process_stays(tmp_path: Path, no_locks: None) -> None:
    others = tmp_path / "e88-abc" / "building-other"
    others.mkdir(parents=True)
    with making(tmp_path / "e88-abc", "e88"):
        pass
    assert others.is_dir()
