"""Every channel cell, in every variant, learns: the loss of a tiny model falls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elman.layers
from elman.models.language_model import LanguageModel

DIM = 16
CASES: list[tuple[str, dict[str, Any]]] = [
    ("E34", {}),
    ("E59", {}),
    ("E59b", {}),
    ("E59c", {}),
    ("E61", {}),
    ("E61", {"use_tanh": True}),
    ("E61", {"variant": "additive"}),
    ("E61", {"variant": "tied"}),
    ("E62", {}),
    ("E62", {"variant": "decay"}),
    ("E62", {"variant": "tied"}),
    ("E64", {}),
    ("E65", {}),
    ("E67", {}),
    ("E68", {}),
    ("E68", {"variant": "inverse"}),
    ("MinGRU", {}),
    ("MinGRU", {"form": "sequential", "expansion": 2.0}),
    ("MinLSTM", {}),
    ("MinLSTM", {"form": "sequential"}),
    ("E74Diagonal", {"n_state": 16}),
    ("E74Diagonal", {"n_state": 16, "update": "simple", "projection": "tied_kq"}),
    ("E74Diagonal", {"n_state": 16, "update": "ema", "nonlinearity": "rmsnorm"}),
    ("E74Diagonal", {"n_state": 16, "gate": "retain", "nonlinearity": "frobnorm"}),
    ("E74Diagonal", {"n_state": 16, "gate": "state", "projection": "tied_kvq"}),
]


@pytest.mark.parametrize(
    ("name", "options"),
    CASES,
    ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options in CASES],
)
def test_the_loss_falls_through_the_mixer(name, options) -> None:
    """The mixer alone learns: the embedding, which is the head, is held."""
    torch.manual_seed(0)
    layer = getattr(elman.layers, name)(DIM, **options)
    model = LanguageModel(DIM, [layer], "legacy_ln" if name.startswith("Min") else "rms")
    with torch.no_grad():
        model.embedding.mul_(20)
    text = b"the quick brown fox jumps over the lazy dog; "
    tokens = torch.tensor([list((text * 2)[i : i + 17]) for i in range(0, 40, 5)])
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.03)
    losses = []
    for _ in range(25):
        model.begin_step()
        loss, _ = model.loss(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
