"""Bits lost without a layer's state, of models whose memory is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elman.probe import ablation
from elman.probe.ablation import EachStep
from tests.probe.hand_set import Delay, Leak, model_of, periodic, reader_of, text_of

PERIOD = 64


def test_a_delay_that_is_reset_frozen_or_swapped_predicts_nothing_right(tmp_path: Path) -> None:
    text = text_of(tmp_path, periodic(PERIOD, 1024, documents=3))
    found = ablation.measure(reader_of(model_of(Delay(PERIOD)), 32, 500), text)
    assert (found.context, found.scored) == (512, 512)
    assert found.whole == pytest.approx(0, abs=0.01)
    assert found.reset.mean[0] > 7.9  # no prediction at all: 8 bits
    assert found.frozen.mean[0] > 7.9  # the same prediction at every step
    # The first period of the scored bytes is that of another document, then its own again.
    bits_of_a_wrong_prediction = 16 / 0.6931
    share = (PERIOD - 1) / 512
    assert found.swapped.mean[0] == pytest.approx(share * bits_of_a_wrong_prediction, rel=0.05)


def test_a_layer_without_influence_costs_nothing(tmp_path: Path) -> None:
    class Silent(Leak):
        def forward(self, x_btd, state=None):  # type: ignore[no-untyped-def]
            y_btd, carried = super().forward(x_btd, state)
            return 0 * y_btd, carried

    text = text_of(tmp_path, periodic(PERIOD, 512, documents=2))
    found = ablation.measure(reader_of(model_of(Delay(PERIOD), Silent(0.9)), 32, 500), text)
    for lost in (found.reset, found.frozen, found.swapped):
        assert lost.mean[1] == 0
        assert lost.mean[0] > 1


def test_each_step_begins_at_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x_btd = Leak(0.5), torch.randn(2, 5, 256)
    state = {"h": torch.randn(2, 256)}
    frozen, after = EachStep(layer, True)(x_btd, state)
    torch.testing.assert_close(frozen, 0.1 * (0.5 * state["h"].unsqueeze(1) + x_btd))
    assert after is state
    reset, _ = EachStep(layer, False)(x_btd, state)
    torch.testing.assert_close(reset, 0.1 * x_btd)
    monkeypatch.setattr(ablation, "_STATE_BYTES", 3 * 1024)  # three steps at a time
    torch.testing.assert_close(EachStep(layer, True)(x_btd, state)[0], frozen)
