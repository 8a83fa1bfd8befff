"""Load the model of a run folder, for ``elman.load``, ``mode=eval`` and ``mode=generate``.

``elman.load`` also reads what ``mode=export`` has written.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import torch

from elman.base.errors import UserError
from elman.base.run_files import TOKENIZER
from elman.config.run_config import RunConfig
from elman.config.validate import validate
from elman.data.text import reset_token
from elman.data.tokenizers.opening import tokenizer_of_definition
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.export.folder import ExportedModel, read_exported
from elman.models.blocks import init
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.models.mixed import resolved_backends, slow_notes
from elman.sections.training import BYTES, DataConfig, token_name
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
    chosen = resolved_backends(model, backend, device, allow_slow=allow_slow)
    return "; ".join(slow_notes(model, backend, device, chosen)) or None


def load(
    place: str | Path,
    device: str | torch.device = "cpu",
    backend: str = "auto",
    allow_slow: bool = False,
    context: Callable[[int], int] | None = None,
) -> LanguageModel:
    """Return the trained model of a run, in evaluation mode.

    If its tokens are no bytes, ``model.tokenizer`` encodes text for it.

    Nothing in the folder is executed: the names in its configuration are looked up in the
    registry of cells, and the weights are safetensors.

    Args:
        place: A run folder (its newest checkpoint is loaded), one checkpoint's folder, or a folder
            of ``mode=export``.
        device: Where the model goes.
        backend: As ``kernels.backend``.
        allow_slow: As ``baseline.allow_slow``.
        context: Returns the bytes that an attention attends to, from its own ``model.context``.

    Raises:
        UserError: there is no checkpoint, it is damaged, or its backend or package is missing.
    """
    source: Checkpoint | ExportedModel
    if (exported := read_exported(place)) is not None:
        source, section, reset_after = exported, exported.model, exported.reset_after
        tokenizer = exported.tokenizer()
    else:
        source = find_checkpoint(place)
        config = saved_config(source)
        tokenizer = saved_tokenizer(source, config)
        section, reset_after = config.model, reset_token(config.data, tokenizer)
    with init.zeros():
        model = build_model(
            section if context is None else section.with_option("context", context),
            backend=backend,
            device=device,
            allow_slow=allow_slow,
            reset_after=reset_after,
        )
    source.load_weights(model)
    model.tokenizer = tokenizer
    return model.eval()


def saved_config(checkpoint: Checkpoint) -> RunConfig:
    """Return the configuration of the run that saved ``checkpoint``.

    Raises:
        DamagedError: its file is damaged.
        UserError: it names a setting that no longer exists.
    """
    return validate(checkpoint.config_tree())


def check_tokens(checkpoint: Checkpoint, tokenizer: Tokenizer | None, where: str) -> None:
    """Raise UserError if other tokens than those of a checkpoint would be read with its weights.

    Args:
        checkpoint: The checkpoint.
        tokenizer: Makes the tokens; None if they are bytes.
        where: The setting that names the checkpoint.
    """
    file = checkpoint.path / TOKENIZER
    text = checkpoint.tokenizer_text()
    before = None if text is None else tokenizer_of_definition(text, TOKENIZER, str(file))
    tables = [None if one is None else one.table() for one in (before, tokenizer)]
    if tables[0] != tables[1]:
        now = "bytes" if tokenizer is None else f"those of {tokenizer.name}"
        theirs = BYTES if text is None else shlex.quote(str(file))
        raise UserError(
            f"{where}: its weights were trained with other tokens than {now}; type "
            f"data.tokenizer={theirs} to take theirs"
        )


def saved_tokenizer(checkpoint: Checkpoint, config: RunConfig) -> Tokenizer | None:
    """Return the tokenizer of the run that saved ``checkpoint``; None if its tokens are bytes.

    Raises:
        DamagedError: its file is damaged.
        UserError: the file or its package is missing.
    """
    data = config.data
    if not isinstance(data, DataConfig) or data.has_bytes:
        return None
    file = checkpoint.path / TOKENIZER
    if (text := checkpoint.tokenizer_text()) is None:
        raise UserError(f"{file}: missing, and the model reads its tokens; restore the file")
    return tokenizer_of_definition(text, token_name(data.model_dump()), str(file))
