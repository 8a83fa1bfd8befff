"""``state_size``: what a layer carries, counted from its shapes, is what it carries."""

from __future__ import annotations

import pytest
import torch

from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.state_bytes import state_size
from elman.models.state_sizes import StateSize, counted_ahead


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
    size = state_size(config, narrow_bytes=4)
    assert size is not None
    assert size.after(positions) * rows == carried


def test_parts_from_projections_are_counted_in_their_precision() -> None:
    config = compose_config(["model=llama", "model.dim=128", "model.context=9"]).model
    assert state_size(config, narrow_bytes=4) == StateSize(0, 2 * 128 * 4, 8)
    assert state_size(config) == StateSize(0, 2 * 128 * 2, 8)


def test_counting_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    state_size(compose_config(["model=e88_tiny"]).model)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["e88_tiny", "llama", "mamba2", "kda", "e23", "slstm"])
def test_shipped_models_are_counted_ahead(name: str) -> None:
    config = compose_config([f"model={name}"]).model
    assert counted_ahead(config) == state_size(config)


@pytest.mark.parametrize("override", ["model.dim=640", "model.n_heads=2", "model.n_state=8"])
def test_a_changed_model_is_counted_anew(override: str) -> None:
    assert counted_ahead(compose_config(["model=e88_tiny", override]).model) is None
