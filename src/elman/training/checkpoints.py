"""Checkpoints that survive a crash, a full disk and a kill at any moment.

One checkpoint is a folder ``checkpoints/step-<n>`` with ``model.safetensors`` (the weights to
keep), ``state.pt`` (all that a resumed run needs, loaded with ``weights_only``), ``meta.json`` and
the run's ``config.yaml``. It is written beside its final place and renamed, so a folder of that
name is always whole; older ones go only after that.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from elman.disk import sizes
from elman.errors import UserError

WEIGHTS, STATE, META, CONFIG = "model.safetensors", "state.pt", "meta.json", "config.yaml"
BEST = "best"
_PREFIX, _UNFINISHED = "step-", ".unfinished-"


class CheckpointError(OSError):
    """A checkpoint could not be written; the message says what is still safe."""


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint on disk."""

    path: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        """Optimizer steps done when it was saved."""
        return int(self.meta["step"])

    @property
    def val_bpb(self) -> float | None:
        """Validation figure of these very weights, if they were validated."""
        value = self.meta.get("val_bpb")
        return None if value is None else float(value)

    def load_weights(self, model: nn.Module) -> None:
        """Copy the kept weights into ``model``.

        Raises:
            UserError: the file is damaged or belongs to another model.
        """
        path = self.path / WEIGHTS
        try:
            tensors = load_file(path)
            model.load_state_dict(tensors)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: damaged ({error}); name another checkpoint") from None
        except RuntimeError as error:
            first = str(error).splitlines()[-1].strip()
            raise UserError(
                f"{path}: does not fit this model ({first}); load it with the model that wrote it"
            ) from None

    def load_state(self) -> dict[str, Any]:
        """Return what a resumed run needs; nothing in the file is ever executed."""
        path = self.path / STATE
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickle, zip and OS errors alike mean an unusable file
            first = str(error).splitlines()[0]
            raise UserError(
                f"{path}: cannot be loaded safely ({first}); remove {self.path} to resume from an "
                "older checkpoint"
            ) from None
        assert isinstance(state, dict)
        return state


class CheckpointStore:
    """The ``checkpoints`` folder of one run: writes, keeps the newest N and the best."""

    def __init__(self, folder: Path, keep: int, config_text: str) -> None:
        self.folder = folder
        self._keep = keep
        self._config_text = config_text

    def save(self, weights: dict[str, Any], state: dict[str, Any], meta: dict[str, Any]) -> Path:
        """Write one checkpoint and return its folder.

        Raises:
            CheckpointError: there is no room, or writing failed; earlier checkpoints are intact.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.remove_unfinished()
        self._require_room(weights, state)
        final = self.folder / f"{_PREFIX}{meta['step']:07d}"
        scratch = self.folder / f"{_UNFINISHED}{final.name}"
        if final.exists():  # same step, same weights: only what is known of them is new
            _write_meta(final, meta)
            self._forget_old()
            return final
        try:
            scratch.mkdir()
            save_file(weights, scratch / WEIGHTS)
            torch.save(state, scratch / STATE)
            _write_meta(scratch, meta)
            (scratch / CONFIG).write_text(self._config_text)
            for name in (WEIGHTS, STATE, CONFIG):
                _sync(scratch / name)
            _sync(scratch)
            os.rename(scratch, final)
            _sync(self.folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise CheckpointError(
                f"{final}: not written ({error}); safe: {self._safe()}"
            ) from error
        self._forget_old()
        return final

    def all(self) -> list[Checkpoint]:
        """Return the whole checkpoints, oldest first."""
        found = []
        for path in self.folder.glob(f"{_PREFIX}*"):
            if all((path / name).is_file() for name in (WEIGHTS, STATE, META)):
                found.append(Checkpoint(path, json.loads((path / META).read_text())))
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint, if there is one."""
        found = self.all()
        return found[-1] if found else None

    def best(self) -> Checkpoint | None:
        """Return the checkpoint with the smallest validation figure, if any was validated."""
        validated = [c for c in self.all() if c.val_bpb is not None]
        return min(validated, key=lambda c: c.val_bpb or 0.0) if validated else None

    def remove_unfinished(self) -> None:
        """Remove what a killed process left half written."""
        for path in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _forget_old(self) -> None:
        best = self.best()
        if best is not None:
            link = self.folder / f"{_UNFINISHED}{BEST}"
            link.symlink_to(best.path.name)
            os.replace(link, self.folder / BEST)
        for checkpoint in self.all()[: -self._keep]:
            if best is None or checkpoint.path != best.path:
                shutil.rmtree(checkpoint.path)

    def _require_room(self, weights: dict[str, Any], state: dict[str, Any]) -> None:
        needed = int(1.05 * (_tensor_bytes(weights) + _tensor_bytes(state))) + (1 << 20)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            wanted, left = sizes(needed, free)
            raise CheckpointError(
                f"{self.folder}: a checkpoint needs {wanted} and the disk has {left} free; "
                f"safe: {self._safe()}; make room there"
            )

    def _safe(self) -> str:
        newest = self.newest()
        return str(newest.path) if newest else "no checkpoint yet"


def find_checkpoint(place: str | Path) -> Checkpoint:
    """Return the checkpoint that ``place`` names.

    Args:
        place: A run folder or its ``checkpoints`` folder (the newest one is meant), or one
            checkpoint's own folder, ``best`` included.

    Raises:
        UserError: there is none.
    """
    path = Path(place).expanduser()
    if not path.exists():
        raise UserError(f"{path}: no such folder; name a run folder (outputs/...) or a checkpoint")
    if (path / META).is_file() and (path / WEIGHTS).is_file():
        return Checkpoint(path, json.loads((path / META).read_text()))
    for folder in (path / "checkpoints", path):
        newest = CheckpointStore(folder, 1, "").newest() if folder.is_dir() else None
        if newest is not None:
            return newest
    raise UserError(f"{path}: holds no checkpoint; name a run folder or one of its checkpoints")


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    scratch = folder / f"{_UNFINISHED}{META}"
    scratch.write_text(json.dumps(meta, indent=2) + "\n")
    _sync(scratch)
    os.replace(scratch, folder / META)


def _tensor_bytes(tree: Any) -> int:
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(_tensor_bytes(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(_tensor_bytes(value) for value in tree)
    return 64


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
