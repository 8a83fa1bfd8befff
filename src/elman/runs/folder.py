"""Run folders: one for each run, made by an exclusive mkdir, locked while a process works in it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import yaml

from elman.base import run_files
from elman.base.closing import Closing
from elman.base.errors import UserError
from elman.base.file_lock import FileLock
from elman.base.seals import sealed_text
from elman.base.whole_file import put_text
from elman.base.yaml_file import YamlError, read_yaml
from elman.config.newer_settings import without_newer
from elman.config.run_config import MODES, RunConfig, flatten

_ATTEMPTS = 1000
# A process that only asks who runs in a folder holds the folder's lock for a moment.
_LOOKS, _LOOK_SECONDS = 4, 0.05


def config_hash(config: RunConfig) -> str:
    """Return eight hexadecimal digits that identify a run; ``train.resume`` keeps them."""
    tree = flatten(config)
    tree["train"].pop("resume")
    text = json.dumps(without_newer(tree), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_name(config: RunConfig) -> str:
    """Return ``<model>_<hash>``, safe as part of a file name; a probe has its run's name."""
    name = config.model.name
    if config.probe is not None:
        name = f"probe-{Path(config.probe.checkpoint).name}"
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}_{config_hash(config)}"


def make_folder(
    root: Path,
    name: str,
    now: Callable[[], datetime] = datetime.now,
    key: str = "hydra.run.dir",
) -> Path:
    """Make and return ``root/<date>/<time with microseconds>_<name>``, which no other run has.

    Args:
        root: The folder for all of them.
        name: What its name ends with.
        now: Returns the time.
        key: The setting that names another folder.

    Raises:
        UserError: the folder cannot be made there.
    """
    for _ in range(_ATTEMPTS):
        time = now()
        folder = root / f"{time:%Y-%m-%d}" / f"{time:%H-%M-%S-%f}_{name}"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError as error:
            if not folder.is_dir():
                raise _cannot_make(folder, key, error) from None
            continue  # another run took this microsecond
        except FileNotFoundError:
            continue  # another run has just removed the date's folder, which it left empty
        except OSError as error:
            raise _cannot_make(folder, key, error) from None
        return folder.absolute()
    raise UserError(f"{root}: no free folder name after {_ATTEMPTS} attempts; check the clock")


def claim_folder(folder: Path, key: str, config: RunConfig | None = None) -> Path:
    """Make a folder that the user named, or take it if it is empty.

    It is also taken if a killed process left it: the same command goes on there.

    Args:
        folder: The folder.
        key: The setting with which the user named it.
        config: The job.

    Raises:
        UserError: it is not empty, or cannot be made.
    """
    if config is not None and _left_unfinished(folder, config):
        return folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # If two processes find the same empty folder, only one can make the file.
        os.close(os.open(folder / run_files.LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        raise _occupied(folder, key) from None
    except OSError as error:
        raise _cannot_make(folder, key, error) from None
    if any(path.name != run_files.LOCK for path in folder.iterdir()):
        (folder / run_files.LOCK).unlink()
        raise _occupied(folder, key)
    return folder.absolute()


def check_free(folder: Path, key: str) -> None:
    """Raise UserError if :func:`claim_folder` would, as far as one can tell without making it.

    Args:
        folder: The folder.
        key: The setting with which the user named it.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        raise _occupied(folder, key)
    above = next(place for place in folder.absolute().parents if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        code = errno.EACCES if above.is_dir() else errno.ENOTDIR
        raise _cannot_make(folder, key, OSError(code, os.strerror(code)))


def discard_folder(folder: Path) -> None:
    """Remove a folder whose run never began, and parent folders that this leaves empty.

    A folder with a result, a checkpoint or a single metric in it is kept.
    """
    metrics = folder / run_files.METRICS
    results = {mode.result_file for mode in MODES.values()}
    begun = [folder / name for name in (*results, run_files.CHECKPOINTS)]
    if any(path.exists() for path in begun) or (metrics.exists() and metrics.stat().st_size):
        return
    shutil.rmtree(folder)
    date, root = folder.parent, folder.parent.parent
    if re.fullmatch(r"\d{4}-\d\d-\d\d", date.name) and root.name == "outputs":
        with contextlib.suppress(OSError):  # not empty
            date.rmdir()
            root.rmdir()


def _left_unfinished(folder: Path, config: RunConfig) -> bool:
    """Whether a folder has this job without a result, of a mode that ``train.resume`` leaves."""
    mode = MODES[config.mode]
    if mode.result_file == run_files.RESULT or (folder / mode.result_file).exists():
        return False
    try:
        text = (folder / run_files.CONFIG).read_text(encoding="utf-8")
    except OSError:
        return False
    return text == sealed_text(config_text(config))


def _occupied(folder: Path, key: str) -> UserError:
    if not folder.is_dir():
        return UserError(f"{key}={folder}: this is a file; name another folder")
    of_others = {mode.result_file for mode in MODES.values()} - {run_files.RESULT}
    if any((folder / name).exists() for name in of_others):
        return UserError(f"{key}={folder}: holds a result; name a new folder or drop {key}")
    if (folder / run_files.CONFIG).exists():
        return UserError(
            f"{key}={folder}: holds another run; name a new folder, drop {key}, "
            f"or continue that run with train.resume={folder}"
        )
    return UserError(f"{key}={folder}: is not empty; name a new folder or drop {key}")


def _cannot_make(folder: Path, key: str, error: OSError) -> UserError:
    return UserError(
        f"{folder}: cannot make this folder ({error.strerror}); "
        f"start elman where you may write, or name a folder with {key}=<folder>"
    )


class RunLock(Closing):
    """Exclusive hold on a run folder by this process, released when the process ends.

    A process can take it several times: the command line holds it from before the run until after
    it, and a trainer that is called directly takes it itself. Use it as a context manager or with
    :meth:`acquire` and :meth:`release`.
    """

    _held: ClassVar[dict[Path, tuple[FileLock, int]]] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def acquire(self) -> None:
        """Take the lock, or raise UserError that names the process that has it."""
        lock, count = self._held.get(self.folder, (_lock_of(self.folder), 0))
        if count == 0:
            self._take(lock)
        self._held[self.folder] = (lock, count + 1)

    def release(self) -> None:
        """Release the lock after as many calls as it was taken; do nothing if it is not held."""
        if self.folder not in self._held:
            return
        lock, count = self._held.pop(self.folder)
        if count > 1:
            self._held[self.folder] = (lock, count - 1)
        else:
            lock.drop()

    def _take(self, lock: FileLock) -> None:
        for _ in range(_LOOKS):
            if lock.take(f"{os.getpid()}\n"):
                with contextlib.suppress(OSError):
                    _date_after_results(lock.path, self.folder)
                return
            time.sleep(_LOOK_SECONDS)
        raise UserError(
            f"{self.folder}: another process ({lock.holder()}) is running in it; "
            f"{lock.remedy() or 'wait for it to end or stop it first'}"
        )

    def open(self) -> None:
        """Take the lock; see :meth:`acquire`."""
        self.acquire()

    def close(self) -> None:
        """Release the lock; see :meth:`release`."""
        self.release()


def _lock_of(folder: Path) -> FileLock:
    return FileLock(
        folder / run_files.LOCK, stand_in=folder / run_files.LOCK_HOLDER, lasting="the run lasts"
    )


def _date_after_results(lock: Path, folder: Path) -> None:
    """Make the file of a lock younger than earlier results, also if the clock was set back.

    A result that is younger than the lock counts as that of the process which holds it.
    """
    newest = max((path.stat().st_mtime_ns for path in folder.glob("*.json")), default=0)
    if lock.stat().st_mtime_ns <= newest:
        os.utime(lock, ns=(newest + 1, newest + 1))


def lock_holder(folder: Path) -> str | None:
    """Return the id of the process that runs in a folder, or None if none does.

    A process that starts in the folder at this moment is not refused. The id is valid only on the
    machine of that process.
    """
    who = _lock_of(folder).current_holder()
    return None if who is None else who.removeprefix("pid ")


def config_text(config: RunConfig) -> str:
    """Return the text of ``config.yaml`` for a configuration."""
    return str(yaml.safe_dump(flatten(config), sort_keys=False))


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.yaml``, from which ``train.resume`` restores the run, with its digest."""
    put_text(folder / run_files.CONFIG, sealed_text(config_text(config)))


def read_config(folder: Path, key: str) -> dict[str, Any]:
    """Return the tree in ``folder/config.yaml``; ``key`` is the setting that names the folder.

    Raises:
        UserError: there is no such folder, or it is not a run folder.
    """
    path = folder / run_files.CONFIG
    if not folder.exists():
        raise UserError(f"{key}={folder}: no such folder; runs are below outputs/")
    if not path.is_file():
        inside = next(
            (above for above in folder.parents if (above / run_files.CONFIG).is_file()), None
        )
        hint = f"name {inside}" if inside else "name a folder that elman made below outputs/"
        raise UserError(f"{key}={folder}: not a run folder (no {run_files.CONFIG} in it); {hint}")
    run = folder.parent.parent
    if folder.parent.name == run_files.CHECKPOINTS and (run / run_files.CONFIG).is_file():
        raise UserError(f"{key}={folder}: one checkpoint of a run, not a run folder; name {run}")
    try:
        return read_yaml(path)
    except YamlError as error:
        raise UserError(f"{path}: cannot be read ({error}); {restoring(folder)}") from None


def restoring(folder: Path) -> str:
    """Return what to do about a damaged ``config.yaml``: copy that of the newest checkpoint."""
    copies = [
        copy
        for path in run_files.checkpoints_in(folder)
        if (copy := path / run_files.CONFIG).is_file()
    ]
    if not copies:
        return "restore the file"
    return f"restore the file: cp {shlex.quote(str(copies[-1]))} {shlex.quote(str(folder))}"
