"""Every YAML of the packaged baselines: its sizes, its published count, and what it does not read.

The sizes and counts are copied from lm-and-training specification 4.2, 5.2 and 6; the formulas are
those of its section 6, written for the published settings alone.
"""

from __future__ import annotations

import pytest

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.config.model_files import model_files
from elman.models.build import build_model

# Model: dim, depth, columns, wrapper, parameters. True: the specification prints the count.
MAMBA2 = {
    "mamba2": (896, 20, 128, "rms", 101_917_712, False),
    "mamba2_896x20_legacy": (896, 20, 128, "legacy_ln", 101_936_528, True),
    "mamba2n64": (896, 20, 64, "rms", 99_611_152, False),
    "mamba2n64_896x20_legacy": (896, 20, 64, "legacy_ln", 99_629_968, True),
    "mamba2n64_672x18_legacy": (672, 18, 64, "legacy_ln", 50_928_750, True),
    "mamba2_1600x32_legacy": (1600, 32, 128, "legacy_ln", 508_362_560, True),
    "mamba2n96_1792x25_legacy": (1792, 25, 96, "legacy_ln", 493_917_736, False),
}
# Model: dim, depth, expansion, heads, parameters.
GDN = {
    "fla-gdn": (768, 20, 2.0, 6, 95_020_016, True),
    "fla-gdn_768x20_e1": (768, 20, 1.0, 6, 59_566_576, True),
    "fla-gdn_1024x20_e1": (1024, 20, 1.0, 8, 105_717_568, True),
    "fla-gdn_2304x20_e1": (2304, 20, 1.0, 18, 533_694_928, True),
    "fla-gdn_1920x17_e2": (1920, 17, 2.0, 15, 503_382_782, False),
    "fla-gdn_768x21_e2": (768, 21, 2.0, 6, 99_761_148, False),
    "gdn-neg": (768, 21, 2.0, 6, 99_761_148, False),
}
# Of other heads or expansion than these formulas; test_model_yaml.py counts these.
OF_TASKS = {
    "fla-gdn_h32_384x4_e1",
    "fla-gdn_h6_64x1_e1",
    "gdn-neg_h32_384x4_e1",
    "gdn-neg_h6_64x1_e1",
    "mamba2_384x4_e4",
}


def mamba2_params(d: int, depth: int, n: int, wrapper: str) -> int:
    """256 d + depth [d(2i + 2N + i/64) + 5(i + 2N) + 3i/64 + i + id] + norms, i = 2d."""
    i = 2 * d
    layer = d * (2 * i + 2 * n + i // 64) + 5 * (i + 2 * n) + 3 * (i // 64) + i + i * d
    return 256 * d + depth * layer + (depth + 1) * d * (2 if wrapper == "legacy_ln" else 1)


def gdn_params(d: int, depth: int, e: float, h: int) -> int:
    """256 d + depth [2d^2 + 3d(de) + 2dh + 4(2d + de) + 2h + de/h] + (depth + 1) d."""
    i = int(d * e)
    layer = 2 * d * d + 3 * d * i + 2 * d * h + 4 * (2 * d + i) + 2 * h + i // h
    return 256 * d + depth * layer + (depth + 1) * d


def test_every_file_is_here() -> None:
    # Those with an MLP, and those of these folders, are counted with the other models
    # (test_model_yaml.py).
    others = ("why_e88_trails", "ladder", "one_nonlinear_layer")
    files = {
        name
        for name, path in model_files().items()
        if "_mlp_" not in name and path.parent.name not in others
    }
    assert {name for name in files if name.startswith(("mamba2", "fla-gdn", "gdn-neg"))} == {
        *MAMBA2,
        *GDN,
        *OF_TASKS,
    }


@pytest.mark.parametrize("name", MAMBA2)
def test_mamba2(name) -> None:
    dim, depth, columns, wrapper, params, printed = MAMBA2[name]
    config = compose_config([f"model={name}"]).model
    assert (config.dim, config.depth, config.wrapper) == (dim, depth, wrapper)
    assert config.options["n_state"] == columns
    assert (config.options["expansion"], config.options["head_dim"]) == (2.0, 64)
    assert mamba2_params(dim, depth, columns, wrapper) == params == config.expected_params
    assert build_model(config, device="meta").num_params() == params
    text = model_files()[name].read_text()
    assert ("By hand" in text or "By the formula" in text) != printed


@pytest.mark.parametrize("name", GDN)
def test_gated_delta_net(name) -> None:
    dim, depth, expansion, heads, params, printed = GDN[name]
    config = compose_config([f"model={name}"]).model
    assert (config.dim, config.depth, config.wrapper) == (dim, depth, "rms")
    assert config.options["expansion"] == expansion
    assert gdn_params(dim, depth, expansion, heads) == params == config.expected_params
    built = build_model(config, device="meta")
    assert built.num_params() == params
    assert {layer.heads for layer in built.layers} == {heads}
    assert ("By the formula" in model_files()[name].read_text()) != printed


@pytest.mark.parametrize(
    ("model", "setting", "message"),
    [
        ("fla-gdn", "model.n_state=64", "model.n_state: cell fla_gdn does not read it"),
        ("fla-gdn", "model.dropout=0.1", "model.dropout: cell fla_gdn does not read it"),
        ("mamba2", "model.n_heads=8", "model.n_heads: cell mamba2 does not read it"),
        ("mamba2", "model.use_conv=true", "model.use_conv: cell mamba2 does not read it"),
        ("mamba2", "baseline.allow_fast=true", "baseline.allow_fast=true: no such setting"),
        ("mamba2", "baseline.allow_slow=2", "baseline.allow_slow=2: expected true or false"),
    ],
)
def test_a_setting_that_nothing_reads_is_an_error(model, setting, message) -> None:
    with pytest.raises(UserError) as caught:
        compose_config([f"model={model}", setting])
    assert str(caught.value).startswith(message)


def test_heads_are_read_which_the_original_ignored() -> None:
    """Defect D6 of lm-and-training specification 10."""
    config = compose_config(["model=fla-gdn", "model.n_heads=12"]).model
    assert config.expected_params is None
    layers = build_model(config, device="meta").layers
    assert {(layer.heads, layer.key_width, layer.value_width) for layer in layers} == {
        (12, 64, 128)
    }


def test_tiny_sizes_of_the_first_commands_fit() -> None:
    for model in MAMBA2.keys() | GDN.keys():
        config = compose_config([f"model={model}", "model.dim=128", "model.depth=1"]).model
        assert build_model(config, device="meta").num_params() < 1_000_000
