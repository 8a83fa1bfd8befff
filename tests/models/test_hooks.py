"""Hooks on a model's layers fire wherever the layer computes, and what they return counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.config.compose import compose_config
from elman.evaluation.generation import Writer
from elman.evaluation.sampling import Sampling
from elman.evaluation.validation import nats_of_batches
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel

MODELS = ["llama", "e88_tiny", "e1", "mingru", "lstm", "mamba2"]
TOKENS_BT = torch.arange(2 * 9, dtype=torch.uint8).reshape(2, 9) * 13


def model_of(name: str) -> LanguageModel:
    torch.manual_seed(3)
    config = compose_config([f"model={name}", "model.dim=128", "model.depth=2"]).model
    plain = "reference" in registry.cell(config.cell).backends
    backend = "reference" if plain else "torch"
    model = build_model(config, backend=backend, device="cpu", allow_slow=True).eval()
    with torch.no_grad():
        model.embedding.mul_(2)
        for parameter in model.layers.parameters():
            if not parameter.any():  # the last projection of LSTM
                parameter.normal_(std=0.1)
    return model


def trained(model: LanguageModel) -> Any:
    loss, _ = model.train().loss(TOKENS_BT)
    model.zero_grad()
    loss.backward()
    gradient = model.embedding.grad
    assert gradient is not None
    return loss.detach(), gradient.clone()


def recomputed(model: LanguageModel) -> Any:
    model.activation_checkpointing = True
    return trained(model)


def validated(model: LanguageModel) -> Any:
    return nats_of_batches(model, [TOKENS_BT.numpy()], torch.device("cpu"), "fp32")


def generated(model: LanguageModel) -> Any:
    writer = Writer(model, Sampling(temperature=1.5), seed=2)
    writer.read([b"abc", b"a"])
    return list(writer.write(30))


WAYS: dict[str, Callable[[LanguageModel], Any]] = {
    "training": trained,
    "recomputation": recomputed,
    "validation": validated,
    "generation": generated,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_hook_that_silences_a_layer_changes_what_is_computed(name: str, way: str) -> None:
    model = model_of(name)
    plain = WAYS[way](model)

    def silenced(layer: torch.nn.Module, given: Any, found: Any) -> Any:
        y_btd, state = found
        return torch.zeros_like(y_btd), state

    seen: list[Tensor] = []

    def noted(layer: torch.nn.Module, given: Any, found: Any) -> None:
        seen.append(found[0].detach())

    watching = model.layers[0].register_forward_hook(noted)
    torch.testing.assert_close(WAYS[way](model), plain)
    watching.remove()
    assert seen
    assert all(y_btd.any() for y_btd in seen)
    model.layers[0].register_forward_hook(silenced)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(WAYS[way](model), plain)


@pytest.mark.parametrize("name", ["llama", "e88_tiny"])
def test_every_kind_of_hook_fires(name: str) -> None:
    model, fired = model_of(name), []
    layer = model.layers[1]
    layer.register_forward_pre_hook(lambda *_: fired.append("before"))
    layer.register_full_backward_hook(lambda *_: fired.append("gradient"))
    layer.register_full_backward_pre_hook(lambda *_: fired.append("gradient before"))
    trained(model)
    assert fired == ["before", "gradient before", "gradient"]
    for_all = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: fired.append("global") if module is model.layers[0] else None
    )
    trained(model)
    for_all.remove()
    assert "global" in fired


def test_a_layer_whose_forward_is_replaced_computes_that() -> None:
    model = model_of("llama")
    plain = model(TOKENS_BT)[0]
    replaced = model.layers[0]

    def forward(x_btd: Tensor, state: Any = None) -> Any:
        y_btd, carried = type(replaced).forward(replaced, x_btd, state)
        return 0 * y_btd, carried

    replaced.forward = forward  # type: ignore[method-assign]
    assert not torch.allclose(model(TOKENS_BT)[0], plain)

    class Silent(type(replaced)):  # type: ignore[misc]
        def forward(self, x_btd: Tensor, state: Any = None) -> Any:
            y_btd, carried = super().forward(x_btd, state)
            return 0 * y_btd, carried

    other = model_of("llama")
    other.layers[0].__class__ = Silent
    torch.testing.assert_close(other(TOKENS_BT)[0], model(TOKENS_BT)[0])
