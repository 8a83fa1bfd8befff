"""From ``data.tokenizer`` to a tokenizer: of a file, of a package, learned, or kept by a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from elman.base.errors import UserError, did_you_mean
from elman.base.run_files import TOKENIZER
from elman.data.files import ByteSource
from elman.data.tokenizers.hugging_face import tokenizer_of_json
from elman.data.tokenizers.learned import learned_tokenizer
from elman.data.tokenizers.tiktoken_ranks import KIND, tokenizer_of_ranks, tokenizer_of_tiktoken
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.sections.training import BPE, BYTES, TIKTOKEN, DataConfig


def open_tokenizer(
    config: DataConfig, train: ByteSource, train_bytes: int, announce: Callable[[str], None]
) -> Tokenizer | None:
    """Return the tokenizer of a run; None if its tokens are bytes.

    Args:
        config: Group ``data``.
        train: The text.
        train_bytes: How many of its first bytes are trained on: what ``bpe`` learns from.
        announce: Called with one line if it has to be learned.

    Raises:
        UserError: it cannot be read or learned, or has another number of tokens than before.
    """
    if config.tokenizer == BYTES:
        return None
    if config.tokenizer == BPE:
        assert config.vocab_size is not None, "checked with the settings"
        return learned_tokenizer(train, train_bytes, config.vocab_size, announce)
    found = named_tokenizer(config.tokenizer)
    if config.vocab_size not in (None, found.vocab_size):
        raise UserError(
            f"data.tokenizer={config.tokenizer}: has {found.vocab_size:,} tokens now, and had "
            f"{config.vocab_size:,} when the run was configured; restore the file"
        )
    return found


def named_tokenizer(setting: str) -> Tokenizer:
    """Return the tokenizer of a file or of an encoding of tiktoken.

    Raises:
        UserError: there is none of that name, or its package is missing.
    """
    where = f"data.tokenizer={setting}"
    if setting.startswith(TIKTOKEN):
        place = setting.removeprefix(TIKTOKEN)
        file = Path(place).expanduser()
        return _of_tiktoken(place, file.stat().st_mtime_ns if file.is_file() else None, where)
    path, name = Path(setting).expanduser(), Path(setting).expanduser().name
    if path.is_dir():
        path /= TOKENIZER
    try:
        return _of_file(path, path.stat().st_mtime_ns, name, where)
    except UnicodeDecodeError:
        raise UserError(f"{where}: not text; name a tokenizer.json") from None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        what = f"no such file as {path}" if missing else error.strerror
        hint = did_you_mean(setting, (BPE, BYTES)) if missing else ""
        raise UserError(
            f"{where}: {what}{hint}; name a tokenizer.json, tiktoken:<name>, {BPE} or {BYTES}"
        ) from None


def changed_since(setting: str, tokenizer: Tokenizer) -> bool:
    """Return whether the file of ``data.tokenizer`` makes other tokens than it did for a run.

    Args:
        setting: ``data.tokenizer`` of the run.
        tokenizer: That of its checkpoint.
    """
    path = Path(setting.removeprefix(TIKTOKEN))
    if not path.is_absolute() or not path.exists():  # a name, or a file that is gone
        return False
    try:
        return named_tokenizer(setting).fingerprint != tokenizer.fingerprint
    except UserError:
        return True


def tokenizer_of_definition(text: str, name: str, where: str) -> Tokenizer:
    """Return the tokenizer that has a definition: that of a checkpoint, or a ``tokenizer.json``.

    Raises:
        UserError: it makes no sense, or its package is missing.
    """
    try:
        tree = json.loads(text)
    except ValueError:
        tree = None
    if isinstance(tree, dict) and tree.get("kind") == KIND:
        return tokenizer_of_ranks(tree, where)
    return tokenizer_of_json(text, name, where)


# A command asks for it more than once: for its size, and to encode with it.
@lru_cache(maxsize=4)
def _of_tiktoken(place: str, modified_ns: int | None, where: str) -> Tokenizer:
    return tokenizer_of_tiktoken(place, where)


@lru_cache(maxsize=4)
def _of_file(path: Path, modified_ns: int, name: str, where: str) -> Tokenizer:
    return tokenizer_of_definition(path.read_text(encoding="utf-8"), name, where)
