"""The small files of an exported folder, as Hugging Face's libraries read them. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from elman.base.errors import UserError
from elman.base.run_files import MODELING
from elman.base.version import __version__
from elman.data.tokenizers.hugging_face import byte_characters, require_tokenizers, used_parts
from elman.data.tokenizers.tokenizer import SAMPLE, Tokenizer
from elman.sections.model import VOCAB_SIZE, ModelConfig
from elman.sections.modes import GenerateConfig
from elman.sections.training import BYTES, SEPARATOR

OURS = "elman"
"""The ``model_type``, and the key of config.json below which stands what elman reads back."""
_CLASSES = {"AutoConfig": "ElmanConfig", "AutoModelForCausalLM": "ElmanForCausalLM"}
_ASCII = 128
_SETTING = "export.checkpoint"


def config_json(
    model: ModelConfig,
    section: Mapping[str, Any],
    reset_after: int | None,
    tokenizer: Tokenizer | None = None,
) -> dict[str, Any]:
    """Return ``config.json``.

    Args:
        model: The model.
        section: The same with the cell's options as keys, as a run's configuration is written.
        reset_after: As :class:`~elman.models.language_model.LanguageModel` takes it.
        tokenizer: That of the run; None if its tokens are bytes.
    """
    module = MODELING.removesuffix(".py")
    return {
        "model_type": OURS,
        "architectures": [_CLASSES["AutoModelForCausalLM"]],
        "auto_map": {auto: f"{module}.{name}" for auto, name in _CLASSES.items()},
        OURS: {
            "version": __version__,
            "model": dict(section),
            "reset_after": reset_after,
            "tokenizer": BYTES if tokenizer is None else tokenizer.name,
        },
        "vocab_size": model.vocab_size,
        "hidden_size": model.dim,
        "num_hidden_layers": model.depth,
        "dtype": "float32",
        **_ends(tokenizer),
    }


def _ends(tokenizer: Tokenizer | None) -> dict[str, int]:
    separator = SEPARATOR[0] if tokenizer is None else tokenizer.separator
    return {f"{name}_token_id": separator for name in ("bos", "eos", "pad")}


def generation_config(tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Return ``generation_config.json``: text as ``mode=generate`` samples it, up to a 0x1e."""
    defaults = {name: field.default for name, field in GenerateConfig.model_fields.items()}
    return {
        "do_sample": True,
        "temperature": defaults["temperature"],
        "top_k": defaults["top_k"],
        "max_new_tokens": defaults["max_bytes"],
        **_ends(tokenizer),
    }


def learned_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ``tokenizer.json`` of a run's tokenizer.

    It cuts text at the separators first, as elman does. So the token of this byte can be named by
    the byte itself, and transformers has a token that ends a text and pads a row.

    Raises:
        UserError: transformers would read other tokens than the run did.
    """
    tree: dict[str, Any] = _without_special(used_parts(json.loads(tokenizer.definition)))
    name, separator, added = SEPARATOR.decode(), tokenizer.separator, tree.get("added_tokens") or []
    others = [one for one in added if one["content"] != name]
    exported = tree | {
        "model": _with_name(tree["model"], separator, name),
        "added_tokens": sorted([_separator_token(separator), *others], key=itemgetter("id")),
    }
    known = json.loads(tokenizer.definition).get("added_tokens") or []
    text = name.join([*(one["content"] for one in known), SAMPLE.decode(), *byte_characters()])
    package = require_tokenizers(_SETTING)
    encoded = package.Tokenizer.from_str(json.dumps(exported)).encode(text)
    if encoded.ids != tokenizer.encode(text.encode()).tolist():
        raise UserError(
            f"{_SETTING}: transformers would encode text to other tokens than {tokenizer.name} "
            "does in elman; use elman.load"
        )
    return exported


def _without_special(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a ``tokenizer.json`` that takes text for text, even if it looks like a special token.

    The ids of such tokens stay in the vocabulary, so that a model that draws one can be read.
    """
    added, model = tree.get("added_tokens") or [], tree["model"]
    special = {one["content"]: one["id"] for one in added if one.get("special")}
    if isinstance(model["vocab"], dict):
        model = model | {"vocab": special | model["vocab"]}
    left = [one for one in added if one["content"] not in special]
    return tree | {"model": model, "added_tokens": left}


def _with_name(model: dict[str, Any], number: int, name: str) -> dict[str, Any]:
    """Return the model of a ``tokenizer.json`` with another name of one token."""
    vocab = model["vocab"]
    if not isinstance(vocab, dict):  # of Unigram: pairs of a token and its score
        return model | {"vocab": [[name, v[1]] if i == number else v for i, v in enumerate(vocab)]}
    renamed = {name if one == number else token: one for token, one in vocab.items()}
    merges = [
        merge
        for merge in model.get("merges", [])
        if all(part in renamed for part in (merge.split(" ") if isinstance(merge, str) else merge))
    ]
    return model | {"vocab": renamed, "merges": merges}


def _separator_token(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "content": SEPARATOR.decode(),
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def tokenizer() -> dict[str, Any]:
    """Return ``tokenizer.json``: the ids of a text are its bytes.

    A character of ASCII is its own token. Any other one is in no vocabulary, so that it falls back
    to the tokens of its bytes, all above 127. Text is never split, and nothing is ever merged.
    """
    names = [chr(byte) if byte < _ASCII else f"<0x{byte:02X}>" for byte in range(VOCAB_SIZE)]
    return {
        "version": "1.0",
        "added_tokens": [_separator_token(SEPARATOR[0])],
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


def tokenizer_config() -> dict[str, Any]:
    """Return ``tokenizer_config.json``; padding on the left, behind which a row starts."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": SEPARATOR.decode() for name in ("bos", "eos", "pad")},
    }
