"""Memory by intervention, of models whose memory is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from elman.models.build import layer_class
from elman.models.cells import registry
from elman.probe import memory, state
from elman.probe.result import Change, Memory
from elman.sections.probe import CHANGES, ProbeChange
from tests.probe.hand_set import Breaks, Delay, Leak, letters, model_of, reader_of, text_of

LENGTH = 600
# The matrix that has the rows of a cell's gates, which of its blocks they are, and of how many.
GATES = {
    "e61": ("cell_proj", 0, 2),
    "e62": ("cell_proj", 0, 2),
    "e63": ("input", 1, 2),
    "mingru": ("cell_proj", 1, 2),
    "cudalstm": ("cell_proj", 0, 4),
    "lstm": ("rnn.weight_ih_l0", 1, 4),
}


DISTANCES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def measured(
    folder: Path, *layers: nn.Module, positions: int = 10_000, change: ProbeChange = "replaced"
) -> Change:
    """Measure a model on random letters."""
    text = text_of(folder, letters(LENGTH, documents=3))
    found = memory.measure(reader_of(model_of(*layers), 32, positions), text, CHANGES)
    assert found.distances == DISTANCES
    assert tuple(found.changes) == CHANGES
    return found.changes[change]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.98])
def test_the_half_life_of_a_decay_is_log_half_over_log_decay(
    tmp_path: Path, decay: float, change: ProbeChange
) -> None:
    found = measured(tmp_path, Leak(decay), change=change)
    assert found.half_lives == [pytest.approx(math.log(0.5) / math.log(decay), rel=2e-3)]
    (layer,) = found.layers
    first = layer.mean[0]
    expected = [first, *(first * decay**distance for distance in DISTANCES)]
    assert layer.mean == pytest.approx(expected, rel=1e-2, abs=1e-6)


def test_a_cell_that_remembers_exactly_64_steps_knows_nothing_of_older_bytes(
    tmp_path: Path,
) -> None:
    found = measured(tmp_path, Delay(64))
    changes = dict(zip([0, *DISTANCES], found.layers[0].mean, strict=True))
    kl = dict(zip(DISTANCES, found.kl.mean, strict=True))
    assert all(changes[distance] > 0.3 for distance in (0, 1, 2, 4, 8, 16, 32))
    assert all(changes[distance] == 0 for distance in (64, 128, 256))
    # The changed bytes are 48 to 63 bytes before what they predict.
    assert kl[64] > 1
    assert [kl[d] for d in (1, 2, 4, 8, 16, 32, 128, 256)] == pytest.approx([0] * 8, abs=1e-9)


def test_removed_bytes_shift_all_that_a_cell_remembers_until_it_has_read_as_much_again(
    tmp_path: Path,
) -> None:
    found = measured(tmp_path, Delay(64), change="removed")
    changes = dict(zip([0, *DISTANCES], found.layers[0].mean, strict=True))
    # Of 63 remembered bytes, those before the change stand elsewhere and those behind it do not.
    held = {distance: min(63, 48 + distance) for distance in changes}  # 48 bytes come before
    size = sum(held.values()) / len(held)
    for distance in (0, 1, 2, 4, 8, 16, 32):
        expected = math.sqrt(2 * (1 - 1 / 26) * (held[distance] - distance) / size)
        assert changes[distance] == pytest.approx(expected, rel=0.05)
    assert all(changes[distance] == 0 for distance in (64, 128, 256))
    kl = dict(zip(DISTANCES, found.kl.mean, strict=True))
    # Before distance 16 the byte that is predicted to come again is older than the first one read.
    assert all(kl[distance] > 1 for distance in (32, 64))
    assert [kl[d] for d in (1, 2, 4, 8, 128, 256)] == pytest.approx([0] * 6, abs=1e-9)


def test_a_cell_that_counts_its_bytes_sees_no_change_where_some_are_removed(
    tmp_path: Path,
) -> None:
    found = measured(tmp_path, Breaks(after=LENGTH), change="removed")
    assert found.layers[0].mean == [0.0] * (1 + len(DISTANCES))


@pytest.mark.parametrize("length", [64, 70, 95, 128])
def test_a_short_document_has_room_for_the_removed_bytes(tmp_path: Path, length: int) -> None:
    text = text_of(tmp_path, letters(length, documents=2))
    found = memory.measure(reader_of(model_of(Leak(0.5)), 32, 100), text, ["removed"])
    assert found.changes["removed"].layers[0].mean[0] > 0.1
    assert found.changes["removed"].half_lives == [pytest.approx(1, rel=1e-2)]


@pytest.mark.parametrize("change", CHANGES)
def test_a_cell_that_forgets_at_once_has_no_change_left_after_a_byte(
    tmp_path: Path, change: ProbeChange
) -> None:
    found = measured(tmp_path, Leak(0.0), change=change)
    assert found.layers[0].mean[0] > 1
    assert found.layers[0].mean[1:] == [0.0] * len(DISTANCES)
    assert found.half_lives == [1.0]
    assert found.half_life_of_prediction is None  # nothing is changed at distance 1 already


def test_layers_have_half_lives_of_their_own(tmp_path: Path) -> None:
    slow, fast = measured(tmp_path, Leak(0.98), Leak(0.5)).half_lives
    assert slow is not None
    assert fast is not None
    assert slow == pytest.approx(math.log(0.5) / math.log(0.98), rel=2e-3)
    assert fast < slow


@pytest.mark.parametrize("change", CHANGES)
def test_any_chunks_give_the_same_numbers(tmp_path: Path, change: ProbeChange) -> None:
    one, other = (measured(tmp_path, Leak(0.9), positions=n, change=change) for n in (100_000, 77))
    assert one.kl.mean == pytest.approx(other.kl.mean, rel=1e-4, abs=1e-9)
    assert one.layers[0].mean == pytest.approx(other.layers[0].mean, rel=1e-4)


@pytest.mark.parametrize("cell", GATES)
def test_a_constant_gate_has_the_half_life_of_the_decay_that_the_cell_tells(
    tmp_path: Path, cell: str
) -> None:
    layer = layer_class(registry.cell(cell))(256)
    name, block, blocks = GATES[cell]
    with torch.no_grad():  # the biases of the gates alone are left
        layer.get_parameter(name).chunk(blocks)[block].zero_()
        for key, parameter in layer.named_parameters():
            if key in ("recurrent", "rnn.weight_hh_l0"):
                parameter.zero_()
    text = text_of(tmp_path, letters(LENGTH, documents=3))
    reader = reader_of(model_of(layer), 32, 10_000)
    (layer_state,) = state.measure(reader, text).layers
    assert layer_state.decay is not None
    decay = layer_state.decay[-1][0]
    assert layer_state.decay == [[pytest.approx(decay)]] * len(layer_state.decay)
    expected = math.log(0.5) / math.log(decay)
    (found,) = memory.measure(reader, text, ["replaced"]).changes.values()
    assert found.half_lives == [pytest.approx(expected, rel=0.01)]


def test_a_half_life_beyond_the_last_distance_is_none() -> None:
    assert memory.half_life([0, 1, 2], [1.0, 0.9, 0.8]) is None
    assert memory.half_life([0, 1, 2], [0.0, 0.0, 0.0]) is None
    assert memory.half_life([0, 4, 8], [1.0, 1.0, 0.25]) == pytest.approx(6)


def test_a_probe_of_version_1_is_read_as_one_of_replaced_bytes(tmp_path: Path) -> None:
    change = measured(tmp_path, Leak(0.9))
    first = {"distances": DISTANCES, **change.model_dump()}
    read = Memory.model_validate(first, strict=False)
    assert read == Memory(distances=DISTANCES, changes={"replaced": change})
    assert Memory.model_validate(read.model_dump(), strict=False) == read
