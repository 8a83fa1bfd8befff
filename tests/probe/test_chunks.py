"""Calls that find no memory, and groups of rows whose states would be too large."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from elman.models.state import State
from elman.probe.chunks import Text
from elman.probe.measure import MEASUREMENTS, Subject
from elman.sections.probe import PARTS, ProbePart
from tests.probe.hand_set import Leak, letters, model_of, reader_of, text_of


class Scarce(Leak):
    """Has room for ``room`` positions at a time."""

    def __init__(self, room: int) -> None:
        super().__init__(0.9)
        self.room, self.refused = room, 0

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if x_btd.shape[0] * x_btd.shape[1] > self.room:
            self.refused += 1
            raise torch.OutOfMemoryError("planted")
        return super().forward(x_btd, state)


@pytest.fixture
def text(tmp_path: Path) -> Text:
    """Return three documents."""
    return text_of(tmp_path, letters(150, documents=3))


def measured(part: ProbePart, layer: Scarce, text: Text, rows: int = 10_000) -> dict[str, object]:
    """Measure a part with states for at most ``rows`` rows together."""
    reader = reader_of(model_of(layer), trained=32, positions=600)
    reader.row_bytes, reader.state_bytes = 100, 100 * rows
    return MEASUREMENTS[part].run(Subject(reader, text, seed=7)).model_dump()


def flat(tree: object) -> list[float]:
    """Return all numbers of a tree in their order."""
    if isinstance(tree, dict):
        return [number for one in tree.values() for number in flat(one)]
    if isinstance(tree, list):
        return [number for one in tree for number in flat(one)]
    return [float(tree)] if isinstance(tree, int | float) else []


@pytest.mark.parametrize("part", [part for part in PARTS if part != "ablation"])
def test_a_call_without_room_is_made_in_parts_with_the_same_numbers(
    part: ProbePart, text: Text
) -> None:
    roomy, scarce = Scarce(10**9), Scarce(40)
    whole, parts = measured(part, roomy, text), measured(part, scarce, text)
    assert (roomy.refused, scarce.refused > 0) == (0, True)
    assert flat(parts) == pytest.approx(flat(whole), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("part", ["loss", "memory", "recall"])
@pytest.mark.parametrize("rows", [1, 40])
def test_groups_of_documents_give_the_same_numbers(part: ProbePart, rows: int, text: Text) -> None:
    whole, groups = (measured(part, Scarce(10**9), text, n) for n in (10_000, rows))
    assert flat(groups) == pytest.approx(flat(whole), rel=1e-4, abs=1e-6)


def test_no_call_has_more_rows_than_their_states_may_have_bytes(text: Text) -> None:
    class Counts(Scarce):
        rows = 0

        def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
            self.rows = max(self.rows, len(x_btd))
            return super().forward(x_btd, state)

    layer = Counts(10**9)
    measured("loss", layer, text, rows=5)
    assert layer.rows == 5


def test_without_room_for_one_position_the_error_is_raised(text: Text) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        measured("loss", Scarce(0), text)
