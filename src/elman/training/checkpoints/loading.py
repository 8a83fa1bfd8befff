"""Load the model of a run folder, for ``elman.load``, ``mode=eval`` and ``mode=generate``."""

from __future__ import annotations

from pathlib import Path

import torch

from elman.config.run_config import RunConfig
from elman.config.validate import validate
from elman.models.backends import resolve_backend, slow_note
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.training.checkpoints.store import Checkpoint, find_checkpoint


def slow_path_note(
    place: str | Path, device: str | torch.device, backend: str, allow_slow: bool
) -> str | None:
    """Return the warning that a run's model is computed by plain PyTorch, or None.

    Args:
        place: As for :func:`load`.
        device: Where the model goes.
        backend: As ``kernels.backend``.
        allow_slow: As ``baseline.allow_slow``.

    Raises:
        UserError: as :func:`load`.
    """
    model = saved_config(find_checkpoint(place)).model
    cell = registry.cell(model.cell).under(model.options)
    chosen = resolve_backend(cell, backend, device, allow_slow=allow_slow)
    return slow_note(cell, backend, device, chosen)


def load(
    place: str | Path,
    device: str | torch.device = "cpu",
    backend: str = "auto",
    allow_slow: bool = False,
    context: int | None = None,
) -> LanguageModel:
    """Return the trained model of a run, in evaluation mode.

    Nothing in the folder is executed: the names in its configuration are looked up in the
    registry of cells, and the weights are safetensors.

    Args:
        place: A run folder (its newest checkpoint is loaded) or one checkpoint's folder.
        device: Where the model goes.
        backend: As ``kernels.backend``.
        allow_slow: As ``baseline.allow_slow``.
        context: Bytes that an attention attends to in place of its own ``model.context``.

    Raises:
        UserError: there is no checkpoint, it is damaged, or its backend or package is missing.
    """
    checkpoint = find_checkpoint(place)
    config = saved_config(checkpoint)
    options = config.model.options | ({} if context is None else {"context": context})
    model = build_model(
        config.model.model_copy(update={"options": options}),
        backend=backend,
        device=device,
        allow_slow=allow_slow,
        reset_after=config.data.reset_after,
    )
    checkpoint.load_weights(model)
    return model.eval()


def saved_config(checkpoint: Checkpoint) -> RunConfig:
    """Return the configuration of the run that saved ``checkpoint``.

    Raises:
        DamagedError: its file is damaged.
        UserError: it names a setting that no longer exists.
    """
    return validate(checkpoint.config_tree())
