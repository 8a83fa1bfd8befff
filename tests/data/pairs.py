"""A tokenizer that needs no package: it joins some pairs of bytes, from left to right."""

from __future__ import annotations

from collections.abc import Sequence

from elman.data.tokenizers.tokenizer import Tokenizer

PAIRS = [pair.encode() for pair in ("th", "in", "e ", "re", "on", "at", "\n ", "  ", "é", "日")]


def pairs_tokenizer() -> Tokenizer:
    """Return the tokenizer: the ids of single bytes are their values."""
    table = [bytes([byte]) for byte in range(256)] + PAIRS
    ids = {one: number for number, one in enumerate(table)}
    longest = max(map(len, table))

    def encode_one(text: str) -> list[int]:
        data, at, found = text.encode(), 0, []
        while at < len(data):
            sizes = range(longest, 0, -1)
            piece = next(data[at : at + n] for n in sizes if data[at : at + n] in ids)
            found.append(ids[piece])
            at += len(piece)
        return found

    def encode(texts: list[str]) -> list[Sequence[int]]:
        return [encode_one(text) for text in texts]

    return Tokenizer("pairs", table, encode, "pairs", "data.tokenizer=pairs")
