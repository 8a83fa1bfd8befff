"""Loss by position and the useful length, of models whose memory is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.probe import loss
from elman.probe.result import Loss
from tests.probe.hand_set import Delay, model_of, periodic, reader_of, text_of

PERIOD, LENGTH = 64, 1024


def measured(folder: Path, steps: int, *, positions: int = 2048, trained: int = 32) -> Loss:
    """Measure a model that remembers ``steps`` bytes, on texts that repeat after 64."""
    text = text_of(folder, periodic(PERIOD, LENGTH, documents=3))
    reader = reader_of(model_of(Delay(steps)), trained, positions)
    return loss.measure(reader, text)


def test_a_cell_that_remembers_64_steps_has_a_useful_length_of_64(tmp_path: Path) -> None:
    found = measured(tmp_path, PERIOD)
    assert (found.useful_length_low, found.useful_length, found.useful_length_high) == (64, 64, 64)
    by_context = dict(zip(found.contexts, found.by_context.mean, strict=True))
    assert all(by_context[context] > 7.9 for context in (8, 16, 32))
    assert all(by_context[context] < 0.01 for context in (64, 128, 256, 512, 768))
    by_position = dict(zip(found.positions, found.carried.mean, strict=True))
    assert by_position[32] > 7.9  # nothing has come again yet
    assert by_position[128] < 0.01
    assert found.whole == pytest.approx(by_context[768])


def test_a_reset_within_the_period_leaves_nothing_to_remember(tmp_path: Path) -> None:
    found = measured(tmp_path, PERIOD, trained=32)
    assert min(found.reset.mean) > 7.9
    assert found.whole_reset is not None
    assert found.whole_reset > 7.9


def test_a_cell_that_forgets_at_once_uses_the_shortest_context(tmp_path: Path) -> None:
    found = measured(tmp_path, 1)
    assert found.useful_length == loss.SHORTEST
    assert max(found.by_context.mean) == pytest.approx(min(found.by_context.mean))


def test_any_chunks_give_the_same_numbers(tmp_path: Path) -> None:
    whole, pieces = (measured(tmp_path, PERIOD, positions=n) for n in (100_000, 21))
    assert pieces.useful_length == whole.useful_length
    for name in ("carried", "reset", "by_context"):
        for end in ("mean", "low", "high"):
            one, other = (getattr(getattr(found, name), end) for found in (pieces, whole))
            assert one == pytest.approx(other, rel=1e-5)


def test_the_work_that_is_foretold_is_the_work_that_is_done(tmp_path: Path) -> None:
    text = text_of(tmp_path, periodic(PERIOD, 700, documents=2))
    reader, read = reader_of(model_of(Delay(3)), 48), []
    reader.progress = read.append
    loss.measure(reader, text)
    assert sum(read) == loss.work(text.length, text.documents)
