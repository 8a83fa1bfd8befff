"""Every model's YAML: composes, validates, builds, and has the count it was published with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import elman.conf
import pytest

from elman.compose import compose_config
from elman.models import registry
from elman.models.build import build_model
from elman.schema.model import ModelConfig
from tests.conf.count_formulas import model_params

FOLDER = Path(next(iter(elman.conf.__path__))) / "model"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
models = pytest.mark.parametrize("name", NAMES)

# Published rows: name -> parameters, copied from lm-and-training specification 4.2 (B to P),
# vector-state specification 8 and matrix-state specification 4 to 9, 12.8 and 14 a second time,
# independently of the YAML.
PUBLISHED = {
    "cudagru_384x20_legacy": 82_735_872,
    "cudalstm_384x20_legacy": 106_344_192,
    "e1": 114_890_880,
    "e1_1280x6": 49_496_320,
    "e1_1280x6_legacy": 49_505_280,
    "e1_512x21_legacy": 49_714_944,
    "e23_512x17_legacy": 50_297_600,
    "e4_512x27_legacy": 50_610_432,
    "e42": 94_615_296,
    "e42_1280x6": 29_835_520,
    "e42_1536x6": 42_880_512,
    "e56": 114_890_880,
    "e61": 98_532_480,
    "e62": 98_532_480,
    "e63": 84_068_864,
    "e63m": 82_610_880,
    "e64": 98_532_480,
    "e65": 98_558_080,
    "e66": 114_916_480,
    "e67": 98_558_080,
    "e68": 98_583_680,
    "e70": 98_612_116,
    "e70_linear": 98_612_116,
    "e71": 104_022_656,
    "e72": 104_024_576,
    "e73": 104_020_736,
    "e73_tanh": 104_020_736,
    "e73cp": 104_020_736,
    "e74": 100_872_832,
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
    "mingru_1024x16_e2_legacy": 100_960_256,
    "minlstm_1024x12_e2_legacy": 100_952_064,
}
# Rows that the tables print in millions only, with their precision.
ROUNDED = {
    "e14": "20.3",
    "e74_1536x20_e2": "101.7",
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
# Sizes without a published count; the formula alone checks theirs.
UNPUBLISHED = {
    "cudagru",
    "cudalstm",
    "e0",
    "e23",
    "e33",
    "e34",
    "e36",
    "e37",
    "e37v2",
    "e39",
    "e4",
    "e59",
    "e59b",
    "e59c",
    "e60",
    "e60b",
    "e60c",
    "e67lr",
    "e72_inverse",
    "e73_full",
    "e73_row",
    "e74_blockdiag",
    "e74_delta_input",
    "e74_diagonal",
    "e74_ema",
    "e74_ema_input",
    "e74_fixed_decay",
    "e74_lowrank",
    "e74_ntm",
    "e74_residual",
    "e74_retrieved_gate",
    "e88_tiny",
    "mingru",
    "minlstm",
}
# Files that fix no depth in their name and are not 20 deep.
DEPTHS = {"e14": 14, "e88_tiny": 2}


@cache
def model(name: str) -> ModelConfig:
    """Return the typed configuration of ``model=<name>``."""
    return compose_config([f"model={name}"]).model


def test_every_file_is_accounted_for() -> None:
    assert set(NAMES) == set(PUBLISHED) | set(ROUNDED) | UNPUBLISHED


@models
def test_it_builds_with_the_count_of_the_formula(name) -> None:
    config = model(name)
    built = build_model(config, device="meta").num_params()
    assert built == config.expected_params
    assert built == model_params(
        config.cell, config.dim, config.depth, config.wrapper, config.options
    )


def test_every_cell_has_a_file_of_its_name() -> None:
    assert set(registry.cells()) <= {model(name).cell for name in NAMES}
    for name in set(registry.cells()) & set(NAMES):
        assert model(name).cell == name


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
    # The longest cell that the name starts with: e60b is no e60.
    cell = max((cell for cell in registry.cells() if name.startswith(cell)), key=len)
    found = re.search(r"(?:_(\d+)x(\d+))?(_e2)?(_legacy)?$", name.removeprefix(cell))
    assert found is not None
    dim, depth, expanded, legacy = found.groups()
    assert (config.name, config.cell) == (name, cell)
    if dim:
        assert (config.dim, config.depth) == (int(dim), int(depth))
    else:
        assert config.depth == DEPTHS.get(name, 20)
    assert (config.wrapper == "legacy_ln") == bool(legacy)
    if expanded:
        assert config.options["expansion"] == 2.0


@pytest.mark.parametrize("name", [name for name in NAMES if re.search(r"h\d+n\d+", name)])
def test_its_name_says_its_heads_and_state(name) -> None:
    heads, state = map(int, re.search(r"h(\d+)n(\d+)", name).groups())
    options = model(name).options
    assert (options["n_heads"], options["n_state"]) == (heads, state)


@models
def test_its_file_says_what_it_is_and_where_its_count_comes_from(name) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    # "# E60b, ..." or, for a cell with a longer name, "# E74 with ...": the cell or the model.
    first = re.match(r"# (\w+)[ ,:]", lines[0])
    assert first is not None
    assert first[1].lower() in (name, model(name).cell.partition("_")[0])
    (count,) = (i for i, line in enumerate(lines) if line.startswith("expected_params: "))
    above = [line for line in lines[count - 2 : count] if line.startswith("# ")]
    assert "specification" in " ".join(above)


def test_naming_a_size_drops_the_expected_count() -> None:
    assert model("e1").expected_params
    assert compose_config(["model=e1", "model.depth=2"]).model.expected_params is None
    assert compose_config(["model=e1", "model.expansion=1.0"]).model.expected_params is None
    kept = compose_config(["model=e1", "model.recurrent_norm=none"]).model
    assert kept.expected_params == PUBLISHED["e1"]


def test_january_e88_rows_carry_the_phantom_gain() -> None:
    for name in NAMES:
        config = model(name)
        if config.cell == "e88" and name != "e88_tiny":
            late = name in ("e88_h104n32_896x32", "e88_h83n32_1920x17")
            assert config.options["phantom_norm_gain"] is not late, name


def test_radius_of_e42_by_date() -> None:
    radius = {name: model(name).options["spectral_radius"] for name in NAMES if "e42" in name}
    assert radius == {"e42": 0.999, "e42_1280x6": 0.99, "e42_1536x6": 0.99}
