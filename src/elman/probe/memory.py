"""Memory by intervention: what a change of some bytes does to the states and the predictions.

Shape legend: n samples, r rows that are read, t positions, v byte values, d documents,
k distances, l layers.
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
from elman.probe.result import Change, Memory
from elman.sections.probe import ProbeChange

SPAN = 16
"""Bytes that are changed."""
_PLACES = 4
"""Places in each document where bytes are changed."""


def measure(reader: Reader, text: Text, changes: Sequence[ProbeChange]) -> Memory:
    """Return how each change of bytes decays in each layer's state and in the predictions.

    Raises:
        NotFiniteError: a state or a prediction is not finite.
    """
    groups = reader.groups(text.documents, rows=(1 + len(changes)) * _PLACES)
    found = [_of_group(reader, text, changes, group) for group in groups]
    distances = _distances(text.length)
    return Memory(
        distances=distances,
        changes={
            change: _change([one[number] for one in found], distances)
            for number, change in enumerate(changes)
        },
    )


def _change(found: Sequence[tuple[Floats, Floats]], distances: Sequence[int]) -> Change:
    """Return what a change did, of the numbers of every group of documents."""
    kl = estimates(np.concatenate([kl_dk for kl_dk, _ in found]))
    relative_lkd = np.concatenate([relative for _, relative in found], axis=2)
    layers = [estimates(one.T) for one in relative_lkd]
    return Change(
        kl=kl,
        layers=layers,
        half_lives=[half_life([0, *distances], layer.mean) for layer in layers],
        half_life_of_prediction=half_life(distances, kl.mean),
    )


def _of_group(
    reader: Reader, text: Text, changes: Sequence[ProbeChange], documents_g: Offsets
) -> list[tuple[Floats, Floats]]:
    """Return, for each change, the divergences [d, k] and the changes of states [l, k, d]."""
    warm, distances = _warm(reader.trained, text.length), _distances(text.length)
    changed = warm + SPAN
    samples = len(documents_g) * _PLACES
    stops = [changed, *(changed + distance for distance in distances)]
    kl_cnk = torch.zeros(
        len(changes), samples, len(distances), dtype=torch.float64, device=reader.device
    )
    difference, size = [], []
    read = _Samples(text, documents_g, changes, warm, stops[-1])
    rows = (1 + len(changes)) * samples
    for chunk in walk(reader, read, rows, stops[-1], stops=[warm, *stops]):
        if chunk.start >= changed:
            position_t = torch.arange(chunk.start + 1, chunk.end + 1, device=reader.device)
            edges = torch.tensor(distances, device=reader.device)
            bin_t = torch.bucketize(position_t - changed, edges)
            kl_cnk.index_add_(2, bin_t, _kl(chunk.logits_btv, samples))
        if chunk.end in stops:
            parts = [_squares(state, samples) for state in chunk.states]
            difference.append(torch.stack([one for one, _ in parts], dim=2))
            size.append(torch.stack([one for _, one in parts], dim=1))
    differences, size_knl = torch.stack(difference, dim=1), torch.stack(size)
    documents = len(documents_g)
    return [
        (
            _by_document(kl_nk, documents) / np.diff([0, *distances]),
            _relative(difference_knl, size_knl, documents),
        )
        for kl_nk, difference_knl in zip(kl_cnk, differences, strict=True)
    ]


def work(trained: int, length: int, documents: int, changes: int) -> int:
    """Return how many positions are read."""
    longest = _distances(length)[-1]
    return (1 + changes) * documents * _PLACES * (_warm(trained, length) + SPAN + longest)


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
    """Return how many bytes are read before the change.

    Behind them a document has the changed bytes and the longest distance; before them, as many
    bytes as are removed.
    """
    return min(trained, length // 4, length - _distances(length)[-1] - 2 * SPAN)


def _distances(length: int) -> list[int]:
    return powers(1, length // 2)


class _Samples:
    """Reads every sample as it is, and once with each change.

    Samples are evenly spaced in their documents. Replaced bytes are those at the same place of the
    next document. A row without the removed bytes begins as many bytes earlier, so that all rows
    have read the same number of bytes at any position, and read the same bytes behind the change.
    """

    def __init__(
        self,
        text: Text,
        documents_g: Offsets,
        changes: Sequence[ProbeChange],
        warm: int,
        end: int,
    ) -> None:
        document_n = np.repeat(documents_g, _PLACES)
        start_n = np.tile(evenly(_PLACES, SPAN, text.length - end), len(documents_g))
        self._read = text.segments(document_n, start_n)
        self._earlier = text.segments(document_n, start_n - SPAN)
        others_n = (document_n + 1) % text.documents
        self._others_ns = text.segments(others_n, start_n)(warm, SPAN)
        self._changes = changes
        self._warm, self._changed = warm, warm + SPAN

    def __call__(self, start: int, count: int) -> Bytes:
        """Return ``count`` bytes of all rows from ``start`` on."""
        plain_nt = self._read(start, count)
        rows = [plain_nt]
        for change in self._changes:
            changed_nt = plain_nt.copy()
            if change == "replaced":
                low, high = max(start, self._warm), min(start + count, self._changed)
                if low < high:
                    inside_nt = self._others_ns[:, low - self._warm : high - self._warm]
                    changed_nt[:, low - start : high - start] = inside_nt
            elif (moved := min(count, self._changed - start)) > 0:
                changed_nt[:, :moved] = self._earlier(start, moved)
            rows.append(changed_nt)
        return np.concatenate(rows)


def _kl(logits_rtv: Tensor, samples: int) -> Tensor:
    """Return bits [c, n, t] by which the predictions of each change differ from the plain ones."""
    plain_ntv, *changed = logits_rtv.double().log_softmax(dim=-1).split(samples)
    share_ntv = plain_ntv.exp()
    nats = [(share_ntv * (plain_ntv - one_ntv)).sum(dim=-1) for one_ntv in changed]
    return torch.stack(nats) / math.log(2)


def _squares(state: State, samples: int) -> tuple[Tensor, Tensor]:
    """Return sums of squares: of the differences of each change [c, n], of the plain state [n]."""
    differences, sizes = [], []
    for part in proper_parts(state).values():
        plain_ne, *changed = part.double().flatten(1).split(samples)
        differences.append(torch.stack([(one - plain_ne).square().sum(dim=1) for one in changed]))
        sizes.append(plain_ne.square().sum(dim=1))
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
