"""Memory by intervention: what a change of some bytes does to the states and the predictions.

Shape legend: n samples, t positions, v byte values, d documents, k distances, l layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from elman.data.files import Bytes, Offsets
from elman.models.state import State
from elman.probe.chunks import Reader, Text, evenly, powers, walk
from elman.probe.intervals import Floats, estimates
from elman.probe.result import Memory

SPAN = 16
"""Bytes that are changed."""
_PLACES = 4
"""Places in each document where bytes are changed."""


def measure(reader: Reader, text: Text) -> Memory:
    """Return how a change of bytes decays in each layer's state and in the predictions.

    Raises:
        NotFiniteError: a state or a prediction is not finite.
    """
    groups = reader.groups(text.documents, rows=2 * _PLACES)
    found = [_of_group(reader, text, group) for group in groups]
    kl_dk = np.concatenate([kl for kl, _ in found])
    relative_lkd = np.concatenate([relative for _, relative in found], axis=2)
    distances = _distances(text.length)
    layers = [estimates(one.T) for one in relative_lkd]
    kl = estimates(kl_dk)
    return Memory(
        distances=distances,
        kl=kl,
        layers=layers,
        half_lives=[half_life([0, *distances], layer.mean) for layer in layers],
        half_life_of_prediction=half_life(distances, kl.mean),
    )


def _of_group(reader: Reader, text: Text, documents_g: Offsets) -> tuple[Floats, Floats]:
    """Return, of some documents, the divergences [d, k] and the changes of states [l, k, d]."""
    warm, distances = _warm(reader.trained, text.length), _distances(text.length)
    changed = warm + SPAN
    samples = len(documents_g) * _PLACES
    stops = [changed, *(changed + distance for distance in distances)]
    kl_nk = torch.zeros(samples, len(distances), dtype=torch.float64, device=reader.device)
    difference, size = [], []
    read = _Pairs(text, documents_g, warm, stops[-1])
    for chunk in walk(reader, read, 2 * samples, stops[-1], stops=[warm, *stops]):
        if chunk.start >= changed:
            position_t = torch.arange(chunk.start + 1, chunk.end + 1, device=reader.device)
            edges = torch.tensor(distances, device=reader.device)
            bin_t = torch.bucketize(position_t - changed, edges)
            kl_nk.index_add_(1, bin_t, _kl(chunk.logits_btv))
        if chunk.end in stops:
            parts = [_squares(state, samples) for state in chunk.states]
            difference.append(torch.stack([one for one, _ in parts], dim=1))
            size.append(torch.stack([one for _, one in parts], dim=1))
    kl_dk = _by_document(kl_nk, len(documents_g)) / np.diff([0, *distances])
    return kl_dk, _relative(torch.stack(difference), torch.stack(size), len(documents_g))


def work(trained: int, length: int, documents: int) -> int:
    """Return how many positions are read."""
    longest = _distances(length)[-1]
    return 2 * documents * _PLACES * (_warm(trained, length) + SPAN + longest)


def half_life(distances: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the distance at which a value is half of the first one; None if it never is.

    Between two distances the value is taken to decay exponentially.
    """
    if values[0] <= 0:
        return None
    half = values[0] / 2
    for place in range(1, len(values)):
        if values[place] > half:
            continue
        before, after = values[place - 1], values[place]
        near, far = distances[place - 1], distances[place]
        if after <= 0:
            return float(far)
        return near + (far - near) * math.log(before / half) / math.log(before / after)
    return None


def _warm(trained: int, length: int) -> int:
    """Return how many bytes are read before the change."""
    return min(trained, length // 4)


def _distances(length: int) -> list[int]:
    return powers(1, length // 2)


class _Pairs:
    """Reads every sample twice, the second time with its changed bytes.

    Samples are evenly spaced in their documents. The changed bytes are those at the same place of
    the next document.
    """

    def __init__(self, text: Text, documents_g: Offsets, warm: int, end: int) -> None:
        document_n = np.repeat(documents_g, _PLACES)
        start_n = np.tile(evenly(_PLACES, 0, text.length - end), len(documents_g))
        self._read = text.segments(document_n, start_n)
        others_n = (document_n + 1) % text.documents
        self._others_ns = text.segments(others_n, start_n)(warm, SPAN)
        self._warm = warm

    def __call__(self, start: int, count: int) -> Bytes:
        """Return ``count`` bytes of all rows from ``start`` on."""
        plain = self._read(start, count)
        changed = plain.copy()
        low, high = max(start, self._warm), min(start + count, self._warm + SPAN)
        if low < high:
            inside = self._others_ns[:, low - self._warm : high - self._warm]
            changed[:, low - start : high - start] = inside
        return np.concatenate([plain, changed])


def _kl(logits_btv: Tensor) -> Tensor:
    """Return bits by which the predictions of changed rows differ from those of the others."""
    plain, changed = logits_btv.double().log_softmax(dim=-1).chunk(2)
    return (plain.exp() * (plain - changed)).sum(dim=-1) / math.log(2)


def _squares(state: State, samples: int) -> tuple[Tensor, Tensor]:
    """Return each sample's sum of squares: of the difference of its two states, of the first."""
    parts = [part.double().flatten(1) for part in proper_parts(state).values()]
    differences = [(part[:samples] - part[samples:]).square().sum(dim=1) for part in parts]
    sizes = [part[:samples].square().sum(dim=1) for part in parts]
    return torch.stack(differences).sum(dim=0), torch.stack(sizes).sum(dim=0)


def proper_parts(state: State) -> State:
    """Return the parts of a layer's state without the last inputs of its convolution."""
    proper = {name: part for name, part in state.items() if name != "conv"}
    return proper or state


def _by_document(values_nk: Tensor, documents: int) -> Floats:
    found: Floats = values_nk.unflatten(0, (documents, _PLACES)).mean(dim=1).cpu().numpy()
    return found


def _relative(difference_knl: Tensor, size_knl: Tensor, documents: int) -> Floats:
    """Return the norm of the differences over the norm of the state: [l, k, d]."""
    shape = (documents, _PLACES)
    difference_kdl = difference_knl.unflatten(1, shape).mean(dim=2)
    size_dl = size_knl.unflatten(1, shape).mean(dim=(0, 2))
    relative_kdl = (difference_kdl / size_dl.clamp_min(1e-300)).sqrt()
    found: Floats = relative_kdl.permute(2, 0, 1).cpu().numpy()
    return found
