"""Few long rows: when layers compute side by side, and when more rows are said to be faster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elman.sections.training import TrainConfig
from elman.training.long_rows import rows_note, time_parts

GPU = torch.device("cuda", 0)


def model(at_once: float, parts: int = 1, layers: int = 20) -> Any:
    """Return a stand-in for a model whose recurrences a GPU runs so many at a time."""
    return SimpleNamespace(
        time_parts=parts, layers=[None] * layers, calls_at_once=lambda *given: at_once
    )


def train(rows: int, steps: int) -> TrainConfig:
    return TrainConfig(batch_size=rows, chunk_size=steps, seed=1)


def test_layers_are_side_by_side_only_on_a_gpu_that_has_room_for_several() -> None:
    settings = train(1, 16384)
    assert time_parts(model(4), 1, settings, GPU) == 8
    assert time_parts(model(1), 1, settings, GPU) == 1
    assert time_parts(model(4, layers=1), 1, settings, GPU) == 1
    assert time_parts(model(4), 1, settings, torch.device("cpu")) == 1


@pytest.mark.parametrize(("at_once", "rows", "steps"), [(2.06, 2, 1024), (7, 4, 512), (33, 32, 64)])
def test_more_rows_are_said_to_be_faster_with_the_settings_to_type(
    at_once: float, rows: int, steps: int
) -> None:
    said = rows_note(model(at_once), 1, train(1, 2048), GPU)
    assert said is not None
    assert f"train.batch_size={rows} train.chunk_size={steps} is faster" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("made", "settings", "device"),
    [
        (model(1.75), train(4, 4096), GPU),
        (model(0.5), train(32, 4096), GPU),
        (model(4, parts=16), train(1, 16384), GPU),
        (model(4), train(1, 1023), GPU),
        (model(4), train(1, 16384), torch.device("cpu")),
    ],
    ids=["full", "more than full", "side by side", "short", "cpu"],
)
def test_nothing_is_said_where_nothing_is_known_to_be_faster(
    made: Any, settings: TrainConfig, device: torch.device
) -> None:
    assert rows_note(made, settings.batch_size, settings, device) is None


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels know their plans by the GPU's number."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    asked: list[torch.device] = []

    def calls_at_once(rows: int, dtype: torch.dtype, device: torch.device) -> float:
        asked.append(device)
        return 4

    made = model(4)
    made.calls_at_once = calls_at_once
    assert time_parts(made, 1, train(1, 16384), torch.device("cuda")) == 8
    assert asked == [torch.device("cuda", 1)]
