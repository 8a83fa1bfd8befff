"""Recall by distance: what a random key brings back of the value that was written behind it.

Shape legend: r rows, n bytes, d documents, k distances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elman.data.files import Bytes, Offsets
from elman.probe.chunks import Reader, States, Text, powers, walk
from elman.probe.intervals import Floats, estimates
from elman.probe.result import Recall, RecallKind

KEY, VALUE = 8, 16
"""Random letters of a key and of its value."""
_BLOCK = 1 + KEY + VALUE  # a line feed before them
_DRAWS = 2
"""Random keys and values for each document and kind."""


@dataclass(frozen=True)
class Kind:
    """What is written: ``pairs`` different keys with values, each ``copies`` times."""

    pairs: int
    copies: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.pairs * self.copies * _BLOCK


KINDS = (Kind(1, 1), Kind(4, 1), Kind(16, 1), Kind(1, 4))


def measure(reader: Reader, text: Text, seed: int) -> Recall:
    """Return how many bits of a value its key saves, by the distance to where both were written.

    Raises:
        NotFiniteError: a state or a prediction is not finite.
    """
    kinds, distances = _kinds(text.length), powers(1, text.length // 2)
    groups = reader.groups(text.documents, rows=2 * len(kinds) * _DRAWS)
    found = [_of_group(reader, text.some(group), kinds, group, seed) for group in groups]
    plain, control = np.concatenate(found, axis=2)
    saved: Floats = control - plain
    return Recall(
        distances=distances,
        kinds=[
            RecallKind(
                pairs=kind.pairs,
                copies=kind.copies,
                saved=estimates(saved[place]),
                control=float(control[place].mean()),
            )
            for place, kind in enumerate(kinds)
        ],
    )


def _of_group(reader: Reader, text: Text, kinds: list[Kind], numbers: Offsets, seed: int) -> Floats:
    """Return the bits of a value of some documents, plain and control: [2, kinds, d, k]."""
    distances, written = powers(1, text.length // 2), max(kind.size for kind in kinds)
    # Each document has draws of its own, so groups of another size draw the same.
    generators = [np.random.default_rng([seed, number]) for number in numbers.tolist()]
    rows = _Rows(text, kinds, written, generators)
    stops = {written + distance: place for place, distance in enumerate(distances)}
    bits_rk = torch.zeros(rows.count, len(distances), dtype=torch.float64, device=reader.device)
    end = written + distances[-1]
    for chunk in walk(reader, rows.read, rows.count, end, stops=[*stops]):
        if (place := stops.get(chunk.end)) is not None:
            bits_rk[:, place] = _asked(reader, rows.queries_rn, chunk.states)
    shape = (2, len(kinds), text.documents, _DRAWS, len(distances))
    found: Floats = bits_rk.reshape(shape).mean(dim=3).cpu().numpy()
    return found


def work(length: int, documents: int) -> int:
    """Return how many positions are read."""
    kinds, distances = _kinds(length), powers(1, length // 2)
    rows = 2 * len(kinds) * documents * _DRAWS
    read = max(kind.size for kind in kinds) + distances[-1]
    return rows * (read + len(distances) * (_BLOCK - 1))


def _kinds(length: int) -> list[Kind]:
    """Return what fits into half of a document."""
    return [kind for kind in KINDS if kind.size <= length // 2]


class _Rows:
    """The rows: first those that ask for what was written, then their controls.

    A control has another value behind the key, so that only the memory of the value differs.
    """

    def __init__(
        self, text: Text, kinds: list[Kind], written: int, draws: Sequence[np.random.Generator]
    ) -> None:
        self._text, self._times, self._written = text, len(kinds), written
        plain: list[Bytes] = []
        control: list[Bytes] = []
        queries: list[Bytes] = []
        before_dn = text.read(0, written)
        for kind in kinds:
            for place, document_n in enumerate(np.repeat(before_dn, _DRAWS, axis=0)):
                both, query = _drawn(draws[place // _DRAWS], kind)
                for rows, block in zip((plain, control), both, strict=True):
                    rows.append(np.concatenate([document_n[: written - kind.size], block]))
                queries.append(query)
        self._before_rn: Bytes = np.stack([*plain, *control])
        self.queries_rn: Bytes = np.stack(queries * 2)
        self.count = len(self._before_rn)

    def read(self, start: int, count: int) -> Bytes:
        """Return ``count`` bytes of all rows from ``start`` on."""
        own_rn = self._before_rn[:, start : start + count]
        rest = count - own_rn.shape[1]
        if not rest:
            return own_rn
        text_dn = self._text.read(start + count - rest, rest)
        text_rn = np.tile(np.repeat(text_dn, _DRAWS, axis=0), (2 * self._times, 1))
        return np.concatenate([own_rn, text_rn], axis=1)


def _drawn(generator: np.random.Generator, kind: Kind) -> tuple[tuple[Bytes, Bytes], Bytes]:
    """Return what is written, the same with another value of the key that is asked for, and it."""
    blocks = [_block(generator) for _ in range(kind.pairs)]
    asked = int(generator.integers(kind.pairs))
    other = blocks[asked].copy()
    other[-VALUE:] = _block(generator)[-VALUE:]
    controls = [other if place == asked else block for place, block in enumerate(blocks)]
    return (
        (np.concatenate(blocks * kind.copies), np.concatenate(controls * kind.copies)),
        blocks[asked],
    )


def _block(generator: np.random.Generator) -> Bytes:
    """Return a line feed, a random key and a random value."""
    block_n = generator.integers(ord("a"), ord("z") + 1, size=_BLOCK, dtype=np.uint8)
    block_n[0] = ord("\n")
    return block_n


def _asked(reader: Reader, queries_rn: Bytes, states: States) -> Tensor:
    """Return the bits of a byte of the value behind its key, from these states on: [r]."""

    def read(start: int, count: int) -> Bytes:
        return queries_rn[:, start : start + count]

    nats_r = torch.zeros(len(queries_rn), dtype=torch.float64, device=reader.device)
    for chunk in walk(reader, read, len(queries_rn), _BLOCK - 1, states=states):
        nats_r += chunk.nats_bt[:, max(0, KEY - chunk.start) :].double().sum(dim=1)
    return nats_r / VALUE / math.log(2)
