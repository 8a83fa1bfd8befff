"""Scoring tokens: which of them count, and the numbers with and without chunks of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from elman.config.compose import compose_config
from elman.data.windows import NO_TOKEN, TokenRows
from elman.evaluation.validation import nats_of_batches, score_in_order
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.ops import cross_entropy

CPU = torch.device("cpu")
TOKENS = 1000


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    settings = compose_config(["model=e1", "model.dim=128", "model.depth=1"]).model
    return build_model(settings.with_vocabulary(TOKENS))


@pytest.fixture
def rows() -> TokenRows:
    """Three rows: one is short, and of one the first tokens are read only."""
    ids_bn = np.random.default_rng(0).integers(TOKENS, size=(3, 20)).astype(np.int32)
    ids_bn[1, 11:] = NO_TOKEN
    return TokenRows(ids_bn, 100, read_b=np.array([0, 0, 5], dtype=np.int32))


@pytest.mark.parametrize("positions", [1, 7, 57, None])
def test_only_predicted_tokens_count_however_the_loss_is_cut(
    model, rows, positions, monkeypatch: pytest.MonkeyPatch
) -> None:
    if positions is not None:
        monkeypatch.setattr(cross_entropy, "MOST_LOGITS", TOKENS * positions)
    ids = torch.from_numpy(rows.ids_bn).long()
    targets = ids[:, 1:].clone()
    targets[2, :5] = NO_TOKEN
    with torch.no_grad():
        logits, _ = model(ids[:, :-1].clamp(min=0))
        nats = functional.cross_entropy(
            logits.flatten(0, 1).double(), targets.flatten(), ignore_index=NO_TOKEN, reduction="sum"
        )
    assert int((targets != NO_TOKEN).sum()) == 19 + 10 + 14
    assert nats_of_batches(model, [rows], CPU, "fp32") == [(pytest.approx(float(nats)), 100)]


def test_tokens_in_order_are_read_from_the_state_of_the_part_before(model, monkeypatch) -> None:
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", TOKENS * 4)
    ids_n = np.random.default_rng(1).integers(TOKENS, size=31).astype(np.int32)
    parts = [TokenRows(ids_n[None, first : first + 11], 20) for first in (0, 10, 20)]
    whole, _ = score_in_order(model, [TokenRows(ids_n[None], 60)], CPU, "fp32")
    assert score_in_order(model, parts, CPU, "fp32") == (pytest.approx(whole), 60)
