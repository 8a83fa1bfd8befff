"""A model that was trained to copy is found to remember as far as it copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.probe import ablation, loss, memory, state
from elman.sections.model import ModelConfig
from tests.probe.hand_set import periodic, reader_of, text_of

PERIOD, CONTEXT = 16, 24


def copier(steps: int) -> LanguageModel:
    """Train an attention that sees 24 bytes to copy what came 16 bytes before."""
    options = registry.cell("llama").parse_options(128, {"context": CONTEXT, "mlp_width": 128})
    config = ModelConfig(
        name="copier", cell="llama", dim=128, depth=1, wrapper="rms", options=options
    )
    model = build_model(config).train()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    generator = np.random.default_rng(5)
    for _ in range(steps):
        strings = generator.integers(256, size=(16, PERIOD), dtype=np.uint8)
        nats, _ = model.loss(torch.from_numpy(np.tile(strings, 4)))
        optimizer.zero_grad()
        nats.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
def test_a_model_trained_to_copy_remembers_as_far_as_it_copies(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reader = reader_of(copier(400), trained=4 * PERIOD)
    text = text_of(tmp_path, periodic(PERIOD, 1024, documents=3))
    measured = loss.measure(reader, text)
    by_context = dict(zip(measured.contexts, measured.by_context.mean, strict=True))
    assert by_context[8] > 2
    assert by_context[16] < 0.5
    assert measured.useful_length == PERIOD
    memories = memory.measure(reader, text, ["replaced"])
    changed = memories.changes["replaced"]
    kl = dict(zip(memories.distances, changed.kl.mean, strict=True))
    assert min(kl[d] for d in (4, 8, 16)) > 1
    assert max(kl[d] for d in (64, 128, 256)) < 1e-3
    held = state.measure(reader, text)
    assert held.bytes == (CONTEXT - 1) * 2 * 128 * 4  # keys and values up to the window
    assert ablation.measure(reader, text).reset.mean[0] > 2
