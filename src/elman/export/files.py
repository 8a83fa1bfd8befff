"""The small files of an exported folder, as Hugging Face's libraries read them. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from elman.base.run_files import MODELING
from elman.base.version import __version__
from elman.data.tokenizers.hugging_face import used_parts
from elman.sections.model import VOCAB_SIZE, ModelConfig
from elman.sections.modes import GenerateConfig
from elman.sections.training import SEPARATOR

OURS = "elman"
"""The ``model_type``, and the key of config.json below which stands what elman reads back."""
_CLASSES = {"AutoConfig": "ElmanConfig", "AutoModelForCausalLM": "ElmanForCausalLM"}
_ASCII = 128


def config_json(
    model: ModelConfig,
    section: Mapping[str, Any],
    reset_after: int | None,
    separator: int = SEPARATOR[0],
) -> dict[str, Any]:
    """Return ``config.json``.

    Args:
        model: The model.
        section: The same with the cell's options as keys, as a run's configuration is written.
        reset_after: As :class:`~elman.models.language_model.LanguageModel` takes it.
        separator: The token between two documents.
    """
    module = MODELING.removesuffix(".py")
    return {
        "model_type": OURS,
        "architectures": [_CLASSES["AutoModelForCausalLM"]],
        "auto_map": {auto: f"{module}.{name}" for auto, name in _CLASSES.items()},
        OURS: {"version": __version__, "model": dict(section), "reset_after": reset_after},
        "vocab_size": model.vocab_size,
        "hidden_size": model.dim,
        "num_hidden_layers": model.depth,
        "dtype": "float32",
        **_ends(separator),
    }


def _ends(separator: int) -> dict[str, int]:
    return {f"{name}_token_id": separator for name in ("bos", "eos", "pad")}


def generation_config(separator: int = SEPARATOR[0]) -> dict[str, Any]:
    """Return ``generation_config.json``: text as ``mode=generate`` samples it, up to a 0x1e."""
    defaults = {name: field.default for name, field in GenerateConfig.model_fields.items()}
    return {
        "do_sample": True,
        "temperature": defaults["temperature"],
        "top_k": defaults["top_k"],
        "max_new_tokens": defaults["max_bytes"],
        **_ends(separator),
    }


def tokenizer_with_documents(definition: str) -> dict[str, Any]:
    """Return the ``tokenizer.json`` that cuts text at the separators first, as elman does.

    Args:
        definition: That of a run's tokenizer.
    """
    tree: dict[str, Any] = json.loads(definition)
    cut = {
        "type": "Split",
        "pattern": {"String": SEPARATOR.decode()},
        "behavior": "Isolated",
        "invert": False,
    }
    before = tree.get("pre_tokenizer")
    parts = [cut] if before is None else [cut, before]
    return used_parts(tree) | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}


def tokenizer() -> dict[str, Any]:
    """Return ``tokenizer.json``: the ids of a text are its bytes.

    A character of ASCII is its own token. Any other one is in no vocabulary, so that it falls back
    to the tokens of its bytes, all above 127. Text is never split, and nothing is ever merged.
    """
    names = [chr(byte) if byte < _ASCII else f"<0x{byte:02X}>" for byte in range(VOCAB_SIZE)]
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": SEPARATOR[0],
                "content": SEPARATOR.decode(),
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "vocab": {name: byte for byte, name in enumerate(names)},
            "merges": [],
        },
    }


def tokenizer_config(names: bool = True) -> dict[str, Any]:
    """Return ``tokenizer_config.json``; padding on the left, behind which a row starts.

    Args:
        names: Name the separator as the token of every end; a learned vocabulary has no name for
            it that is no text.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": SEPARATOR.decode() for name in ("bos", "eos", "pad") if names},
    }
