"""Every model's YAML: composes, validates, builds, and has the count it was published with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import elman.conf
import pytest

from elman.compose import compose_config
from elman.config import ModelConfig
from elman.models.build import build_model

FOLDER = Path(next(iter(elman.conf.__path__))) / "model"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
models = pytest.mark.parametrize("name", NAMES)

# Published rows: name -> parameters, copied from lm-and-training specification 4.2 (B to P) and
# matrix-state specification 12.8 and 14 a second time, independently of the YAML.
PUBLISHED = {
    "e1": 114_890_880,
    "e1_1280x6": 49_496_320,
    "e1_1280x6_legacy": 49_505_280,
    "e1_512x21_legacy": 49_714_944,
    "e42": 94_615_296,
    "e42_1280x6": 29_835_520,
    "e42_1536x6": 42_880_512,
    "e75h4n16": 97_561_856,
    "e75h4n24": 104_116_096,
    "e75h4n32": 98_838_400,
    "e75h4n48": 99_131_904,
    "e75h6n24": 101_910_720,
    "e75h6n32": 99_131_904,
    "e75h8n16": 98_838_400,
    "e75h8n24": 99_131_904,
    "e75h2n48_1536x20": 62_358_912,
    "e75h2n64_1408x20": 58_064_256,
    "e75h8n16_1536x20": 67_274_752,
    "e75h8n24_1280x20": 57_702_400,
    "e88_h104n32_896x32": 480_349_568,
    "e88_h16n32_2560x20": 106_387_200,
    "e88_h64n32_3072x20": 508_102_784,
    "e88_h83n32_1920x17": 436_697_222,
    "e88b_nonorm": 79_561_472,
    "e88c_h8n64": 125_582_784,
    "e88d_h12": 51_979_488,
    "e88d_h12_3200x20": 99_959_520,
    "e88d_h20": 79_684_512,
    "e88d_h20_1920x20": 99_605_280,
    "e88e_h8_75m": 40_161_600,
    "e88e_h8_75m_3840x20": 80_322_240,
    "e88f_h24n24": 71_943_072,
    "e88f_h24n24_2176x20": 101_918_752,
    "e88f_h32n16": 64_324_672,
    "e88f_h32n16_2432x20": 101_846_464,
    "e88f_h4": 23_059_872,
    "e88f_h6": 32_271_216,
}
# Rows that the tables print in millions only, with their precision.
ROUNDED = {
    "e75h3n24_1536x20": "58.67",
    "e75h3n32_1536x20": "62.36",
    "e75h4n16_1408x20_e2": "95.91",
    "e75h4n16_1664x20": "66.49",
    "e75h4n24_1408x20_e2": "104.02",
    "e75h4n24_1536x20": "62.36",
    "e75h4n32_1280x20_e2": "95.38",
    "e75h4n32_1408x20": "58.06",
    "e75h5n16_1536x20": "59.90",
    "e75h5n24_1408x20": "56.94",
    "e75h6n16_1536x20": "62.36",
    "e75h6n24_1280x20": "51.56",
    "e75h8n16_1280x20_e2": "95.38",
    "e75h8n24_1152x20_e2": "93.22",
    "e75h8n32": "98.4",
    "e75h8n32_4352x20": "491.4",
    "e88_h128n32_1536x20": "507.68",
    "e88_h24n64_4096x20": "506.42",
    "e88_h32n64_3072x20": "506.14",
    "e88_h48n32_3968x20": "492.50",
    "e88_h96n32_2048x20": "507.82",
    "e88c_nogate": "74.5",
    "e88d_h12_1536x20": "48.0",
    "e88e_h8_75m_2176x20": "45.5",
}
UNPUBLISHED = {"e88_tiny"}


@cache
def model(name: str) -> ModelConfig:
    """Return the typed configuration of ``model=<name>``."""
    return compose_config([f"model={name}"]).model


def layer_params(config: ModelConfig) -> int:
    """Count one layer by the formulas of lm-and-training 6 and matrix-state 12.2."""
    d, o = config.dim, config.options
    taps = o["d_conv"] if o["use_conv"] else 0
    if config.cell in ("e1", "e42"):
        i = int(d * o["expansion"])
        conv = i * (taps + 1) if taps else 0
        return conv + (3 * d * i + 2 * i * i + i if config.cell == "e1" else 2 * d * i + i * i + i)
    heads, n = o["n_heads"], o["n_state"]
    if config.cell == "e75":
        i = int(d * o["expansion"])
        conv = i * (taps + 1) if taps else 0
        return conv + d * i + 4 * heads * n * i + heads * n + heads * n * d
    assert config.cell == "e88"
    values = int(heads * n * o["expansion"])
    channels = 2 * heads * n + (0 if o["tie_kv"] else values)
    kept = o["use_output_norm"] or o["phantom_norm_gain"]
    decays = {"mamba": d * heads + 2 * heads, "simple": d * heads, "constant": heads, "none": 0}
    v = values // heads
    mixes = {
        "concat": values * d,
        "per_head": values * d,
        "weighted_sum": heads + v * d,
        "input_weighted": d * heads + v * d,
        "sum": v * d,
    }
    count = d * channels + taps * channels + decays[o["decay_mode"]] + mixes[o["head_mix"]]
    count += d * values * o["use_gate"] + d * heads * o["use_write_gate"]
    return count + values * o["use_value_residual"] + v * kept


def whole(config: ModelConfig) -> int:
    """Count the language model: V d + depth (layer + norm) + norm."""
    norm = config.dim * (2 if config.wrapper == "legacy_ln" else 1)
    return 256 * config.dim + config.depth * (layer_params(config) + norm) + norm


def test_every_file_is_accounted_for() -> None:
    assert set(NAMES) == set(PUBLISHED) | set(ROUNDED) | UNPUBLISHED


@models
def test_it_builds_with_the_count_of_the_formula(name) -> None:
    config = model(name)
    built = build_model(config, device="meta").num_params()
    assert built == whole(config)
    if name not in UNPUBLISHED:
        assert config.expected_params == built


@pytest.mark.parametrize("name", PUBLISHED)
def test_its_expected_count_is_the_published_one(name) -> None:
    assert model(name).expected_params == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_its_expected_count_rounds_to_the_published_one(name) -> None:
    printed = ROUNDED[name]
    decimals = len(printed.partition(".")[2])
    assert f"{model(name).expected_params / 1e6:.{decimals}f}" == printed


@models
def test_its_name_says_cell_size_and_wrapper(name) -> None:
    config = model(name)
    found = re.fullmatch(r"(e\d+).*?(?:_(\d+)x(\d+))?(_e2)?(_legacy)?", name)
    assert found is not None
    cell, dim, depth, expanded, legacy = found.groups()
    assert (config.name, config.cell) == (name, cell)
    if dim:
        assert (config.dim, config.depth) == (int(dim), int(depth))
    else:
        assert config.depth == 20 or name in UNPUBLISHED
    assert (config.wrapper == "legacy_ln") == bool(legacy)
    if expanded:
        assert config.options["expansion"] == 2.0


@pytest.mark.parametrize("name", [name for name in NAMES if re.search(r"h\d+n\d+", name)])
def test_its_name_says_its_heads_and_state(name) -> None:
    heads, state = map(int, re.search(r"h(\d+)n(\d+)", name).groups())
    options = model(name).options
    assert (options["n_heads"], options["n_state"]) == (heads, state)


@pytest.mark.parametrize("name", sorted({*PUBLISHED, *ROUNDED}))
def test_its_file_says_where_it_comes_from(name) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith(f"# {model(name).cell.upper()}")
    (count,) = (i for i, line in enumerate(lines) if line.startswith("expected_params: "))
    assert lines[count - 1].startswith("# ")


def test_naming_a_size_drops_the_expected_count() -> None:
    assert model("e1").expected_params
    assert compose_config(["model=e1", "model.depth=2"]).model.expected_params is None
    assert compose_config(["model=e1", "model.expansion=1.0"]).model.expected_params is None
    kept = compose_config(["model=e1", "model.recurrent_norm=none"]).model
    assert kept.expected_params == PUBLISHED["e1"]


def test_january_e88_rows_carry_the_phantom_gain() -> None:
    for name in NAMES:
        config = model(name)
        if config.cell == "e88" and name not in UNPUBLISHED:
            late = name in ("e88_h104n32_896x32", "e88_h83n32_1920x17")
            assert config.options["phantom_norm_gain"] is not late, name


def test_radius_of_e42_by_date() -> None:
    radius = {name: model(name).options["spectral_radius"] for name in NAMES if "e42" in name}
    assert radius == {"e42": 0.999, "e42_1280x6": 0.99, "e42_1536x6": 0.99}
