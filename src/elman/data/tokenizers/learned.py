"""Learns a byte-level BPE from the training part of a text, once; the cache keeps it.

Its ids 0 to 255 are the bytes of that value. Every further id joins two earlier ones. Text is cut
before that as GPT-4's is: words with the sign before them, digits by three, ends of lines.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from elman.base import process_exit
from elman.base.beside import beside
from elman.base.cache import CACHE_VARIABLE, cached, make_cache_folder, put_file
from elman.base.errors import UserError
from elman.base.file_lock import FileLock
from elman.base.live_line import LiveLine
from elman.base.run_files import TOKENIZER
from elman.base.units import duration, size_text
from elman.base.whole_file import give_room_back, keep_room
from elman.data.files import ByteSource
from elman.data.tokenizers.hugging_face import (
    byte_characters,
    require_tokenizers,
    tokenizer_of_json,
)
from elman.data.tokenizers.tokenizer import Tokenizer, explained
from elman.sections.training import BPE, SEPARATOR, token_name

_VERSION = 2
_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    r"\s*[\r\n]|\s+(?!\S)|\s+"
)
LEARNED_BYTES = 64 * 2**20
"""Most bytes that are learned from; of more text, evenly spaced blocks."""
_BLOCK = 2**20
# The library takes 256 texts at a time, and its time grows with the square of a word's length. So a
# text ends between two words, where any pattern would cut, and within a word that has no end.
_TEXT_CHARACTERS = 2**13
_TEXT_END = re.compile(r"(?<=\n)(?=[^\S\r\n]*\S)|(?<=\S)(?= )")
# A token and the pair that it joins: 20 to 50 bytes, by the length of words.
_FILE_BYTES = 64
_WAIT_SECONDS = 0.5
_SHOW_SECONDS = 0.2


def learned_tokenizer(
    source: ByteSource, train_bytes: int, vocab_size: int, announce: Callable[[str], None]
) -> Tokenizer:
    """Return the BPE of a text; learn it unless the cache has it.

    The same text and size give the same tokens. Any number of processes may call this at once: one
    learns, and the others wait.

    Args:
        source: The text.
        train_bytes: How many of its first bytes it is learned from. Above 64 MiB these are evenly
            spaced blocks of 1 MiB.
        vocab_size: Number of tokens.
        announce: Called with one line before it is learned.

    Raises:
        UserError: the text has too few different words, ``tokenizers`` is missing, or the cache
            cannot be written.
    """
    where = f"data.tokenizer={BPE}"
    path = _place(source, train_bytes, vocab_size)
    try:
        if not _is_whole(path):
            package = require_tokenizers(where)
            make_cache_folder(path.parent)
            lock = FileLock(
                path.with_name("lock"),
                mode=0o644,
                stand_in=path.with_name("lock.holder"),
                lasting="tokens are learned",
            )
            try:
                _wait_for(lock, announce)
                if not _is_whole(path):
                    keep_room(path, _FILE_BYTES * vocab_size)  # a full disk shows before the work
                    try:
                        made = _learn(package, path, source, train_bytes, vocab_size, announce)
                    finally:
                        give_room_back(path)
                    put_file(path, made)
            finally:
                lock.drop()
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{where}: cannot keep it ({error.strerror}: {error.filename or path}); set "
            f"{CACHE_VARIABLE} to a folder that can be written and has space"
        ) from None
    name = token_name({"tokenizer": BPE, "vocab_size": vocab_size})
    return tokenizer_of_json(text, name, where)


def _place(source: ByteSource, train_bytes: int, vocab_size: int) -> Path:
    """Return its file in the cache; the name is a hash of everything that it depends on."""
    described = source.describe()
    hashes = [described["sha256"], described["sample_sha256"]]
    key = json.dumps([_VERSION, hashes, train_bytes, vocab_size, LEARNED_BYTES, _PATTERN])
    digest = hashlib.sha256(key.encode()).hexdigest()[:20]
    return cached("data", f"{BPE}-{vocab_size}-{digest}", TOKENIZER) / TOKENIZER


def _is_whole(path: Path) -> bool:
    """Return whether a tokenizer was learned before; a damaged file is learned anew."""
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (FileNotFoundError, ValueError):
        return False


def _wait_for(lock: FileLock, announce: Callable[[str], None]) -> None:
    if lock.take():
        return
    announce("another process is learning these tokens: waiting for it ...")
    with LiveLine() as line:
        while not lock.take():
            if remedy := lock.remedy():
                holder = lock.holder()
                raise UserError(f"{lock.path.parent}: {holder} learns tokens in it; {remedy}")
            line.show(f"waiting for the tokens of another process, {duration(line.seconds)}")
            time.sleep(_WAIT_SECONDS)


def _learn(
    package: Any,
    path: Path,
    source: ByteSource,
    train_bytes: int,
    vocab_size: int,
    announce: Callable[[str], None],
) -> str:
    """Return the text of the file that the cache will have at ``path``."""
    read = min(train_bytes, LEARNED_BYTES)
    announce(
        f"learning {vocab_size:,} tokens from {size_text(read)} of {source.label}, once -> {path}"
    )
    before = package.pre_tokenizers
    tokenizer = package.Tokenizer(package.models.BPE())
    cut = before.Split(package.Regex(_PATTERN), "isolated")
    tokenizer.pre_tokenizer = before.Sequence(
        [cut, before.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        initial_alphabet=list(byte_characters()),
    )
    texts = _Texts(source, train_bytes)
    with explained(f"data.tokenizer={BPE}: cannot be learned", "name another tokenizer"):
        learned = beside(lambda: tokenizer.train_from_iterator(texts, trainer), "elman-bpe")
        _wait_showing(learned, texts)
    found = tokenizer.get_vocab_size()
    if found < vocab_size:
        raise UserError(
            f"data.vocab_size={vocab_size}: {source.label} has only {found:,} tokens to learn; "
            f"set data.vocab_size={found} or less, or name more text"
        )
    return json.dumps(_with_bytes_first(json.loads(tokenizer.to_str())), ensure_ascii=False)


class _Texts:
    """The documents of the blocks that are learned from; what is not UTF-8 is left out.

    Attributes:
        stage: What goes on.
        stopped: Set to let the reader fail.
    """

    def __init__(self, source: ByteSource, train_bytes: int) -> None:
        self._source, self._bytes = source, train_bytes
        self.stage, self.stopped = "0% read", False

    def __iter__(self) -> Iterator[str]:
        blocks = -(-self._bytes // _BLOCK)
        count = min(blocks, LEARNED_BYTES // _BLOCK)
        for index in range(count):
            start = (index * blocks // count) * _BLOCK
            block = self._source.read(start, min(_BLOCK, self._bytes - start)).tobytes()
            for document in block.decode(errors="ignore").split(SEPARATOR.decode()):
                yield from self._short(document)
            self.stage = f"{(index + 1) / count:.0%} read"
        self.stage = "joining the most frequent pairs"

    def _short(self, document: str) -> Iterator[str]:
        """Yield a document in parts."""
        at = 0
        while at < len(document):
            if self.stopped:
                raise InterruptedError("nobody waits for the tokens")
            found = _TEXT_END.search(document, at + _TEXT_CHARACTERS, at + 2 * _TEXT_CHARACTERS)
            end = found.start() if found else at + 2 * _TEXT_CHARACTERS
            yield document[at:end]
            at = end


def _wait_showing(learned: Future[None], texts: _Texts) -> None:
    """Wait for the library, which looks for no signal, and show how far it is."""
    try:
        with LiveLine() as line:
            while not wait([learned], _SHOW_SECONDS).done:
                line.show(f"learning tokens: {texts.stage}, {duration(line.seconds)}")
        learned.result()
    except BaseException:
        texts.stopped = True
        if not learned.done():
            process_exit.skip_destructors()  # its thread ends with the process
        raise


def _with_bytes_first(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json in which the ids of the bytes are their values."""
    vocab: dict[str, int] = tree["model"]["vocab"]
    known = byte_characters()
    joined = sorted((number, token) for token, number in vocab.items() if token not in known)
    numbered = dict(known) | {token: 256 + n for n, (_, token) in enumerate(joined)}
    tree["model"]["vocab"] = dict(sorted(numbered.items(), key=lambda pair: pair[1]))
    return tree
