"""Loss by position, and the useful length of the context.

Shape legend: d documents, t positions, k bins or contexts, s segments.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from elman.probe.chunks import Reader, Text, powers, walk
from elman.probe.intervals import Floats, estimates, interval_of
from elman.probe.result import Loss

GAIN = 0.005
"""A longer context helps if it saves more than this share of the bits."""
SHORTEST = 8
"""The shortest context of the ladder, in bytes."""


def measure(reader: Reader, text: Text) -> Loss:
    """Return loss by position with states carried, and by context on the same bytes.

    Raises:
        NotFiniteError: a state or a prediction is not finite.
    """
    ends = bins(text.length)
    carried_dk, whole_d = _by_position(reader, text, ends, restart=0)
    reset_dk, reset_d = _by_position(reader, text, ends, restart=reader.trained)
    contexts = ladder(text.length)
    short_dk = np.stack([_with_context(reader, text, context) for context in contexts], axis=1)
    contexts.append(text.length - scored_bytes(text.length))
    bits_dk = np.concatenate([short_dk, whole_d[:, None]], axis=1)
    useful = useful_length(bits_dk.mean(axis=0), contexts)
    low, high = interval_of(lambda bits_k: useful_length(bits_k, contexts), bits_dk)
    return Loss(
        positions=ends,
        carried=estimates(carried_dk),
        reset=estimates(reset_dk),
        saved=estimates(reset_dk - carried_dk),
        contexts=contexts,
        by_context=estimates(bits_dk),
        excess=estimates(bits_dk - bits_dk[:, -1:]),
        scored_bytes=scored_bytes(text.length) * text.documents,
        whole=float(whole_d.mean()),
        whole_reset=float(reset_d.mean()),
        useful_length=useful,
        useful_length_low=int(low),
        useful_length_high=int(high),
    )


def work(length: int, documents: int) -> int:
    """Return how many positions are read."""
    scored, each = scored_bytes(length), 2 * length
    for context in ladder(length):
        each += -(-scored // context) * _segment(context, scored)
    return documents * each


def bins(length: int) -> list[int]:
    """Return the last position of each bin: powers of two, and the length."""
    ends = powers(1, length)
    return ends if ends[-1] == length else [*ends, length]


def scored_bytes(length: int) -> int:
    """Return how many bytes at the end of a document every context predicts: a power of two."""
    return powers(1, length // 4)[-1]


def ladder(length: int) -> list[int]:
    """Return the contexts that are tried, besides the whole one."""
    return powers(SHORTEST, length - scored_bytes(length))


def useful_length(bits_k: Floats, contexts: list[int]) -> int:
    """Return the shortest context over which no longer one saves more than the share ``GAIN``."""
    for place, context in enumerate(contexts):
        longer_k = bits_k[place + 1 :]
        if longer_k.size == 0 or longer_k.min() >= (1 - GAIN) * bits_k[place]:
            return context
    raise AssertionError("the last context has no longer one")


def _by_position(
    reader: Reader, text: Text, ends: list[int], restart: int
) -> tuple[Floats, Floats]:
    """Return bits per byte of each document: in each bin [d, k], and of the scored bytes [d]."""
    groups = [text.some(group) for group in reader.groups(text.documents, rows=1)]
    found = [_of_group(reader, group, ends, restart) for group in groups]
    binned, scored = zip(*found, strict=True)
    return np.concatenate(binned), np.concatenate(scored)


def _of_group(reader: Reader, text: Text, ends: list[int], restart: int) -> tuple[Floats, Floats]:
    """Return the same of some documents."""
    first = text.length - scored_bytes(text.length)
    edges = torch.tensor(ends, device=reader.device)
    nats_dk = torch.zeros(text.documents, len(ends), dtype=torch.float64, device=reader.device)
    scored_d = nats_dk.new_zeros(text.documents)
    for chunk in walk(reader, text.read, text.documents, text.length, restart=restart):
        nats_dt = chunk.nats_bt.double()
        position_t = torch.arange(chunk.start + 1, chunk.end + 1, device=reader.device)
        nats_dk.index_add_(1, torch.bucketize(position_t, edges), nats_dt)
        scored_d += nats_dt[:, position_t > first].sum(dim=1)
    counts_k = np.diff([0, *ends])
    return _bits(nats_dk) / counts_k, _bits(scored_d) / (text.length - first)


def _segment(context: int, scored: int) -> int:
    """Return how many bytes a segment predicts of which the last ones have such a context."""
    return context - 1 + min(context, scored)


def _with_context(reader: Reader, text: Text, context: int) -> Floats:
    """Return bits per byte of each document's scored bytes [d].

    Segments begin at zero state, each ``context`` bytes behind the other, and each scores only
    bytes that have ``context`` to ``2 context - 1`` bytes before them in it.
    """
    scored = scored_bytes(text.length)
    starts = np.arange(text.length - scored + 1 - context, text.length + 1 - context, context)
    document_s = np.repeat(np.arange(text.documents), len(starts))
    start_s = np.tile(starts, text.documents)
    length = _segment(context, scored)
    nats_d = torch.zeros(text.documents, dtype=torch.float64, device=reader.device)
    edges = [*range(0, len(document_s), reader.rows(length)), len(document_s)]
    for low, high in pairwise(edges):
        read = text.segments(document_s[low:high], start_s[low:high])
        owner_s = torch.from_numpy(document_s[low:high]).to(reader.device)
        for chunk in walk(reader, read, high - low, length):
            counted_st = chunk.nats_bt[:, max(0, context - 1 - chunk.start) :]
            nats_d.index_add_(0, owner_s, counted_st.double().sum(dim=1))
    return _bits(nats_d) / scored


def _bits(nats: Tensor) -> Floats:
    bits: Floats = nats.cpu().numpy() / math.log(2)
    return bits
