"""Every YAML of the transformer and RNN baselines: its size, and the count it was published with.

Formulas straight from lm-and-training specification 6 and vector-state specification 5; neither the
layers nor the other tests' formulas are asked.
"""

from __future__ import annotations

import pytest

from elman.config.compose import compose_config
from elman.config.model_files import model_files
from elman.models.build import build_model

RECURRENT = {
    # Matrices and biases of the state's width in each: gates, and PyTorch's second bias.
    "gru": (6, 6),
    "lstm": (8, 8),
    "cudagru": (6, 3),
    "cudalstm": (8, 4),
}
MINIMAL = {"mingru": 2, "minlstm": 3}
CELLS = (*RECURRENT, *MINIMAL, "llama")

# Model: dim, depth, expansion, wrapper, parameters. Counts marked True are printed in logs
# (vector-state specification 8, lm-and-training specification 4.2 H); the others follow from the
# formula alone.
ROWS = {
    "cudagru": (384, 20, 2.0, "rms", 82_727_808, False),
    "cudagru_384x20_legacy": (384, 20, 2.0, "legacy_ln", 82_735_872, True),
    "cudalstm": (384, 20, 2.0, "rms", 106_336_128, False),
    "cudalstm_384x20_legacy": (384, 20, 2.0, "legacy_ln", 106_344_192, True),
    "gru": (384, 20, 2.0, "rms", 82_773_888, False),
    "gru_1280x24_legacy": (1280, 24, 1.0, "legacy_ln", 315_148_800, False),
    "gru_384x16_legacy": (384, 16, 1.0, "legacy_ln", 19_022_592, False),
    "gru_512x14_e2_legacy": (512, 14, 2.0, "legacy_ln", 102_992_896, True),
    "gru_512x20_legacy": (512, 20, 1.0, "legacy_ln", 42_157_056, False),
    "gru_128x3_e1": (128, 3, 1.0, "rms", 428_800, False),
    "gru_384x24_e2": (384, 24, 2.0, "rms", 99_308_928, False),
    "llama": (640, 20, None, "rms", 101_770_880, False),
    "llama_128x2": (128, 2, None, "rms", 410_240, False),
    "llama_384x14": (384, 14, None, "rms", 24_882_048, False),
    "llama_384x4": (384, 4, None, "rms", 8_064_384, False),
    "lstm": (384, 20, 2.0, "rms", 106_397_568, False),
    "lstm_384x14_legacy": (384, 14, 1.0, "legacy_ln", 20_796_672, False),
    "lstm_512x11_e2_legacy": (512, 11, 2.0, "legacy_ln", 104_042_496, True),
    "lstm_512x18_legacy": (512, 18, 1.0, "legacy_ln", 47_410_176, False),
    "lstm_384x19_e2": (384, 19, 2.0, "rms", 101_082_624, False),
    "lstm_384x4_e1.1875": (384, 4, 1.1875, "rms", 8_169_600, False),
    "mingru": (896, 20, 2.0, "rms", 96_586_112, False),
    "mingru_1024x16_e2_legacy": (1024, 16, 2.0, "legacy_ln", 100_960_256, True),
    "mingru_1984x6_legacy": (1984, 6, 1.0, "legacy_ln", 47_770_752, True),
    "mingru_2752x24_legacy": (2752, 24, 1.0, "legacy_ln", 364_370_304, True),
    "mingru_2944x14_legacy": (2944, 14, 1.0, "legacy_ln", 243_521_792, False),
    "minlstm": (768, 20, 2.0, "rms", 94_584_576, False),
    "minlstm_1024x12_e2_legacy": (1024, 12, 2.0, "legacy_ln", 100_952_064, True),
    "minlstm_1280x6_legacy": (1280, 6, 1.0, "legacy_ln", 29_836_800, True),
    "minlstm_1792x31_legacy": (1792, 31, 1.0, "legacy_ln", 299_220_992, False),
    "minlstm_1984x6_legacy": (1984, 6, 1.0, "legacy_ln", 71_388_288, True),
    "minlstm_2304x24_legacy": (2304, 24, 1.0, "legacy_ln", 382_910_976, True),
}
rows = pytest.mark.parametrize("name", ROWS)


def formula(
    cell: str, dim: int, depth: int, expansion: float | None, wrapper: str, hidden: int | None
) -> int:
    """Count 256 d + depth (layer + norms) + final norm."""
    norm = dim if wrapper == "rms" else 2 * dim
    if expansion is None:
        heads, width = 64 * (dim // 64), hidden or -(-int(8 / 3 * dim) // 256) * 256
        return 256 * dim + depth * (4 * dim * heads + 3 * dim * width + 2 * norm) + norm
    inner = int(dim * expansion)
    if cell in MINIMAL:
        layer = MINIMAL[cell] * dim * inner + (0 if expansion == 1.0 else dim * inner)
    else:
        matrices, biases = RECURRENT[cell]
        layer = 2 * dim * inner + matrices * inner * inner + biases * inner
    return 256 * dim + depth * (layer + norm) + norm


def test_every_file_of_these_cells_is_a_row() -> None:
    # Those with an MLP behind the mixer, and those of ladders, are counted with the other models
    # (test_model_yaml.py).
    alone = {
        name
        for name, path in model_files().items()
        if "_mlp_" not in name and path.parent.name != "ladder"
    }
    found = {name for name in alone if name.split("_")[0] in CELLS}
    assert found == set(ROWS)


@rows
def test_the_file_has_the_rows_size(name) -> None:
    dim, depth, expansion, wrapper, params, _ = ROWS[name]
    config = compose_config([f"model={name}"]).model
    assert config.name.split("_")[0] == config.cell
    assert (config.dim, config.depth, config.wrapper) == (dim, depth, wrapper)
    assert config.options.get("expansion") == expansion
    assert config.expected_params == params
    assert config.allow_unaligned is bool(dim % 128)


@rows
def test_the_model_has_the_rows_count_and_the_formulas(name) -> None:
    dim, depth, expansion, wrapper, params, _ = ROWS[name]
    config = compose_config([f"model={name}"]).model
    hidden = config.options.get("mlp_width")
    assert formula(name.split("_")[0], dim, depth, expansion, wrapper, hidden) == params
    assert build_model(config, device="meta").num_params() == params


@rows
def test_the_file_cites_the_row_or_says_that_it_has_none(name) -> None:
    text = model_files()[name].read_text()
    above = text[: text.index("expected_params: ")].splitlines()[-2:]
    cited = " ".join(line.removeprefix("# ") for line in above)
    assert "specification" in cited
    assert ROWS[name][-1] is not ("by hand" in cited.lower())
