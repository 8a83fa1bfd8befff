"""Layers side by side: parts of the time follow each other through them, with the same result."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.models import wavefront
from elman.models.build import layer_class
from elman.models.cells import registry
from elman.models.cells.common import mixer
from elman.models.language_model import LanguageModel
from elman.models.wavefront import parts_of
from elman.ops.dense.cuda import forms, kernels
from elman.ops.matrix_state.cuda.heuristics import H200, calls_at_once
from elman.ops.matrix_state.cuda.tile_config import Types
from elman.ops.matrix_state.stacked import DELTA, stacked_plan
from tests.models.cases import CASES, DIM, build

# A matrix state with a convolution, dense ones of both wrappers, norms of its own, a window.
MODELS = [("e88-full", "rms"), ("e1", "rms"), ("e1", "legacy_ln"), ("mamba2", "rms")]
DENSE = ("e0", "e0-orthogonal", "e56", "e59c", "e60", "e60-tied", "e63", "e63-h-dependent")
MODELS += [(case, "rms") for case in DENSE]
STEPS = 11
BF16 = Types("elman::bf16", "float", "elman::f16")


def model_of(case: str, wrapper: Any) -> LanguageModel:
    """Return a model of three layers in fp64."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": torch.float64, "backend": "reference"}
    layers = [build(CASES[case], **options) for _ in range(3)]
    return LanguageModel(DIM, layers, wrapper, dtype=torch.float64, backend="reference")


def outcome(model: LanguageModel, parts: int, **given: Any) -> list[Tensor]:
    """Return loss, states and gradients of a pass in so many parts."""
    model.time_parts = parts
    model.zero_grad()
    tokens = torch.arange(3 * (STEPS + 1)).view(3, -1) * 7 % 256
    loss, states = model.loss(tokens, **given)
    (loss + sum(part.sum() for state in states for part in state.values())).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [loss, *(part for state in states for part in state.values()), *gradients]


@pytest.mark.parametrize("parts", [2, 3, STEPS])
@pytest.mark.parametrize(("case", "wrapper"), MODELS, ids=lambda value: str(value))
def test_parts_of_the_time_give_the_whole_ones_loss_states_and_gradients(
    case: str, wrapper: str, parts: int
) -> None:
    model = model_of(case, wrapper)
    torch.testing.assert_close(outcome(model, parts), outcome(model, 1), rtol=1e-9, atol=1e-12)


def test_parts_go_on_from_given_states_and_know_resets() -> None:
    model = model_of("e88-conv", "rms")
    with torch.no_grad():
        _, states = model(torch.arange(15).view(3, 5))
    resets_bt = torch.zeros(3, STEPS, dtype=torch.bool)
    resets_bt[0, 4] = resets_bt[1, 0] = resets_bt[2, 7] = True
    given = {"states": states, "resets_bt": resets_bt}
    whole = outcome(model, 1, **given)
    torch.testing.assert_close(outcome(model, 3, **given), whole, rtol=1e-9, atol=1e-12)


def test_a_pass_without_gradients_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("e1", "rms")
    model.time_parts = 3
    monkeypatch.setattr(wavefront, "run", None)  # its call would fail
    with torch.no_grad():
        model(torch.zeros(1, STEPS, dtype=torch.long))


class _Stream:
    """Notes which work of which stream it waits for."""

    def __init__(self, name: str) -> None:
        self.name, self.device_index = name, 0
        self.done: list[int] = []
        self.after: list[tuple[str, int]] = []

    def wait_stream(self, other: _Stream) -> None:
        self.after.append((other.name, len(other.done)))


def test_a_layer_on_a_gpu_waits_for_nothing_but_its_part_of_the_layer_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside, streams = _Stream("outside"), [_Stream(str(n)) for n in range(3)]
    monkeypatch.setattr(wavefront, "_streams", lambda device, layers: tuple(streams))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: outside)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    lanes = wavefront._Lanes(torch.device("cuda", 0), 3)
    calls = list(wavefront._wave(3, 4))
    for layer, part in calls:
        with lanes.enter(layer, []):
            assert part == len(streams[layer].done)
            streams[layer].done.append(part)
    lanes.join([])
    assert sorted(calls) == [(layer, part) for layer in range(3) for part in range(4)]
    assert streams[0].after == [("outside", 0)]
    for before, stream in pairwise(streams):
        assert stream.after == [("outside", 0), *((before.name, part + 1) for part in range(4))]
    assert outside.after == [(stream.name, 4) for stream in streams]


@pytest.mark.parametrize(
    ("steps", "layers", "at_once", "parts"),
    [
        (16384, 20, 4.1, 8),
        (16384, 6, 7.0, 16),
        (65536, 6, 2.0, 16),
        (4096, 20, 1.75, 4),
        (2048, 6, 7.0, 2),
        (2047, 6, 7.0, 1),
        (16384, 20, 1.4, 1),
        (16384, 1, 4.0, 1),
        (16384, 300, 4.0, 1),
    ],
)
def test_only_long_rows_that_leave_a_gpu_idle_are_cut(
    steps: int, layers: int, at_once: float, parts: int
) -> None:
    assert parts_of(steps, layers, at_once) == parts


def test_how_many_recurrences_run_at_once_is_known_from_the_kernels_plans() -> None:
    plan = stacked_plan("delta", 32, 16, 16, **DELTA)
    matrix = [calls_at_once(plan, BF16, rows, H200) for rows in (1, 2, 4, 32)]
    assert [round(one, 2) for one in matrix] == [4.12, 2.06, 1.03, 1.03]
    dense = [forms.Shape("tanh", "bf16", rows, 1280, 0, (9, 0), 132) for rows in (1, 2, 4, 32)]
    assert [forms.calls_at_once(shape) for shape in dense] == [7, 3.5, 1.75, 1]
    assert forms.calls_at_once(forms.Shape("tanh", "fp32", 1, 1280, 0, (9, 0), 132)) == 1


@pytest.mark.parametrize("case", CASES)
def test_every_layer_on_a_gpu_says_how_many_of_its_calls_run_at_once(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixer, "choose_backend", lambda cell, requested, device: cell.backends[-1])
    layer = build(CASES[case])
    assert layer.calls_at_once(1, torch.bfloat16, torch.device("cuda")) > 0


ONE_MATRIX = ("e0", "e1", "e36", "e56", "e59c", "e60", "e60b", "e60c", "e63")


@pytest.mark.parametrize("cell", [*ONE_MATRIX, "e66", "e67lr"])
def test_dense_cells_of_one_matrix_run_several_layers_at_once_and_those_of_two_factors_one(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixer, "choose_backend", lambda declared, requested, device: "cuda")
    monkeypatch.setattr(kernels, "machine", lambda device: ((9, 0), 132))
    layer = layer_class(registry.cell(cell))(768, device="meta")
    assert isinstance(layer, mixer.Mixer)
    at_once = layer.calls_at_once(1, torch.bfloat16, torch.device("cuda", 0))
    assert at_once >= wavefront.WORTH if cell in ONE_MATRIX else at_once == 1


def test_what_does_not_know_how_many_run_at_once_stays_whole() -> None:
    model = model_of("mamba2", "rms")
    assert model.calls_at_once(1, torch.bfloat16, torch.device("cuda", 0)) == 1
