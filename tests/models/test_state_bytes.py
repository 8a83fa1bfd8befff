"""``state_bytes``: what a layer carries, counted from its shapes, is what it carries."""

from __future__ import annotations

import pytest
import torch

from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.state_bytes import state_bytes


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=e88_tiny",),
        ("model=e75h4n16", "model.use_conv=true"),
        ("model=fla-gdn",),
        ("model=rwkv7",),
        ("model=lstm",),
        ("model=e23",),
        ("model=llama",),
        ("model=llama", "model.context=3"),
    ],
    ids=" ".join,
)
def test_a_state_has_as_many_bytes_as_counted(overrides: tuple[str, ...]) -> None:
    config = compose_config([*overrides, "model.dim=128", "model.depth=1"]).model
    config = config.model_copy(update={"expected_params": None})
    rows, positions = 2, 5
    model = build_model(config, backend=registry.cell(config.cell).backends[0])
    (state,) = model(torch.zeros(rows, positions, dtype=torch.long))[1]
    carried = sum(part.numel() * part.element_size() for part in state.values())
    assert state_bytes(config, positions, narrow_bytes=4) * rows == carried


def test_parts_from_projections_are_counted_in_their_precision() -> None:
    config = compose_config(["model=llama", "model.dim=128"]).model
    assert state_bytes(config, 8, narrow_bytes=4) == 2 * state_bytes(config, 8, narrow_bytes=2)


def test_counting_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    state_bytes(compose_config(["model=e88_tiny"]).model, 8, narrow_bytes=4)
    assert torch.equal(before, torch.get_rng_state())
