"""Every model's YAML: composes, validates, builds, and has the count it was published with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from elman.config.compose import compose_config, compose_tree, plain_tree
from elman.config.model_files import model_files
from elman.config.validate import validate
from elman.models.build import build_model
from elman.models.cells import registry
from elman.sections.model import DIM_ALIGNMENT, VOCAB_SIZE, ModelConfig
from tests.conf.count_formulas import model_params
from tests.conf.published_counts import ROWS

NAMES = sorted(model_files())
models = pytest.mark.parametrize("name", NAMES)
rows = pytest.mark.parametrize(
    ("section", "row", "name", "printed"),
    [(section, *row) for section, found in ROWS.items() for row in found],
    ids=[f"{section}, {row[0]}" for section, found in ROWS.items() for row in found],
)
# Files in one composition.
TOGETHER = 40
# Files that fix no depth in their name and are not 20 deep.
DEPTHS = {"e14": 14, "e88_tiny": 2}
DEPTHS |= {"deltaproduct": 22, "e97": 21, "gdn-neg": 21, "gdn2": 19, "kda": 21, "rwkv7": 16}
DEPTHS |= {"slstm": 19}
# Models whose name is not that of their cell.
CELL_OF = {"gdn-neg": "fla_gdn"}
SIZED = re.compile(r"(.+?)(?:_(\d+)x(\d+))?(?:_e([\d.]+))?(_legacy)?")


@cache
def trees() -> dict[str, dict[str, Any]]:
    """Compose every file with all other settings at their defaults.

    One by one, at 0.1 s a command, that is most of a minute; as sections of a few trees, seconds.
    """
    found = {}
    for start in range(0, len(NAMES), TOGETHER):
        together = NAMES[start : start + TOGETHER]
        tree = compose_tree([f"+model@every.n{n}={name}" for n, name in enumerate(together)])
        sections = plain_tree(tree, "")
        every = sections.pop("every")
        for n, name in enumerate(together):
            found[name] = sections | {"model": every[f"n{n}"] | {"name": name}}
    return found


@cache
def model(name: str) -> ModelConfig:
    """Return the typed configuration of a model, with the vocabulary of its file."""
    tree = trees()[name]
    return validate(tree).model.with_vocabulary(tree["model"].get("vocab_size", VOCAB_SIZE))


@cache
def lines(name: str) -> tuple[str, ...]:
    """Return the lines of a model's file."""
    return tuple(model_files()[name].read_text().splitlines())


def citation(name: str) -> str:
    """Return the comment above a model's expected count."""
    (count,) = (i for i, line in enumerate(lines(name)) if line.startswith("expected_params: "))
    above = [line for line in lines(name)[count - 2 : count] if line.startswith("# ")]
    return " ".join(line.removeprefix("# ") for line in above)


def formula(name: str, dim: int) -> int:
    """Count a model by the specification's formula, at another width."""
    config = model(name)
    parts = config.parts()
    counts = [
        model_params(
            part.cell,
            dim,
            part.depth,
            part.wrapper,
            part.options,
            part.mlp_ratio,
            part.vocab_size,
        )
        for part in parts
    ]
    # Embedding and final norm are there once.
    return sum(counts) - (len(parts) - 1) * (config.vocab_size + 1) * dim


def parts(name: str) -> tuple[str | None, ...]:
    """Split a model's name: base name, dim, depth, expansion, ``_legacy``."""
    found = SIZED.fullmatch(name)
    assert found is not None
    return found.groups()


@models
def test_it_builds_with_the_count_of_the_formula(name) -> None:
    built = build_model(model(name), device="meta").num_params()
    assert built == model(name).expected_params
    assert built == formula(name, model(name).dim)


@pytest.mark.parametrize("name", ["e88_tiny", "e1", "e75h4n16_1408x20_e2", "e23n64_1024x8_legacy"])
def test_it_is_what_a_command_with_its_name_composes(name) -> None:
    assert compose_config([f"model={name}"]).model == model(name)


def test_every_cell_has_a_file_of_its_name() -> None:
    assert set(registry.cells()) <= {model(name).cell for name in NAMES}
    for name in set(registry.cells()) & set(NAMES):
        assert model(name).cell == name


@rows
def test_every_published_row_has_a_file_with_its_count(section, row, name, printed) -> None:
    assert name in NAMES
    count = model(name).expected_params
    if printed.endswith("M"):
        decimals = len(printed.partition(".")[2]) - 1 if "." in printed else 0
        assert f"{count / 1e6:.{decimals}f}M" == printed
    else:
        assert f"{count:,}" == printed


@models
def test_its_file_cites_the_row_or_says_that_the_count_is_derived(name) -> None:
    found = [
        (section, printed)
        for section, table in ROWS.items()
        for _, m, printed in table
        if m == name
    ]
    cited = citation(name)
    assert "specification" in cited
    assert not found or any(re.search(rf"{section}\b", cited) for section, _ in found)
    exact = any(not printed.endswith("M") for _, printed in found)
    assert exact is not bool(re.search("by hand|by the formula", cited.lower()))


@models
def test_its_first_line_names_the_cell_and_where_it_comes_from(name) -> None:
    assert len(lines(name)[0]) <= 100
    # "# E60b, ..." or, for a cell with a longer name, "# E74 with ...": the cell or the model.
    first = re.match(r"# ([\w-]+)[ ,:]", lines(name)[0])
    assert first is not None
    cell = model(name).cell
    assert first[1].lower() in (parts(name)[0], cell, cell.partition("_")[0])


@models
def test_its_name_says_cell_size_and_wrapper(name) -> None:
    config = model(name)
    # The longest cell that the name starts with: e60b is no e60.
    started = [cell for cell in registry.cells() if name.replace("-", "_").startswith(cell)]
    cell = CELL_OF.get(name.partition("_")[0]) or max(started, key=len)
    base, dim, depth, expansion, legacy = parts(name)
    assert (config.name, config.cell) == (name, cell)
    assert (config.wrapper == "legacy_ln") == bool(legacy)
    if model_files()[name].parent.name == "ladder":
        found = re.fullmatch(r".+_(\d+)([km])", name)
        assert found is not None
        named = int(found[1]) * {"k": 10**3, "m": 10**6}[found[2]]
        assert config.expected_params == pytest.approx(named, rel=0.2)
        return
    if dim is None or depth is None:
        assert config.depth == DEPTHS.get(name, 20)
        return
    size = (int(dim), int(depth))
    assert (config.dim, config.depth) == size
    if expansion:
        assert config.options["expansion"] == float(expansion)
    # The LayerNorm form of a bare name is known by that.
    elif not (legacy and base in NAMES and (model(base).dim, model(base).depth) == size):
        option = registry.cell(cell).options.get("expansion")
        assert option is None or config.options["expansion"] in (1.0, option.default)


@pytest.mark.parametrize("name", [name for name in NAMES if re.search(r"\dn\d", name)])
def test_its_name_says_its_heads_and_state(name) -> None:
    options = model(name).options
    if found := re.search(r"h(\d+)n(\d+)", name):
        assert (options["n_heads"], options["n_state"]) == tuple(map(int, found.groups()))
        return
    found = re.match(r"(?:e\d+|mamba2)n(\d+)", name)
    assert found is not None
    assert options["n_slots" if name.startswith("e23") else "n_state"] == int(found[1])
    assert options.get("n_heads", 1) == 1


@models
def test_its_file_states_only_what_differs(name) -> None:
    stated: dict[str, Any] = yaml.safe_load("\n".join(lines(name)))
    parent = stated.pop("defaults")[0]
    del stated["expected_params"]
    if (cell := parent.removeprefix("/cell/").removesuffix("@_here_")) != parent:
        options = registry.cell(cell).options
        # A size is part of what a model is, whatever its cell's default.
        inherited = {key: option.default for key, option in options.items() if not option.size}
        inherited |= {"wrapper": "rms", "allow_unaligned": False}
    else:
        inherited = model(parent).model_dump() | model(parent).options
    assert not {key for key, value in stated.items() if inherited.get(key) == value}


@pytest.mark.parametrize("name", [name for name in NAMES if "dim nearest" in lines(name)[0]])
def test_a_width_of_ours_is_the_one_nearest_its_target(name) -> None:
    found = re.search(r"dim nearest (\d+)([MB])", lines(name)[0])
    assert found is not None
    target = int(found[1]) * {"M": 10**6, "B": 10**9}[found[2]]
    off = [
        abs(formula(name, model(name).dim + step) - target)
        for step in (-DIM_ALIGNMENT, 0, DIM_ALIGNMENT)
    ]
    assert off.index(min(off)) == 1


def test_the_page_of_counts_without_a_model_names_models_that_exist() -> None:
    page = Path(__file__).parents[2] / "docs" / "counts_not_rebuilt.md"
    named = {name for name in re.findall(r"`([^`]+)`", page.read_text()) if "/" not in name}
    assert len(named) > 20
    assert {name for name in named if name not in NAMES and "*" not in name} == {"expected_params"}


def test_naming_a_size_drops_the_expected_count() -> None:
    assert model("e1").expected_params
    assert compose_config(["model=e1", "model.depth=2"]).model.expected_params is None
    assert compose_config(["model=e1", "model.expansion=1.0"]).model.expected_params is None
    kept = compose_config(["model=e1", "model.recurrent_norm=none"]).model
    assert kept.expected_params == model("e1").expected_params


def test_e88_carries_the_phantom_gain_where_january_runs_had_no_norm() -> None:
    for name in NAMES:
        if model(name).cell == "e88":
            options = model(name).options
            january = re.search("2026-01-2[0-4]|January 2026", lines(name)[0])
            carried = bool(january) and not options["use_output_norm"]
            assert options["phantom_norm_gain"] is carried, name


def test_radius_of_e42_by_date() -> None:
    early = {"e42_1280x6", "e42_1536x6"}
    for name in NAMES:
        if model(name).cell == "e42":
            assert model(name).options["spectral_radius"] == (0.99 if name in early else 0.999)


def test_published_e23_starts_from_a_zero_tape() -> None:
    for name in NAMES:
        if model(name).cell == "e23":
            ours = name in ("e23", "e23_384x4_e1.625")  # no published one
            assert model(name).options["initial_tape"] == ("seeded" if ours else "zero")
