"""Building a model from its configuration."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from elman.base.errors import UserError
from elman.models.build import build_model, layer_class
from elman.models.cells import registry
from elman.sections.model import ModelConfig


def config(**changes: object) -> ModelConfig:
    """Return a small E88 configuration."""
    options = registry.cell("e88").parse_options(128, {"n_heads": 2, "n_state": 4})
    return ModelConfig(
        **({"name": "small", "cell": "e88", "dim": 128, "depth": 2, "options": options} | changes)
    )


# 256 d + 2 (d (2 H n + H v) + d H + 2 H + H v d + d) + d, d = 128, H = 2, n = v = 4.
PARAMS = 256 * 128 + 2 * (128 * 24 + 128 * 2 + 4 + 8 * 128 + 128) + 128


def test_the_model_is_what_the_configuration_says() -> None:
    model = build_model(config(expected_params=PARAMS))
    assert model.num_params() == PARAMS
    assert len(model.layers) == 2
    assert model.wrapper == "rms"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(layer.settings.count("n_heads") == 2 for layer in model.layers)


def test_device_and_dtype() -> None:
    model = build_model(config(), device="meta", dtype=torch.float64)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_the_seed_decides_the_weights() -> None:
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(torch.cat([p.flatten() for p in build_model(config()).parameters()]))
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_layers_are_not_alike() -> None:
    model = build_model(config())
    assert not torch.equal(model.layers[0].in_proj, model.layers[1].in_proj)


def test_a_wrong_expected_count_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        build_model(config(expected_params=PARAMS + 1))
    assert str(caught.value) == (
        f"model.expected_params={PARAMS + 1}: small has {PARAMS} parameters; "
        f"use model.expected_params={PARAMS} or model.expected_params=null"
    )


def test_the_backend_reaches_the_layers_and_a_missing_one_is_refused(monkeypatch) -> None:
    cell = dataclasses.replace(registry.cell("e88"), backends=("reference",))
    monkeypatch.setattr(layer_class(cell), "cell", cell)
    model = build_model(config(), backend="reference")
    assert {layer.backend for layer in model.layers} == {"reference"}
    with pytest.raises(UserError, match="cell e88 has only reference; use"):
        build_model(config(), backend="cuda")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("no.such.module:E88", "cannot be imported"),
        ("elman.models.cells.matrix_state.e88_layer:E89", "cannot be imported"),
        ("elman.models.cells.matrix_state.e88_layer:head_norm", "is not an nn.Module class"),
    ],
)
def test_a_broken_declaration_of_another_package_is_one_line(layer, message) -> None:
    broken = dataclasses.replace(registry.cell("e88"), name="mine", layer=layer)
    with pytest.raises(UserError, match=f"cell mine: its layer .*{message}"):
        layer_class(broken)
