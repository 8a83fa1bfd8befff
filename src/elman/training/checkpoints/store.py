"""Checkpoints that survive a crash, a full disk and a kill at any moment.

One checkpoint is a folder ``checkpoints/step-<n>`` with ``model.safetensors`` (the weights for
evaluation), ``state.pt`` (all that a resumed run needs, loaded with ``weights_only``), the run's
``config.yaml``, its tokenizer if a token is no byte, and ``meta.json`` with the checksums of the
others. It is written under a temporary
name and then renamed. It is renamed again before it is removed. So a folder with a final name is
always whole.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import shlex
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elman.base.errors import UserError, first_line
from elman.base.run_files import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    EXPORT_CONFIG,
    META,
    METRICS,
    RESULT,
    STATE,
    STEP,
    TOKENIZER,
    WEIGHTS,
)
from elman.base.typed_in import relative
from elman.base.units import different_sizes
from elman.base.utf8_path import in_utf8
from elman.base.whole_file import HALF_WRITTEN, rename, sync, usual_permissions
from elman.base.yaml_file import YamlError, read_yaml
from elman.training.checkpoints import integrity
from elman.training.checkpoints.integrity import UNFINISHED, BadFileError, UnreadableError
from elman.training.checkpoints.retention import names_to_keep

_log = logging.getLogger("elman.checkpoints")


class CheckpointError(OSError):
    """A checkpoint could not be written; the message says what is still safe."""


class DamagedError(UserError):
    """A checkpoint is damaged; the message names another one beside it that is whole.

    Attributes:
        damage: What is wrong with which file.
        good: The newest other checkpoint in the same folder that is whole, if there is one.
    """

    def __init__(self, damage: BadFileError) -> None:
        self.damage = damage
        self.good = _newest_good(damage.file.parent)
        name = f"name {self.good} instead, which is whole"
        none = "no other checkpoint beside it is whole: restore the file, or name another run's"
        super().__init__(f"{damage}; {name if self.good else none}")

    def in_resume(self, run: Path) -> UserError:
        """Return the error line for a run that should resume from the damaged checkpoint."""
        folder = self.damage.file.parent
        if self.good is None:
            return UserError(
                f"{self.damage}; no other checkpoint of the run is whole: restore the file, or "
                "start a new run"
            )
        aside = folder.with_name(f"damaged-{folder.name}")
        return UserError(
            f"{self.damage}; {self.good} is whole: to resume from it, move the damaged one away "
            f"(mv {shlex.quote(str(folder))} {shlex.quote(str(aside))}) and type "
            f"elman train.resume={run}"
        )


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    path: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        """Optimizer steps done when it was saved."""
        return int(self.meta["step"])

    @property
    def val_bpb(self) -> float | None:
        """``val_bpb`` of exactly these weights, if they were validated."""
        value = self.meta.get("val_bpb")
        return None if value is None else float(value)

    def load_weights(self, model: nn.Module) -> None:
        """Copy the saved weights into ``model``.

        Raises:
            DamagedError: the file is damaged.
            UserError: it belongs to another model.
        """
        try:
            tensors = self._weights()
        except BadFileError as damage:
            raise DamagedError(damage) from None
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            first = str(error).splitlines()[-1].strip()
            raise UserError(
                f"{self.path / WEIGHTS}: does not fit this model ({first}); load it with the model "
                "that wrote it"
            ) from None

    def load_state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs; nothing in the file is ever executed.

        Raises:
            DamagedError: the file is damaged, or it does not hold the state of a run.
        """
        try:
            return self._state()
        except BadFileError as damage:
            raise DamagedError(damage) from None

    def config_tree(self) -> dict[str, Any]:
        """Return the configuration of the run that saved it, as plain containers.

        Raises:
            DamagedError: the file is damaged.
        """
        try:
            integrity.check(self.path, CONFIG, self.meta)
            return read_yaml(self.path / CONFIG)
        except BadFileError as damage:
            raise DamagedError(damage) from None
        except YamlError as error:
            raise DamagedError(BadFileError(self.path / CONFIG, f"damaged ({error})")) from None

    def tokenizer_text(self) -> str | None:
        """Return the definition of the run's tokenizer; None if there is none.

        Raises:
            DamagedError: the file is damaged.
        """
        if not (self.path / TOKENIZER).exists():
            return None
        try:
            integrity.check(self.path, TOKENIZER, self.meta)
            return (self.path / TOKENIZER).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            what = f"cannot be read ({first_line(error)})"
            raise DamagedError(BadFileError(self.path / TOKENIZER, what)) from None
        except BadFileError as damage:
            raise DamagedError(damage) from None

    def require_whole(self) -> None:
        """Read weights and state completely; raise BadFileError if one cannot be loaded."""
        self._weights()
        self._state()

    def _weights(self) -> dict[str, Tensor]:
        integrity.check(self.path, WEIGHTS, self.meta)
        try:
            with in_utf8(self.path / WEIGHTS) as path:
                return load_file(path)
        except (SafetensorError, OSError) as error:
            raise BadFileError(self.path / WEIGHTS, f"damaged ({first_line(error)})") from None

    def _state(self) -> dict[str, Any]:
        path = self.path / STATE
        integrity.check(self.path, STATE, self.meta)
        # Do not pass on torch's own text: it advises loading the file with weights_only=False.
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            what = "cannot be loaded safely (it holds more than numbers, text and tensors)"
            raise BadFileError(path, what) from None
        except Exception as error:  # zip and OS errors alike mean an unusable file
            raise BadFileError(path, f"damaged ({type(error).__name__} when read)") from None
        if not isinstance(state, dict):
            raise BadFileError(path, "damaged (it does not hold the state of a run)")
        return state


class CheckpointStore:
    """The ``checkpoints`` folder of one run: writes checkpoints, keeps the newest N and the best.

    Args:
        folder: The folder; made when the first checkpoint is saved.
        keep: N.
        config_text: The run's configuration, kept with each checkpoint.
        say: Called with a line about each failure that lost nothing.
        tokenizer: The definition of the run's tokenizer, kept likewise; None if there is none.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        config_text: str,
        say: Callable[[str], None] = _log.warning,
        tokenizer: str | None = None,
    ) -> None:
        self.folder, self._tokenizer = folder, tokenizer
        self._keep = keep
        self._config_text = config_text
        self._say = say

    def save(self, weights: dict[str, Any], state: dict[str, Any], meta: dict[str, Any]) -> Path:
        """Write one checkpoint and return its folder.

        Raises:
            CheckpointError: there is no room, or writing failed; earlier checkpoints are intact.
        """
        final = self.folder / f"{STEP}{meta['step']:07d}"
        scratch = self.folder / f"{UNFINISHED}{final.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.remove_unfinished()
            if (same := _if_whole(final)) is not None:
                self._add(same, meta)
            else:
                self._require_room(weights, state)
                self._write(scratch, weights, state, meta)
                self._put(scratch, final)
        except CheckpointError:
            raise
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise CheckpointError(
                f"{final}: not written ({first_line(error)}); safe: {self._safe()}"
            ) from error
        self._tidy()
        return final

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints whose files are all there with the saved lengths, oldest first."""
        checkpoints = [_if_whole(path) for path in _step_folders(self.folder)]
        return [checkpoint for checkpoint in checkpoints if checkpoint is not None]

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint, if there is one.

        Raises:
            DamagedError: it is damaged; an older one is never used instead.
        """
        folders = _step_folders(self.folder)
        return _opened(folders[-1]) if folders else None

    def best(self) -> Checkpoint | None:
        """Return the checkpoint with the smallest ``val_bpb``, if any was validated."""
        validated = [(c.val_bpb, c) for c in self.all() if c.val_bpb is not None]
        finite = [(bpb, checkpoint) for bpb, checkpoint in validated if isfinite(bpb)]
        return min(finite, key=lambda one: one[0])[1] if finite else None

    def remove_unfinished(self) -> None:
        """Remove the half-written and half-removed folders that a killed process left."""
        for pattern in (f"{UNFINISHED}*", f"{STEP}*/{HALF_WRITTEN}"):
            for path in self.folder.glob(pattern):
                with suppress(OSError):
                    _remove(path)

    def _write(
        self, scratch: Path, weights: dict[str, Any], state: dict[str, Any], meta: dict[str, Any]
    ) -> None:
        """Write the files of a checkpoint side by side; the meta file comes last."""
        texts = {CONFIG: self._config_text}
        if self._tokenizer is not None:
            texts[TOKENIZER] = self._tokenizer

        def put(name: str) -> integrity.Fingerprint:
            path = scratch / name
            if name == WEIGHTS:
                with usual_permissions(path):
                    save_file(weights, path)
            elif name == STATE:
                _save_state(state, path)
            else:
                path.write_text(texts[name], encoding="utf-8")
            return integrity.settle(path)

        scratch.mkdir()
        names = (WEIGHTS, STATE, *texts)
        with ThreadPoolExecutor(len(names)) as pool:
            found = dict(zip(names, pool.map(put, names), strict=True))
        integrity.write_meta(scratch, meta | integrity.files(found))

    def _put(self, scratch: Path, final: Path) -> None:
        """Give a finished folder its final name; a damaged folder of that name is removed."""
        if final.exists():
            _discard(final)
        rename(scratch, final)
        sync(self.folder)

    def _add(self, checkpoint: Checkpoint, meta: dict[str, Any]) -> None:
        """Add a validation result to the meta file of a saved step with the same weights."""
        known = checkpoint.meta | {key: value for key, value in meta.items() if value is not None}
        if known == checkpoint.meta:
            return
        try:
            integrity.write_meta(checkpoint.path, known)
        except OSError as error:
            self._say(
                f"warning: {checkpoint.path / META}: val_bpb not added ({first_line(error)}); "
                "the checkpoint itself is whole"
            )

    def _tidy(self) -> None:
        """Point ``best`` to the best checkpoint and remove those that are no longer needed."""
        with suppress(OSError):
            self._link_best()
            self._remove_outlived()
            return
        try:
            self._remove_outlived()  # on a full disk this makes room for the link
            self._link_best()
            self._remove_outlived()
            self.remove_unfinished()  # of the attempt before
        except OSError as error:
            self._say(
                f"warning: {self.folder}: old checkpoints were not removed ({first_line(error)}); "
                "every checkpoint in it is whole, and the next save tries again"
            )

    def _link_best(self) -> None:
        best, link = self.best(), self.folder / BEST
        if best is None or (link.is_symlink() and os.readlink(link) == best.path.name):
            return
        scratch = self.folder / f"{UNFINISHED}{BEST}"
        with suppress(FileNotFoundError):
            scratch.unlink()
        scratch.symlink_to(best.path.name)
        rename(scratch, link)

    def _remove_outlived(self) -> None:
        """Remove all but the newest N, the best one, and the one that ``best`` names."""
        whole = self.all()
        newest, best, link = whole[-self._keep :], self.best(), self.folder / BEST
        names = [best.path.name] if best is not None else []
        names += [os.readlink(link)] if link.is_symlink() else []
        keeping = names_to_keep([checkpoint.path.name for checkpoint in whole], self._keep, names)
        full = len(newest) == self._keep
        for path in _step_folders(self.folder):
            older = newest and _step_of(path) < newest[0].step
            if path.name not in keeping and older and (full or not _usable(path)):
                _discard(path)

    def _require_room(self, weights: dict[str, Any], state: dict[str, Any]) -> None:
        needed = checkpoint_size(_tensor_bytes(weights), _tensor_bytes(state))
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            needs, left = different_sizes(needed, free)
            raise CheckpointError(
                f"{self.folder}: a checkpoint needs {needs} and the disk has {left} free; "
                f"safe: {self._safe()}; make room there"
            )

    def _safe(self) -> str:
        try:
            whole = self.all()
        except OSError:
            return f"what {self.folder} already held"
        return str(whole[-1].path) if whole else "no checkpoint yet"


class _Stream:
    """A file that torch writes; it remembers why a write failed, which torch does not say."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _save_state(state: dict[str, Any], path: Path) -> None:
    """Write a state without the checksums of its parts: no loader reads them, and they take longer
    than the rest. The meta file has one of the whole file.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        with path.open("wb") as file:
            stream: Any = _Stream(file)
            try:
                torch.save(state, stream)
            except RuntimeError:
                if stream.error is not None:
                    raise stream.error from None
                raise
    finally:
        torch.serialization.set_crc32_options(before)


def checkpoint_size(weights: int, state: int) -> int:
    """Return the bytes of disk that a checkpoint of so many bytes of tensors may need."""
    return int(1.05 * (weights + state)) + (1 << 20)


def find_checkpoint(place: str | Path) -> Checkpoint:
    """Return the checkpoint that ``place`` names.

    Args:
        place: A run folder or its ``checkpoints`` folder (which mean the newest checkpoint),
            or one checkpoint's own folder, ``best`` included.

    Raises:
        DamagedError: it is damaged; no other one is used instead.
        UserError: there is none.
    """
    path = Path(place).expanduser()
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path}: leads to {os.readlink(path)}, which is gone; name another")
    if not path.exists():
        raise UserError(f"{path}: no such folder; name a run folder (outputs/...) or a checkpoint")
    if (path / EXPORT_CONFIG).is_file():
        raise UserError(
            f"{path}: holds an exported model, which elman.load and transformers read; name a run "
            "folder (outputs/...) or a checkpoint"
        )
    if any((path / name).is_file() for name in (META, WEIGHTS)) or _is_step(path):
        return _opened(path)
    for folder in (path / CHECKPOINTS, path):
        newest = CheckpointStore(folder, 1, "").newest() if folder.is_dir() else None
        if newest is not None:
            return newest
    runs = sorted(inside.parent for inside in path.glob(f"*/{CHECKPOINTS}"))
    if runs:
        first = relative(runs[0])
        raise UserError(f"{path}: a folder of {len(runs)} runs; name one, as in {first}")
    if _saves_none(path):
        raise UserError(
            f"{path}: this run saves no checkpoint (train.checkpoints=false); start a new one with "
            "train.checkpoints=true"
        )
    if (path / METRICS).is_file() and not (path / RESULT).exists():
        raise UserError(
            f"{path}: this run has saved no checkpoint yet; wait for its first one, or type "
            f"elman train.resume={shlex.quote(str(path))} if it was killed"
        )
    raise UserError(f"{path}: holds no checkpoint; name a run folder or one of its checkpoints")


def _saves_none(run: Path) -> bool:
    """Whether a folder is a run that was told to save no checkpoint."""
    try:
        train = read_yaml(run / CONFIG).get("train")
    except YamlError:
        return False
    return isinstance(train, dict) and train.get("checkpoints") is False


def _opened(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder; its weights must be there, its state may be missing."""
    try:
        checkpoint = Checkpoint(path, integrity.read_meta(path))
        integrity.check_length(path, WEIGHTS, checkpoint.meta)
    except BadFileError as damage:
        raise DamagedError(damage) from None
    return checkpoint


def _if_whole(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a folder if every file has its saved length (a quick check).

    Raises:
        OSError: the system does not let us look; a caller must not treat this as damage and
            remove the checkpoint.
    """
    try:
        checkpoint = Checkpoint(path, integrity.read_meta(path))
        for name in (WEIGHTS, STATE, CONFIG):
            integrity.check_length(path, name, checkpoint.meta)
    except UnreadableError as error:
        raise OSError(str(error)) from None
    except BadFileError:
        return None
    return checkpoint


def _newest_good(damaged: Path) -> Path | None:
    """Return the newest checkpoint beside a damaged one that can be loaded."""
    damaged = damaged.resolve()
    for path in reversed(_step_folders(damaged.parent)):
        if path == damaged:
            continue
        with suppress(BadFileError):
            Checkpoint(path, integrity.read_meta(path)).require_whole()
            return relative(path)
    return None


def _step_folders(folder: Path) -> list[Path]:
    """Return the folders of checkpoints, whole or not, oldest first."""
    return sorted(filter(_is_step, folder.glob(f"{STEP}*")), key=_step_of)


def _is_step(path: Path) -> bool:
    return re.fullmatch(rf"{STEP}\d+", path.name) is not None and path.is_dir()


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(STEP))


def _usable(path: Path) -> bool:
    """Whether the weights in a folder are usable."""
    return (path / META).is_file() and (path / WEIGHTS).is_file()


def _discard(path: Path) -> None:
    """Remove a checkpoint; if killed halfway, nothing is left that looks like one."""
    going = path.with_name(f"{UNFINISHED}old-{path.name}")
    if going.exists():
        _remove(going)
    rename(path, going)
    _remove(going)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _tensor_bytes(tree: Any) -> int:
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(_tensor_bytes(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(_tensor_bytes(value) for value in tree)
    return 64
