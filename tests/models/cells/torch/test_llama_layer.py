"""The transformer baseline against a naive writing of its block, its cache, its refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.evaluation.generation import generate
from elman.layers import E1, Llama
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.ops.attention import turned_as_complex, turned_as_real
from elman.ops.decode.reference import draw
from elman.training.memory.estimate import estimate_memory

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def build(dim: int = 10, **options) -> Llama:
    """Return a layer with 2 heads of 4 channels and random gains; two of ten channels are left."""
    torch.manual_seed(4)
    layer = Llama(dim, **{"head_dim": 4, "mlp_width": 7, "dtype": torch.float64} | options)
    with torch.no_grad():
        for norm in (layer.attention_norm, layer.mlp_norm):
            norm.weight.normal_()
    return layer


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain


def naive_attention(layer: Llama, x: Tensor, theta: float, context: int) -> Tensor:
    """Position by position and head by head; the rotation is a product of complex numbers."""
    size, heads = 4, layer.dim // 4
    wq, wk, wv = layer.in_proj.split(heads * size)
    rates = [theta ** (-2 * pair / size) for pair in range(size // 2)]

    def turned(vector: Tensor, position: int) -> Tensor:
        angles = [[math.cos(position * r), math.sin(position * r)] for r in rates]
        phase = torch.tensor(angles, dtype=torch.float64)
        pairs = torch.view_as_complex(vector.reshape(-1, 2).contiguous())
        return torch.view_as_real(pairs * torch.view_as_complex(phase)).flatten()

    rows = []
    for row in x:
        outputs = []
        for t in range(len(row)):
            first = max(0, t - context + 1) if context else 0
            parts = []
            for head in range(heads):
                own = slice(head * size, (head + 1) * size)
                query = turned(wq[own] @ row[t], t)
                keys = [turned(wk[own] @ row[s], s) for s in range(first, t + 1)]
                weights = torch.stack([query @ key for key in keys]).div(math.sqrt(size)).softmax(0)
                values = torch.stack([wv[own] @ row[s] for s in range(first, t + 1)])
                parts.append(weights @ values)
            outputs.append(layer.out_proj @ torch.cat(parts))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


def naive_block(layer: Llama, x: Tensor, theta: float = 10000.0, context: int = 0) -> Tensor:
    """The pre-norm transformer: x = x + attention(norm x); x = x + swiglu(norm x)."""
    x = x + naive_attention(layer, rms(x, layer.attention_norm.weight), theta, context)
    n = rms(x, layer.mlp_norm.weight)
    gate, value = layer.mlp_in.split(len(layer.mlp_in) // 2)
    hidden = torch.nn.functional.silu(n @ gate.T) * (n @ value.T)
    return x + hidden @ layer.mlp_out.T


@pytest.mark.parametrize(
    "options",
    [{}, {"rope_theta": 7.0}, {"context": 1}, {"context": 3}, {"context": 99}],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()) or "default",
)
@pytest.mark.parametrize("shape", [(2, 6), (3, 1)], ids="{0[0]}x{0[1]}".format)
def test_layer_and_stream_are_the_block_written_out(options, shape) -> None:
    layer = build(**options)
    x = torch.randn(*shape, 10, dtype=torch.float64, requires_grad=True)
    parameters = [x, *layer.parameters()]
    given = {"theta": options.get("rope_theta", 10000.0), "context": options.get("context", 0)}
    results = []
    for whole in (x + layer(x)[0], naive_block(layer, x, **given)):
        loss = (whole.sin() * torch.arange(1.0, 11.0)).sum()
        results.append([whole, *torch.autograd.grad(loss, parameters)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, **EXACT)


def test_both_ways_of_turning_agree() -> None:
    """The one for a compiler and the one without."""
    x = torch.randn(2, 5, 3, 4, 2, dtype=torch.float64, requires_grad=True)
    angle = torch.randn(5, 1, 4, dtype=torch.float64)
    results = []
    for turn in (turned_as_complex, turned_as_real):
        y = turn(x, angle)
        (grad,) = torch.autograd.grad(y.sin().sum(), x)
        results.append([y, grad])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_the_language_model_is_the_plain_pre_norm_transformer() -> None:
    layers = [build(8), build(8, context=2)]
    model = LanguageModel(8, layers, dtype=torch.float64)
    with torch.no_grad():
        model.embedding.normal_()
        model.final_norm.weight.normal_()
    tokens = torch.randint(0, 256, (2, 5))
    x = naive_block(layers[1], naive_block(layers[0], model.embedding[tokens]), context=2)
    wanted = rms(x, model.final_norm.weight) @ model.embedding.T
    torch.testing.assert_close(model(tokens)[0], wanted, **EXACT)
    assert model.num_params() == 256 * 8 + 2 * (4 * 64 + 3 * 8 * 7 + 2 * 8) + 8


def test_other_cells_keep_the_wrappers_norm_beside_it() -> None:
    model = LanguageModel(8, [build(8), E1(8, dtype=torch.float64)], dtype=torch.float64)
    names = [name for name, _ in model.named_parameters() if name.startswith("norms")]
    assert names == ["norms.1.weight"]
    tokens = torch.randint(0, 256, (1, 4))
    x = naive_block(model.layers[0], model.embedding[tokens])
    x = x + model.layers[1](rms(x, model.norms[1].weight))[0]
    wanted = rms(x, model.final_norm.weight) @ model.embedding.T
    torch.testing.assert_close(model(tokens)[0], wanted, **EXACT)


@pytest.mark.parametrize(
    ("dim", "heads", "width"), [(640, 10, 1792), (100, 1, 512), (1536, 24, 4096)]
)
def test_default_sizes(dim, heads, width) -> None:
    """Heads of 64; int(8/3 dim) up to a multiple of 256 (lm-and-training specification 5.3)."""
    layer = Llama(dim, device="meta")
    assert layer.in_proj.shape == (3 * 64 * heads, dim)
    assert layer.out_proj.shape == (dim, 64 * heads)
    assert layer.mlp_in.shape == (2 * width, dim)
    assert layer.mlp_out.shape == (dim, width)


def test_the_published_count_has_a_third_norm_in_each_layer() -> None:
    config = compose_config(["model=llama"]).model
    built = build_model(config, device="meta").num_params()
    assert built == config.expected_params == 101_770_880
    assert built + config.depth * config.dim == 101_783_680


def test_initial_values() -> None:
    layer = Llama(128, head_dim=32, mlp_width=96)
    queries_keys_values = layer.in_proj.split(128)
    gate_and_value = layer.mlp_in.split(96)
    matrices = [*queries_keys_values, layer.out_proj, *gate_and_value, layer.mlp_out]
    assert len(matrices) == 7
    for matrix in matrices:
        bound = math.sqrt(6 / sum(matrix.shape))
        assert 0.99 * bound < matrix.abs().max() <= bound
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    for norm in (layer.attention_norm, layer.mlp_norm):
        assert torch.equal(norm.weight, torch.ones(128))


def test_no_position_sees_a_later_one() -> None:
    layer = build()
    x = torch.randn(1, 6, 10, dtype=torch.float64)
    changed = x.clone()
    changed[:, 4] += 1
    first, second = layer(x)[0], layer(changed)[0]
    torch.testing.assert_close(second[:, :4], first[:, :4], rtol=0, atol=0)
    assert (second[:, 4:] != first[:, 4:]).all()


def test_a_context_bounds_the_state_and_what_is_seen() -> None:
    layer = build(context=3)
    x = torch.randn(1, 9, 10, dtype=torch.float64)
    changed = x.clone()
    changed[:, 2] += 1
    first, second = layer(x)[0], layer(changed)[0]
    assert [t for t in range(9) if not torch.equal(first[:, t], second[:, t])] == [2, 3, 4]
    state = None
    for _ in range(4):
        _, state = layer(x, state)
        past = state["past"]
        assert past.shape == (1, 2, 2 * 8)
        # Nothing else is kept alive by it.
        assert past.untyped_storage().nbytes() == past.numel() * 8


def test_the_stream_keeps_its_dtype_under_autocast_and_the_past_has_autocasts() -> None:
    layer = Llama(16, head_dim=8)
    x = torch.randn(2, 5, 16)
    seen = []
    layer.mlp_norm.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x)
        again, _ = layer(x, state)
    assert (y.dtype, state["past"].dtype) == (torch.float32, torch.bfloat16)
    assert set(seen) == {torch.float32}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole, _ = layer(torch.cat([x, x], 1))
    torch.testing.assert_close(again, whole[:, 5:], rtol=0.02, atol=0.02)


def test_a_growing_past_never_reaches_cudnn(monkeypatch) -> None:
    """Its attention plans each new number of keys, 70 ms for a byte of generation."""
    layer, allowed = build(), []
    attention = torch.nn.functional.scaled_dot_product_attention

    def recorded(*given, **named) -> Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attention(*given, **named)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", recorded)
    x = torch.randn(1, 3, 10, dtype=torch.float64)
    _, state = layer(x)
    layer(x[:, :1], state)
    layer(x[:, :2], state)
    assert allowed == [True, False, False]


@pytest.mark.parametrize("context", [0, 4])
def test_generation_with_the_cache_equals_generation_without(context) -> None:
    torch.manual_seed(3)
    model = LanguageModel(16, [Llama(16, head_dim=8, context=context) for _ in range(2)]).eval()
    with torch.no_grad():
        model.embedding.mul_(30)
    lengths = []
    model.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    found = list(generate(model, b"abc", 12, temperature=2.0, seed=1))
    assert lengths == [2] + [1] * 12
    text, numbers = list(b"abc"), torch.Generator().manual_seed(1)
    for _ in range(12):
        logits = model(torch.tensor([text]))[0][:, -1].detach()
        text.append(int(draw(logits, torch.rand(1, generator=numbers), 2.0, 0, 1.0)))
    assert found == text[3:]
    assert len(set(found)) > 6


def test_activation_checkpointing_changes_no_gradient() -> None:
    model = LanguageModel(8, [build(8), build(8)], dtype=torch.float64)
    tokens = torch.randint(0, 256, (2, 6))
    results = []
    for model.activation_checkpointing in (False, True):
        loss, _ = model.loss(tokens)
        results.append(torch.autograd.grad(loss, list(model.parameters())))
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, **EXACT)


def test_the_memory_estimate_books_no_scores() -> None:
    """Twice the length is twice the memory, as in the fused kernel that runs."""
    small = ["model=llama", "model.dim=128", "model.depth=1", "train.batch_size=4"]
    needs = []
    for length in (1024, 2048):
        config = compose_config([*small, f"train.chunk_size={length}"])
        estimate = estimate_memory(config)
        needs.append(estimate.total - estimate.fixed)
    assert 1.9 < needs[1] / needs[0] < 2.1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.wrapper=legacy_ln"],
            "model.wrapper=legacy_ln: cell llama has RMSNorms of its own; use model.wrapper=rms",
        ),
        (
            ["train.tbptt=true"],
            "train.tbptt=true: a carried attention over every byte so far grows without end; "
            "add model.context=<bytes>, as in model.context=2048, or drop train.tbptt",
        ),
        (
            ["model.head_dim=7"],
            "model.head_dim=7: rotary embedding turns pairs of channels; use model.head_dim=8",
        ),
        (
            ["model.head_dim=1024"],
            "model.head_dim=1024: leaves no head in model.dim=640; use model.head_dim=640 or less",
        ),
        (
            ["model.n_heads=8"],
            "model.n_heads: cell llama does not read it (did you mean head_dim?); its options: "
            "head_dim, mlp_width, rope_theta, context",
        ),
        (
            ["kernels.backend=reference"],
            "kernels.backend=reference: cell llama has only torch and cuda; "
            "use kernels.backend=auto",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_it_cannot_do_is_refused_with_what_to_type(overrides, message) -> None:
    def made() -> None:
        config = compose_config(["model=llama", *overrides])
        build_model(config.model, backend=config.kernels.backend, device="meta")

    with pytest.raises(UserError) as caught:
        made()
    assert str(caught.value) == message


def test_a_context_allows_carried_state_in_training() -> None:
    given = ["model=llama", "train.tbptt=true", "model.context=512", "kernels.backend=torch"]
    config = compose_config(given)
    assert (config.train.tbptt, config.kernels.backend) == (True, "torch")


def test_a_model_of_layers_refuses_the_legacy_wrapper_too() -> None:
    with pytest.raises(UserError, match=r"model\.wrapper=legacy_ln: cell llama"):
        LanguageModel(8, [build(8)], "legacy_ln")
