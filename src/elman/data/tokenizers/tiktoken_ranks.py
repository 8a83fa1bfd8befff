"""Encodings of ``tiktoken``: by their name, or from a file with the ranks of their tokens."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from elman.base.errors import UserError, did_you_mean, first_line
from elman.base.output import hold_back_errors
from elman.data.tokenizers.hugging_face import INSTALL
from elman.data.tokenizers.tokenizer import Tokenizer, bytes_of_ids, explained

KIND: Literal["tiktoken"] = "tiktoken"
# A file of ranks does not say where text is cut before its bytes are merged. The encodings with
# these names have patterns of their own, and every other file is cut as cl100k_base is.
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CASES,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CASES,
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
_PATTERNS = {"r50k_base": _GPT2, "p50k_base": _GPT2, "o200k_base": _O200K}


def tokenizer_of_tiktoken(place: str, where: str) -> Tokenizer:
    """Return the tokenizer of an encoding.

    Args:
        place: Its name, as ``p50k_base``, or a file with a line for each token: its bytes in
            base64, and its rank.
        where: The setting, for error messages.

    Raises:
        UserError: there is no such encoding, it cannot be read, or ``tiktoken`` is missing.
    """
    package = _require_tiktoken(where)
    if (path := Path(place).expanduser()).is_file():
        pattern = _PATTERNS.get(path.stem, _CL100K)
        return _tokenizer(path.name, pattern, _ranks_in(path, where), {}, where)
    names = package.list_encoding_names()
    if place not in names:
        close = did_you_mean(place, names)
        raise UserError(f"{where}: no such file, and no encoding of tiktoken{close}; name one")
    try:
        encoding = package.get_encoding(place)
    except Exception as error:  # of requests, or of the file system
        raise UserError(
            f"{where}: tiktoken cannot load it ({type(error).__name__}); it needs the internet "
            f"once, or a file: data.tokenizer=tiktoken:{place}.tiktoken"
        ) from None
    ranks, special = encoding._mergeable_ranks, encoding._special_tokens
    return _tokenizer(place, encoding._pat_str, ranks, special, where)


def tokenizer_of_ranks(tree: Mapping[str, Any], where: str) -> Tokenizer:
    """Return the tokenizer of a definition that :func:`tokenizer_of_tiktoken` made.

    Raises:
        UserError: the definition is damaged, or ``tiktoken`` is missing.
    """
    _require_tiktoken(where)
    try:
        ranks = {base64.b64decode(token): rank for token, rank in tree["ranks"].items()}
        return _tokenizer(tree["name"], tree["pattern"], ranks, tree["special_tokens"], where)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{where}: no definition of an encoding of tiktoken that elman has written "
            f"({type(error).__name__}: {first_line(error)}); name another checkpoint or file"
        ) from None


def _tokenizer(
    name: str,
    pattern: str,
    ranks: Mapping[bytes, int],
    special: Mapping[str, int],
    where: str,
) -> Tokenizer:
    table = {rank: token for token, rank in ranks.items()}
    table |= {number: token.encode() for token, number in special.items()}
    token_bytes = bytes_of_ids(table, where)
    named = {"name": name, "pat_str": pattern, "special_tokens": dict(special)}
    what = f"{where}: cannot be read by tiktoken"
    with hold_back_errors(), explained(what, "name a file or an encoding that it can read"):
        encoding = _require_tiktoken(where).Encoding(**named, mergeable_ranks=dict(ranks))
    definition = {
        "kind": KIND,
        "name": name,
        "pattern": pattern,
        "special_tokens": dict(special),
        "ranks": {base64.b64encode(token).decode(): rank for token, rank in ranks.items()},
    }

    def encode(texts: list[str]) -> list[Sequence[int]]:
        # Text that looks like a special token is text.
        return [encoding.encode_to_numpy(text, disallowed_special=()) for text in texts]

    return Tokenizer(name, token_bytes, encode, json.dumps(definition), where, KIND)


def _ranks_in(path: Path, where: str) -> dict[bytes, int]:
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}; name a file that can be read") from None
    except ValueError as error:
        raise UserError(
            f"{where}: no file of tiktoken ({first_line(error)}); each of its lines has a token "
            f"in base64 and its rank"
        ) from None
    if not ranks:
        raise UserError(f"{where}: an empty file; name one with the ranks of tokens")
    return ranks


def _require_tiktoken(where: str) -> Any:
    try:
        import tiktoken
    except ImportError:
        raise UserError(f"{where}: needs the package tiktoken; type {INSTALL}") from None
    return tiktoken
