"""Writes and reads the folder of an exported model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elman.base.errors import UserError, first_line
from elman.base.run_files import (
    CARD,
    EXPORT_CONFIG,
    GENERATION,
    MODELING,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
)
from elman.base.utf8_path import in_utf8
from elman.base.whole_file import put_json, put_text, usual_permissions, whole_folder
from elman.config.run_config import RunConfig, flatten
from elman.config.validate import validate_model
from elman.data.text import reset_token
from elman.data.tokenizers.opening import tokenizer_of_definition
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.export import files
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.sections.model import VOCAB_SIZE, ModelConfig
from elman.sections.training import BYTES

# The module of ElmanForCausalLM that holds the language model.
_PREFIX = "model."
# What reading a file of JSON that is not what it should be may raise.
_DAMAGED = (AttributeError, KeyError, OSError, TypeError, ValueError)


@dataclass(frozen=True)
class ExportedModel:
    """A model in an exported folder.

    Attributes:
        path: The folder.
        model: Its section ``model``.
        reset_after: As :class:`~elman.models.language_model.LanguageModel` takes it.
        tokens: What its tokens are called; None if they are bytes.
    """

    path: Path
    model: ModelConfig
    reset_after: int | None
    tokens: str | None

    def tokenizer(self) -> Tokenizer | None:
        """Return its tokenizer; None if its tokens are bytes.

        Raises:
            UserError: its file cannot be read, or its package is missing.
        """
        if self.tokens is None:
            return None
        file = self.path / TOKENIZER
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{file}: cannot be read ({first_line(error)}), and the model reads its tokens; "
                "save the tokenizer there with its save_pretrained, or export the model again"
            ) from None
        return tokenizer_of_definition(text, self.tokens, str(file))

    def load_weights(self, model: nn.Module) -> None:
        """Copy the weights into ``model``.

        Raises:
            UserError: they are missing or damaged, or belong to another model.
        """
        file = self.path / WEIGHTS
        try:
            names = [WEIGHTS]
            if not file.exists() and (index := self.path / WEIGHTS_INDEX).is_file():
                file = index
                names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            tensors: dict[str, Tensor] = {}
            for name in names:
                with in_utf8(self.path / name) as path:
                    tensors |= load_file(path)
            model.load_state_dict({name.removeprefix(_PREFIX): w for name, w in tensors.items()})
        except (*_DAMAGED, RuntimeError, SafetensorError) as error:
            last = (str(error).splitlines() or [type(error).__name__])[-1].strip()
            raise UserError(f"{file}: cannot be loaded ({last}); export the model again") from None


def read_exported(place: str | Path) -> ExportedModel | None:
    """Return the model of an exported folder; None if the folder is of another kind.

    Raises:
        UserError: its configuration is damaged, or needs what is not here.
    """
    path = Path(place).expanduser()
    file = path / EXPORT_CONFIG
    if not file.is_file():
        return None
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        if tree.get("model_type") != files.OURS:
            return None
        section = tree[files.OURS]
        model = validate_model(section["model"])
        # Without a tokenizer's name in older folders.
        name = section.get("tokenizer", BYTES if model.vocab_size == VOCAB_SIZE else TOKENIZER)
        tokens = None if name == BYTES else str(name)
        return ExportedModel(path, model, section["reset_after"], tokens)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except _DAMAGED as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{file}: damaged ({reason}); export the model again") from None


def build_exported(section: Mapping[str, Any], backend: str, device: str) -> LanguageModel:
    """Build the model that ``config.json`` describes; the modeling file of every folder calls this.

    Args:
        section: What stands below ``elman`` there.
        backend: As ``kernels.backend``.
        device: Where the weights are made.

    Raises:
        UserError: this version cannot build it.
    """
    model, reset_after = validate_model(section["model"]), section["reset_after"]
    return build_model(model, backend=backend, device=device, reset_after=reset_after)


def write_exported(
    to: Path,
    config: RunConfig,
    weights: Mapping[str, Tensor],
    card: str,
    tokenizer: Tokenizer | None = None,
) -> list[Path]:
    """Write the folder of a model, whole or not at all, and return its files.

    Args:
        to: The folder; there is none, or it is empty.
        config: The configuration of its run.
        weights: Its state dict, on the CPU.
        card: The model card.
        tokenizer: Its tokenizer, made of a ``tokenizer.json``; None if its tokens are bytes.

    Raises:
        UserError: it cannot be written.
    """
    section, reset_after = flatten(config)["model"], reset_token(config.data, tokenizer)
    tokens = files.tokenizer() if tokenizer is None else files.learned_tokenizer(tokenizer)
    small = {
        EXPORT_CONFIG: files.config_json(config.model, section, reset_after, tokenizer),
        GENERATION: files.generation_config(tokenizer),
        TOKENIZER: tokens,
        TOKENIZER_CONFIG: files.tokenizer_config(),
    }
    tensors = {f"{_PREFIX}{name}": tensor.contiguous() for name, tensor in weights.items()}
    try:
        with whole_folder(to) as folder:
            for name, tree in small.items():
                put_json(folder / name, tree)
            put_text(folder / MODELING, Path(__file__).with_name(MODELING).read_text("utf-8"))
            put_text(folder / CARD, card)
            with usual_permissions(folder / WEIGHTS):
                save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"export.to={to}: cannot be written ({reason}); name a folder where you may write, "
            "on a disk with room"
        ) from None
    return sorted(to.iterdir())
