"""The optimizers that import no Dynamo are PyTorch's to the bit."""

from __future__ import annotations

import copy

import torch

from elman.training.optim.eager import AdamW


def test_adamw_has_the_bits_of_pytorchs() -> None:
    weights = [[torch.ones(3, 4, requires_grad=True)] for _ in range(2)]
    ours, theirs = (
        kind(weight, 0.1, fused=True, weight_decay=0.3)
        for kind, weight in zip((AdamW, torch.optim.AdamW), weights, strict=True)
    )
    for step in range(3):
        gradient = torch.randn(3, 4)
        for optimizer, (weight,) in zip((ours, theirs), weights, strict=True):
            optimizer.zero_grad()
            assert weight.grad is None
            weight.grad = gradient.clone()
            optimizer.step()
            assert weight.requires_grad
        if step == 1:
            ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
        assert str(ours.state_dict()) == str(theirs.state_dict())
        assert torch.equal(*(weight for (weight,) in weights))
