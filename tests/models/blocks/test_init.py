"""Weights that are loaded next are not drawn first."""

from __future__ import annotations

import pytest
import torch

from elman.config.compose import compose_config
from elman.models.blocks import init
from elman.models.build import build_model

SIZES = ("model.dim=128", "model.depth=2", "model.expected_params=null")


@pytest.mark.parametrize("name", ["e88_tiny", "e1", "e74_lowrank", "llama"])
def test_a_model_whose_weights_come_later_is_loaded_as_another(name: str) -> None:
    sizes = SIZES if name != "e88_tiny" else ()
    model = compose_config([f"model={name}", *sizes]).model
    torch.manual_seed(1)
    drawn = build_model(model)
    with init.zeros():
        empty = build_model(model)
    assert not empty.embedding.any()
    assert build_model(model).embedding.any()
    empty.load_state_dict(drawn.state_dict())
    tokens_bt = torch.arange(24).view(2, 12)
    with torch.no_grad():
        assert torch.equal(empty(tokens_bt)[0], drawn(tokens_bt)[0])
