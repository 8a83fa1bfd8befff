"""The packaged baselines: parameters of the packages' layers, and both ways of computing them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.layers import (
    GatedDeltaNet,
    GatedDeltaNet2,
    GatedDeltaProduct,
    KimiDeltaAttention,
    Mamba2,
    Rwkv7TimeMix,
)
from elman.models.language_model import LanguageModel
from tests.models import package_stand_ins

LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mamba2": (Mamba2, {"head_dim": 4, "n_state": 3}),
    "mamba2-groups": (Mamba2, {"head_dim": 2, "n_state": 5, "n_groups": 4, "d_conv": 3}),
    "fla-gdn": (GatedDeltaNet, {"n_heads": 2}),
    "fla-gdn-options": (
        GatedDeltaNet,
        {"n_heads": 4, "expansion": 1.5, "conv_bias": True, "gate_activation": "sigmoid"},
    ),
    "fla-gdn-plain": (
        GatedDeltaNet,
        {"use_conv": False, "use_gate": False, "allow_neg_eigval": True},
    ),
    "kda": (KimiDeltaAttention, {"n_heads": 2, "allow_neg_eigval": True}),
    "gdn2": (GatedDeltaNet2, {"n_heads": 2, "expansion": 1.5, "conv_bias": True}),
    "deltaproduct": (GatedDeltaProduct, {"n_heads": 2, "n_householder": 3}),
    "deltaproduct-plain": (
        GatedDeltaProduct,
        {"n_heads": 1, "use_forget_gate": False, "use_gate": False, "use_conv": False},
    ),
    "rwkv7": (Rwkv7TimeMix, {"head_dim": 4}),
}
layers = pytest.mark.parametrize("name", LAYERS)


def build(name: str, dim: int = 8, **more: Any) -> Any:
    """Return a layer in fp64."""
    layer, options = LAYERS[name]
    torch.manual_seed(5)
    return layer(dim, **options, **more, dtype=torch.float64)


def shapes(layer: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in layer.state_dict().items()}


def test_mamba2_has_the_parameters_of_mamba_ssm() -> None:
    """Names, order and shapes as printed from mamba_ssm.modules.mamba2.Mamba2(64) 2.3.2."""
    assert list(shapes(Mamba2(64)).items()) == [
        ("dt_bias", (2,)),
        ("A_log", (2,)),
        ("D", (2,)),
        ("in_proj.weight", (2 * 128 + 2 * 128 + 2, 64)),
        ("conv1d.weight", (384, 1, 4)),
        ("conv1d.bias", (384,)),
        ("norm.weight", (128,)),
        ("out_proj.weight", (64, 128)),
    ]


def test_gated_delta_net_has_the_parameters_of_fla() -> None:
    """As printed from fla.layers.GatedDeltaNet(hidden_size=64, head_dim=16, num_heads=4) 0.6.0."""
    assert list(shapes(GatedDeltaNet(64, n_heads=4)).items()) == [
        ("A_log", (4,)),
        ("dt_bias", (4,)),
        ("q_proj.weight", (64, 64)),
        ("k_proj.weight", (64, 64)),
        ("v_proj.weight", (128, 64)),
        ("a_proj.weight", (4, 64)),
        ("b_proj.weight", (4, 64)),
        ("q_conv1d.weight", (64, 1, 4)),
        ("k_conv1d.weight", (64, 1, 4)),
        ("v_conv1d.weight", (128, 1, 4)),
        ("g_proj.weight", (128, 64)),
        ("o_norm.weight", (32,)),
        ("o_proj.weight", (64, 128)),
    ]


# As printed from the layers of fla.layers 0.6.0 with hidden_size=32, two heads of 16 and their
# other defaults; tools/gpu/baselines.py compares their numbers.
PEERS = {
    "kda": (
        KimiDeltaAttention(32, n_heads=2),
        "A_log 2, dt_bias 32, q_proj.weight 32x32, k_proj.weight 32x32, v_proj.weight 32x32, "
        "q_conv1d.weight 32x1x4, k_conv1d.weight 32x1x4, v_conv1d.weight 32x1x4, "
        "f_proj.0.weight 16x32, f_proj.1.weight 32x16, b_proj.weight 2x32, g_proj.0.weight 16x32, "
        "g_proj.1.weight 32x16, g_proj.1.bias 32, o_norm.weight 16, o_proj.weight 32x32",
    ),
    "gdn2": (
        GatedDeltaNet2(32, n_heads=2),
        "A_log 2, dt_bias 32, q_proj.weight 32x32, k_proj.weight 32x32, v_proj.weight 32x32, "
        "q_conv1d.weight 32x1x4, k_conv1d.weight 32x1x4, v_conv1d.weight 32x1x4, "
        "f_proj.0.weight 16x32, f_proj.1.weight 32x16, b_proj.weight 32x32, w_proj.weight 32x32, "
        "g_proj.0.weight 16x32, g_proj.1.weight 32x16, g_proj.1.bias 32, o_norm.weight 16, "
        "o_proj.weight 32x32",
    ),
    "deltaproduct": (
        GatedDeltaProduct(32, n_heads=2),
        "A_log 2, dt_bias 2, q_proj.weight 32x32, k_proj.weight 64x32, v_proj.weight 128x32, "
        "b_proj.weight 4x32, a_proj.weight 2x32, q_conv1d.weight 32x1x4, k_conv1d.weight 64x1x4, "
        "v_conv1d.weight 128x1x4, g_proj.weight 64x32, o_norm.weight 32, o_proj.weight 32x64",
    ),
    "rwkv7": (
        Rwkv7TimeMix(32, head_dim=16),
        "x_r 1x1x32, x_w 1x1x32, x_k 1x1x32, x_v 1x1x32, x_a 1x1x32, x_g 1x1x32, k_k 32, k_a 32, "
        "r_k 2x16, r_proj.weight 32x32, k_proj.weight 32x32, v_proj.weight 32x32, "
        "o_proj.weight 32x32, w_lora.lora.0.weight 32x32, w_lora.lora.2.weight 32x32, "
        "w_lora.lora.2.bias 32, a_lora.lora.0.weight 32x32, a_lora.lora.2.weight 32x32, "
        "a_lora.lora.2.bias 32, g_lora.lora.0.weight 32x32, g_lora.lora.2.weight 32x32, "
        "g_norm.weight 32, g_norm.bias 32",
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_has_the_parameters_of_its_package(name) -> None:
    layer, printed = PEERS[name]
    found = (f"{one} {'x'.join(map(str, size))}" for one, size in shapes(layer).items())
    assert ", ".join(found) == printed


def assert_uniform(weight: Tensor, bound: float) -> None:
    """Check U(-bound, bound) by its extremes and its standard deviation."""
    assert 0.95 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize(
    ("make", "rates"),
    [
        (lambda: Mamba2(4096), (1.0, 16.0)),
        (lambda: GatedDeltaNet(1024, n_heads=128), (0.0, 16.0)),
    ],
    ids=["mamba2", "fla-gdn"],
)
def test_initial_values_are_those_of_the_packages(make, rates) -> None:
    torch.manual_seed(5)  # of 128 values: a mean over few strays far
    for name, weight in make().named_parameters():
        if name.endswith("proj.weight"):
            assert_uniform(weight, 1 / math.sqrt(weight.shape[1]))
        elif "conv1d" in name:
            assert_uniform(weight, 1 / math.sqrt(4))
        elif name == "A_log":
            low, high = rates
            assert low <= weight.exp().min()
            assert weight.exp().max() <= high
            assert weight.exp().mean().item() == pytest.approx((low + high) / 2, rel=0.2)
        elif name == "dt_bias":
            step = torch.nn.functional.softplus(weight).log()
            assert math.log(0.001) - 1e-3 <= step.min()
            assert step.max() <= math.log(0.1) + 1e-3
            assert step.mean().item() == pytest.approx(math.log(0.01), abs=0.4)
        else:
            assert (weight == 1).all(), name


@layers
def test_making_a_layer_draws_what_resetting_it_draws(name) -> None:
    made, again = build(name), build(name)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    torch.manual_seed(5)
    again.reset_parameters()
    for left, right in zip(made.state_dict().values(), again.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_initial_ranges_are_settings() -> None:
    layer = Mamba2(1024, a_min=2.0, a_max=2.0, dt_min=0.01, dt_max=0.02, dt_floor=0.015)
    torch.testing.assert_close(layer.A_log.exp(), torch.full((32,), 2.0))
    step = torch.nn.functional.softplus(layer.dt_bias)
    assert step.min() >= 0.0149
    assert step.max() <= 0.0201


def computed(layer: Any, x: Tensor, lengths: tuple[int, ...]) -> list[Tensor]:
    """Return outputs, last state and gradients of a sequence handed over in pieces."""
    x = x.clone().requires_grad_()
    state, parts = None, []
    for piece in x.split(lengths, dim=1):
        y, state = layer(piece, state)
        parts.append(y)
    outputs = [torch.cat(parts, 1), *state.values()]
    torch.manual_seed(6)
    # Not randn_like, which draws in the order of a tensor's strides.
    weights = [torch.randn(one.shape, dtype=one.dtype) for one in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [x, *layer.parameters()], weights)]


@layers
@pytest.mark.parametrize("lengths", [(1, 1, 131), (70, 63), (2, 128, 3)], ids="{}".format)
def test_pieces_longer_and_shorter_than_a_chunk_equal_the_whole(name, lengths) -> None:
    layer = build(name)
    x = torch.randn(2, 133, 8, dtype=torch.float64)
    for got, wanted in zip(computed(layer, x, lengths), computed(layer, x, (133,)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-10)


@layers
@pytest.mark.parametrize("lengths", [(17,), (1, 2, 14)], ids=["whole", "carried"])
def test_the_package_is_called_with_what_plain_pytorch_computes(name, lengths, monkeypatch) -> None:
    """On stand-ins with the packages' signatures; tools/gpu/baselines.py has the packages."""
    wanted = computed(build(name), x := torch.randn(2, 17, 8, dtype=torch.float64), lengths)
    called = package_stand_ins.install(monkeypatch)
    layer = build(name, backend="triton")
    for got, plain in zip(computed(layer, x, lengths), wanted, strict=True):
        # The decay rates are handed over in fp32.
        torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-7)
    assert len(called) >= len(lengths)


def test_a_model_of_rwkv7_mixes_the_values_of_its_first_layer() -> None:
    """Every other layer reads them: its output follows what the first layer's values do."""
    torch.manual_seed(5)
    placed = [Rwkv7TimeMix(8, head_dim=4, dtype=torch.float64) for _ in range(3)]
    for index, layer in enumerate(placed):
        layer.place(index, placed)
        torch.nn.init.normal_(layer.o_proj.weight)
    assert [layer.v_lora is None for layer in placed] == [True, False, False]
    # Initial values of the place, as flash-linear-attention 0.6.0 sets them in layer 1 of 3.
    torch.testing.assert_close(
        placed[1].g_norm.weight, torch.full((8,), (2 / 3) ** 0.7, dtype=torch.float64)
    )
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    placed[0](x)
    before = placed[2](x)[0]
    with torch.no_grad():
        placed[0].v_proj.weight.mul_(2)
    placed[0](x)
    assert (placed[2](x)[0] - before).abs().max() > 1e-3
    copied = copy.deepcopy(placed)
    assert copied[2].first is copied[0].first is not placed[0].first


@pytest.mark.parametrize("layer", [Mamba2, GatedDeltaNet])
def test_nothing_is_left_unread_by_weight_decay(layer) -> None:
    """Matrices decay; taps, decay rates, time steps, skips and gains do not."""
    marked = {n for n, p in layer(128).named_parameters() if hasattr(p, "no_weight_decay")}
    assert marked >= {n for n, p in layer(128).named_parameters() if p.ndim == 3}
    assert marked >= {"A_log", "dt_bias"}


@pytest.mark.parametrize(
    ("dim", "options", "heads"),
    [(768, {}, 6), (64, {}, 1), (320, {}, 2), (896, {}, 7), (384, {"n_heads": 2}, 2)],
)
def test_heads_of_gated_delta_net(dim, options, heads) -> None:
    layer = GatedDeltaNet(dim, device="meta", **options)
    assert (layer.heads, layer.key_width, layer.value_width) == (
        heads,
        dim // heads,
        2 * dim // heads,
    )


WRONG = [
    (
        Mamba2,
        {"expansion": 1.5, "head_dim": 64, "dim": 64},
        "model.expansion=1.5: 96 channels are not a whole number of heads of 64; "
        "use model.expansion=1 or 2, or another model.head_dim",
    ),
    (  # 1600 * 2.28 is less than 3648
        Mamba2,
        {"expansion": 2.25, "head_dim": 64, "dim": 1600},
        "model.expansion=2.25: 3600 channels are not a whole number of heads of 64; "
        "use model.expansion=2.24 or 2.2800000000000002, or another model.head_dim",
    ),
    (
        Mamba2,
        {"n_groups": 3, "dim": 128},
        "model.n_groups=3: does not divide 4 heads; use model.n_groups=2",
    ),
    (
        Mamba2,
        {"chunk_size": 100, "dim": 128},
        "model.chunk_size=100: not a power of two; use model.chunk_size=64 or 128",
    ),
    (
        Mamba2,
        {"dt_min": 0.5, "dim": 128},
        "model.dt_min=0.5: above model.dt_max=0.1; use model.dt_min=0.1 or less",
    ),
    (
        GatedDeltaNet,
        {"n_heads": 5, "dim": 128},
        "model.n_heads=5: does not divide model.dim=128; "
        "use model.n_heads=4 or name model.head_dim",
    ),
    (
        GatedDeltaNet,
        {"expansion": 1.3, "n_heads": 8, "dim": 128},
        "model.expansion=1.3: 20.8 values for a head of 16 keys is not a whole number; "
        "use model.expansion=1.3125",
    ),
    (
        GatedDeltaNet,
        {"use_gate": False, "gate_activation": "sigmoid", "dim": 128},
        "model.gate_activation=sigmoid: read only with model.use_gate=true; "
        "add model.use_gate=true or drop model.gate_activation",
    ),
]


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    WRONG,
    ids=[f"{layer.__name__}-{next(iter(given))}" for layer, given, _ in WRONG],
)
def test_sizes_that_do_not_fit_are_refused_with_what_does(layer, options, message) -> None:
    with pytest.raises(UserError) as caught:
        layer(**options, device="meta")
    assert str(caught.value) == message


def test_the_sizes_that_the_errors_offer_are_taken() -> None:
    for expansion in (1.0, 2.0):
        Mamba2(64, expansion=expansion, device="meta")
    GatedDeltaNet(128, n_heads=8, expansion=1.3125, device="meta")


@pytest.mark.parametrize("layer", [Mamba2(64, head_dim=16, n_state=8), GatedDeltaNet(64)])
def test_generation_continues_what_a_prompt_began(layer) -> None:
    """A prompt at once and then byte by byte gives the logits of all bytes at once."""
    model = LanguageModel(64, [layer]).eval()
    tokens = torch.randint(256, (1, 70))
    with torch.no_grad():
        whole, _ = model(tokens)
        logits, states = model(tokens[:, :66])
        pieces = [logits]
        for position in range(66, 70):
            logits, states = model(tokens[:, position : position + 1], states)
            pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-4, atol=1e-5)
