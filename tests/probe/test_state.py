"""The states themselves, of layers whose states are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from elman.models.state import State
from elman.probe import state
from elman.probe.state import effective_rank
from tests.probe.hand_set import Leak, letters, model_of, reader_of, text_of


class Heads(nn.Module):
    """Two matrices [4, 8] by head: one grows by its first value each step, one stays."""

    def forward(self, x_btd: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        S = torch.zeros(len(x_btd), 2, 4, 8) if not state else state["S"].clone()
        S[:, 0, 0, 0] += x_btd.shape[1]
        S[:, 1] = torch.eye(4, 8)
        parts = {"S": S, "k": S[:, :, 0], "conv": x_btd[:, -1:]}
        return torch.zeros_like(x_btd), parts


def test_heads_have_their_own_norm_rank_share_and_growth(tmp_path: Path) -> None:
    text = text_of(tmp_path, letters(256, documents=2))
    found = state.measure(reader_of(model_of(Heads()), trained=64), text)
    assert found.positions == [16, 32, 64, 128, 256]
    (layer,) = found.layers
    assert set(layer.parts) == {"S", "k"}
    part = layer.parts["S"]
    assert part.heads == 2
    assert [norms[0] for norms in part.norm] == [16, 32, 64, 128, 256]
    assert [norms[1] for norms in part.norm] == [2] * 5
    assert part.rank is not None
    assert part.rank[-1] == pytest.approx([1, 4])
    assert part.saturated[-1] == pytest.approx([1 / 32, 4 / 32])
    assert part.growth == [4, 1]
    assert (found.heads, found.growing, found.dying) == (4, 2, 0)
    assert (layer.parts["k"].heads, layer.parts["k"].rank) == (2, None)
    assert layer.decay is None
    assert layer.bytes == 4 * (2 * 4 * 8 + 2 * 8 + 256)
    assert found.bytes == layer.bytes


@pytest.mark.parametrize("channels", [(), (3,)])
def test_the_decay_that_a_layer_tells_is_shown_for_each_head(
    tmp_path: Path, channels: tuple[int, ...]
) -> None:
    class Tells(Leak):
        def applied_decay(self, x_btd: Tensor, state: State | None = None) -> Tensor:
            heads = torch.tensor([0.5, 0.9]).view(1, 1, 2, *[1] * len(channels))
            return heads.expand(*x_btd.shape[:2], 2, *channels)

    text = text_of(tmp_path, letters(100, documents=2))
    found = state.measure(reader_of(model_of(Leak(0.5), Tells(0.5)), positions=60), text)
    assert found.layers[0].decay is None
    decay = found.layers[1].decay
    assert decay is not None
    assert len(decay) == len(found.positions)
    assert all(heads == pytest.approx([0.5, 0.9]) for heads in decay)


def test_a_vector_is_one_head(tmp_path: Path) -> None:
    text = text_of(tmp_path, letters(100, documents=2))
    found = state.measure(reader_of(model_of(Leak(0.5), Leak(0.9))), text)
    assert [layer.parts["h"].heads for layer in found.layers] == [1, 1]
    assert found.positions[-1] == 100
    assert found.heads == 2


def test_the_effective_rank_is_the_number_of_equal_singular_values() -> None:
    matrices = torch.zeros(3, 5, 7)
    matrices[1] = 3 * torch.eye(5, 7)
    matrices[2, :2, :2] = torch.eye(2)
    assert effective_rank(matrices).tolist() == pytest.approx([0, 5, 2])
