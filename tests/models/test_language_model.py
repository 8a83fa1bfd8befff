"""The language model wrapper against plain rewritings of its two forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from elman.layers import E1, E75, E88
from elman.models.language_model import LanguageModel

DIM, DEPTH = 8, 3


def build(wrapper: str = "rms", dtype: torch.dtype = torch.float64) -> LanguageModel:
    """Return a model of three different cells with random norms and large embeddings."""
    torch.manual_seed(6)
    layers = [
        E88(DIM, n_heads=2, n_state=3, use_conv=True, dtype=dtype),
        E75(DIM, n_heads=1, n_state=3, dtype=dtype),
        E1(DIM, dtype=dtype),
    ]
    model = LanguageModel(DIM, layers, wrapper, dtype=dtype)
    with torch.no_grad():
        model.embedding.normal_()
        for module in (*model.norms, model.final_norm):
            for parameter in module.parameters():
                parameter.normal_()
    return model


def rms(x: Tensor, norm: nn.Module) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    scale = (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centered / scale * norm.weight + norm.bias


def plain_rms(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Lm-and-training specification 1.2, line by line."""
    x, r = model.embedding[tokens], None
    for norm, layer in zip(model.norms, model.layers, strict=True):
        r = x if r is None else x + r
        x, _ = layer(rms(r, norm))
    return rms(x + r, model.final_norm) @ model.embedding.T


def plain_legacy(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Lm-and-training specification 1.2, the wrapper before 2026-01-11."""
    x = model.embedding[tokens]
    for norm, layer in zip(model.norms, model.layers, strict=True):
        x = x + layer(layer_norm(x, norm))[0]
    return layer_norm(x, model.final_norm) @ model.embedding.T


def plain_loss(logits: Tensor, targets: Tensor) -> Tensor:
    picked = logits.gather(-1, targets[..., None]).squeeze(-1)
    return (logits.exp().sum(-1).log() - picked).mean()


@pytest.mark.parametrize(
    ("wrapper", "plain"), [("rms", plain_rms), ("legacy_ln", plain_legacy)], ids=["rms", "legacy"]
)
@pytest.mark.parametrize("shape", [(2, 6), (1, 2), (5, 3)])
def test_loss_and_gradients_equal_the_plain_rewriting(wrapper, plain, shape) -> None:
    model = build(wrapper)
    tokens = torch.randint(0, 256, shape)
    logits, _ = model(tokens[:, :-1])
    wanted_logits = plain(model, tokens[:, :-1])
    torch.testing.assert_close(logits, wanted_logits, rtol=1e-10, atol=1e-10)
    loss, _ = model.loss(tokens)
    wanted = plain_loss(wanted_logits, tokens[:, 1:])
    torch.testing.assert_close(loss, wanted, rtol=1e-10, atol=1e-10)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(loss, parameters),
        torch.autograd.grad(wanted, parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_initial_values_of_the_wrapper() -> None:
    torch.manual_seed(0)
    model = LanguageModel(512, [E88(512, n_heads=1, n_state=4)])
    assert model.embedding.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.embedding.mean().item() == pytest.approx(0, abs=2e-4)
    for norm in (*model.norms, model.final_norm):
        assert torch.equal(norm.weight, torch.ones(512))


def test_head_and_embedding_are_one_matrix() -> None:
    model = build()
    assert [p.shape for p in model.parameters()].count((256, DIM)) == 1
    layers = sum(p.numel() for layer in model.layers for p in layer.parameters())
    assert model.num_params() == 256 * DIM + layers + (DEPTH + 1) * DIM
    assert build("legacy_ln").num_params() == model.num_params() + (DEPTH + 1) * DIM


def test_frozen_gains_are_counted() -> None:
    plain = LanguageModel(DIM, [E88(DIM, n_heads=2, n_state=3)])
    frozen = LanguageModel(DIM, [E88(DIM, n_heads=2, n_state=3, phantom_norm_gain=True)])
    assert frozen.num_params() == plain.num_params() + 3


@pytest.mark.parametrize("wrapper", ["rms", "legacy_ln"])
def test_chunks_with_carried_states_equal_the_whole(wrapper) -> None:
    model = build(wrapper)
    tokens = torch.randint(0, 256, (2, 9))
    whole, _ = model(tokens)
    states, parts = None, []
    for piece in tokens.split([4, 1, 3, 1], dim=1):
        logits, states = model(piece, states)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_dtype(dtype) -> None:
    model = build()
    tokens = torch.randint(0, 256, (2, 5))
    found = model.loss(tokens.to(dtype))[0]
    torch.testing.assert_close(found, model.loss(tokens)[0], rtol=0, atol=0)


def test_activation_checkpointing_changes_work_not_results() -> None:
    model = build()
    model.layers[0] = E88(DIM, n_heads=2, n_state=3, dropout=0.3, dtype=torch.float64)
    tokens = torch.randint(0, 256, (2, 6))
    calls = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    results = []
    for checkpointing, wanted_calls in ((False, DEPTH), (True, 2 * DEPTH)):
        model.activation_checkpointing = checkpointing
        calls.clear()
        torch.manual_seed(1)
        loss, states = model.loss(tokens)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        assert len(calls) == wanted_calls
        results.append([loss, *grads, *(t for state in states for t in state.values())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    calls.clear()
    model.eval()
    model.loss(tokens)[0].backward()
    assert len(calls) == DEPTH


def normed(made: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """Return what a norm makes for its mixer; an RMSNorm returns the stream before it."""
    return made[1] if isinstance(made, tuple) else made


@pytest.mark.parametrize(
    ("wrapper", "stream"), [("rms", torch.float32), ("legacy_ln", torch.bfloat16)]
)
def test_dtypes_under_bf16_autocast(wrapper, stream) -> None:
    model = build(wrapper, torch.float32)
    seen: dict[str, list[torch.dtype]] = {"norm in": [], "norm out": [], "mixer out": []}
    for norm in (*model.norms, model.final_norm):
        norm.register_forward_pre_hook(lambda _, given: seen["norm in"].append(given[0].dtype))
        norm.register_forward_hook(lambda _, __, made: seen["norm out"].append(normed(made).dtype))
    for layer in model.layers:
        layer.register_forward_hook(lambda _, __, made: seen["mixer out"].append(made[0].dtype))
    tokens = torch.randint(0, 256, (2, 6))
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = model.loss(tokens)
    assert set(seen["norm in"]) == {stream}
    assert set(seen["norm out"]) == {torch.bfloat16}
    assert set(seen["mixer out"]) == {torch.bfloat16}
    assert loss.dtype == torch.float32
    # Cross entropy in bf16 would be a multiple of 2^-5 here.
    assert (loss.item() * 32) % 1 != 0
    torch.testing.assert_close(loss, model.loss(tokens)[0], rtol=0.05, atol=0.05)


def test_a_bf16_model_has_an_fp32_stream_and_loss() -> None:
    model = build("rms", torch.bfloat16)
    inputs = []
    model.final_norm.register_forward_hook(lambda _, given, __: inputs.append(given[0].dtype))
    loss, _ = model.loss(torch.randint(0, 256, (2, 4)))
    assert inputs == [torch.float32]
    assert loss.dtype == torch.float32


def test_the_norm_is_exact_where_torch_would_use_another_eps() -> None:
    """Tiny activations tell eps 1e-5 from the machine epsilon."""
    model = build()
    norm = model.final_norm
    x = torch.full((1, 1, DIM), 1e-4, dtype=torch.float64)
    torch.testing.assert_close(
        norm(x)[1],
        1e-4 / math.sqrt(1e-8 + 1e-5) * norm.weight.expand(1, 1, DIM),
        rtol=1e-12,
        atol=0,
    )


def test_states_of_the_wrong_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="states of the model: 1, expected one of each layer, "):
        build()(torch.zeros(1, 2, dtype=torch.long), [{}])
