"""Dropout that nothing is asked of where nothing is dropped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elman.models.blocks.dropout import Dropout


def test_where_nothing_is_dropped_the_input_itself_comes_back() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_otherwise_it_is_pytorchs(training) -> None:
    x = torch.randn(30, 40)
    torch.manual_seed(0)
    found = Dropout(0.3).train(training)(x)
    torch.manual_seed(0)
    assert torch.equal(found, nn.Dropout(0.3).train(training)(x))
    assert torch.equal(found, x) != training
