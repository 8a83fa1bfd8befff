"""Reads a ``tokenizer.json`` of Hugging Face's ``tokenizers``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from elman.base.errors import UserError, first_line
from elman.base.output import hold_back_errors
from elman.data.tokenizers.tokenizer import EncodeTexts, Tokenizer, bytes_of_ids, explained

INSTALL = "pip install 'elman[tokens]'"
# Unicode's composed form: left out, so that text keeps its bytes. Ids of composed text stay.
_LEFT_OUT_NORMALIZER = "NFC"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


def tokenizer_of_json(text: str, name: str, where: str) -> Tokenizer:
    """Return the tokenizer of a ``tokenizer.json``.

    Tokens that it adds around a text are not used, and neither are truncation and padding.

    Args:
        text: The file's text.
        name: What people call it.
        where: The setting and the file, for error messages.

    Raises:
        UserError: it is damaged or of another kind, loses bytes, or ``tokenizers`` is missing.
    """
    try:
        tree = json.loads(text)
        table, used = _table(tree, where), json.dumps(used_parts(tree))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{where}: no tokenizer.json of Hugging Face's tokenizers "
            f"({type(error).__name__}: {first_line(error)}); name such a file"
        ) from None
    return Tokenizer(name, table, _encoder(used, where), text, where)


def used_parts(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a ``tokenizer.json`` without the parts that change a text, cut it, or add to it.

    Dropout goes, too: with it, a text has other tokens each time.
    """
    normalizer = tree.get("normalizer")
    if normalizer is not None and normalizer.get("type") == _LEFT_OUT_NORMALIZER:
        normalizer = None
    left_out = ("truncation", "padding", "post_processor")
    model = tree["model"] | {"dropout": None} if "dropout" in tree["model"] else tree["model"]
    return tree | {"normalizer": normalizer, "model": model} | dict.fromkeys(left_out)


def require_tokenizers(where: str) -> Any:
    """Return the package ``tokenizers``.

    Raises:
        UserError: it is not installed.
    """
    # Threads of our own share the work. It is read at each call, also by other users of it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError:
        raise UserError(f"{where}: needs the package tokenizers; type {INSTALL}") from None
    return tokenizers


def _encoder(text: str, where: str) -> EncodeTexts:
    package = require_tokenizers(where)
    what, remedy = f"{where}: cannot be read by tokenizers", "name a file that it has saved"
    with hold_back_errors(), explained(what, remedy):
        encoder = package.Tokenizer.from_str(text)
    encoder.encode_special_tokens = True  # text that looks like a special token is text

    def encode(texts: list[str]) -> list[Sequence[int]]:
        return [one.ids for one in encoder.encode_batch_fast(texts, add_special_tokens=False)]

    return encode


def _table(tree: Mapping[str, Any], where: str) -> list[bytes]:
    """Return the bytes of every id."""
    model = tree["model"]
    vocab = model["vocab"]
    if not isinstance(vocab, dict):  # of Unigram: pairs of a token and its score
        vocab = {token: number for number, (token, _) in enumerate(vocab)}
    parts = _types(tree.get("pre_tokenizer")) | _types(tree.get("decoder"))
    if "ByteLevel" in parts:
        table = {number: _bytes_of_characters(token) for token, number in vocab.items()}
    elif model.get("byte_fallback"):
        table = {number: _bytes_of_text(token) for token, number in vocab.items()}
    else:
        raise UserError(
            f"{where}: neither byte-level nor with tokens for single bytes, so that it cannot "
            f"write every text; name another, or type data.tokenizer=bpe:8192"
        )
    table |= {one["id"]: one["content"].encode() for one in tree.get("added_tokens") or []}
    return bytes_of_ids(table, where)


def _types(part: Any) -> set[str]:
    """Return the types in a part of the file, which may be a sequence of parts."""
    if not isinstance(part, Mapping):
        return set()
    inner = part.get("pretokenizers") or part.get("decoders") or []
    return {str(part.get("type"))}.union(*(_types(one) for one in inner))


def _bytes_of_characters(token: str) -> bytes:
    """Return the bytes of a token of a byte-level vocabulary; of another one its UTF-8."""
    known = byte_characters()
    try:
        return bytes(known[character] for character in token)
    except KeyError:
        return token.encode()


def _bytes_of_text(token: str) -> bytes:
    """Return the bytes of a token of SentencePiece, whose spaces have a sign of their own."""
    if found := _BYTE.fullmatch(token):
        return bytes([int(found[1], 16)])
    return token.replace(_SPACE, " ").encode()


@cache
def byte_characters() -> dict[str, int]:
    """Return the byte of each character with which a byte-level vocabulary is written.

    It is GPT-2's table: a byte that prints is its own character, and the others follow from 256 on.
    """
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }
