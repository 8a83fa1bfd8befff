"""Recall by distance, of models whose memory is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from elman.models.state import State
from elman.probe import recall
from elman.probe.result import Recall
from tests.probe.hand_set import WIDTH, Delay, model_of, reader_of, text_of

_KEY = recall.KEY


class Lookup(nn.Module):
    """Predicts what came behind the last place where the newest eight bytes stood.

    State: ``h`` [B, n, 256], the last ``n`` inputs, the oldest first; ``n`` is its memory.
    """

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        past = x_btd.new_zeros(len(x_btd), self.memory, WIDTH) if not state else state["h"]
        seen = torch.cat([past, x_btd], dim=1)
        ids = torch.where(seen.abs().sum(-1) > 0, seen.argmax(-1), -1).tolist()
        y_btd = -x_btd / WIDTH**0.5
        for row, one in enumerate(ids):
            for t in range(x_btd.shape[1]):
                end = self.memory + t + 1
                key, past_ids = one[end - _KEY : end], one[t + 1 : end]
                for start in range(len(past_ids) - _KEY - 1, -1, -1):
                    if past_ids[start : start + _KEY] == key:
                        y_btd[row, t, past_ids[start + _KEY]] += WIDTH**0.5
                        break
        return y_btd, {"h": seen[:, -self.memory :]}


def measured(folder: Path, layer: nn.Module, length: int = 128, positions: int = 10_000) -> Recall:
    """Measure a model on documents without random keys."""
    text = text_of(folder, [bytes([65 + n]) * (length + 1) for n in range(2)])
    return recall.measure(reader_of(model_of(layer), 32, positions), text, seed=3)


def test_a_cell_that_looks_up_the_last_48_bytes_recalls_only_from_there(tmp_path: Path) -> None:
    found = measured(tmp_path, Lookup(48))
    one = next(kind for kind in found.kinds if (kind.pairs, kind.copies) == (1, 1))
    saved = dict(zip(found.distances, one.saved.mean, strict=True))
    assert one.control is not None
    assert one.control > 7
    # The key reaches back over itself, the text and what was written: 24 + distance + 24 bytes.
    assert all(saved[distance] > 7 for distance in (1, 2, 4, 8))
    assert saved[64] == pytest.approx(0, abs=1e-6)


def test_a_cell_that_forgets_saves_nothing(tmp_path: Path) -> None:
    found = measured(tmp_path, Delay(1), length=1024)
    assert [(kind.pairs, kind.copies) for kind in found.kinds] == [(1, 1), (4, 1), (16, 1), (1, 4)]
    for kind in found.kinds:
        assert kind.saved.mean == pytest.approx([0.0] * len(found.distances), abs=1e-9)


def test_any_chunks_give_the_same_numbers(tmp_path: Path) -> None:
    whole, pieces = (measured(tmp_path, Lookup(48), positions=n) for n in (10_000, 40))
    for one, other in zip(whole.kinds, pieces.kinds, strict=True):
        assert one.saved.mean == pytest.approx(other.saved.mean, abs=1e-6)
