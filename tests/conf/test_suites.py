"""Every suite: its models, settings and figures are those of the specifications' tables."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import elman.conf
from elman.base.errors import UserError
from elman.config.catalog import Listed, group_files
from elman.config.compose import compose_tree, plain_tree
from elman.config.run_config import RunConfig
from elman.config.suites import Suite, load_suite, model_of, suite_names
from elman.config.validate import validate
from elman.published import published
from elman.sections.tasks import TaskConfig
from tests.shipped import shipped

FOLDER = Path(next(iter(elman.conf.__path__))) / "benchmark"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
suites = pytest.mark.parametrize("name", NAMES)

# Copied from the specifications' tables, independently of the files: the parameters of every run in
# order, and minutes or steps, batch, optimizer, its rate and warm-up.
LEGACY, FREE = "legacy", "schedulefree"
OF_E75 = [101936528, 95020016, 97561856, 104116096, 98838400, 98838400, 99131904]
TABLES: dict[str, tuple[list[int], tuple[float, int, str, float, int]]] = {
    "e75_100m": (
        OF_E75,
        (10, 32, LEGACY, 3e-4, 100),
    ),
    "e75_extended": (
        [*OF_E75, 99131904, 101910720, 99131904],
        (10, 32, LEGACY, 3e-4, 100),
    ),
    "baselines": ([101936528, 95020016, 114890880, 101770880], (10, 32, LEGACY, 3e-4, 100)),
    "quick_test": ([101936528, 99131904], (1, 32, LEGACY, 3e-4, 100)),
    "e88_nstate": (
        [59566576, 101936528, 64324672, 71943072, 40161600, 79561472],
        (10, 32, FREE, 3e-4, 0),
    ),
    "e88_heads": (
        [59566576, 23059872, 32271216, 40161600, 51979488, 79684512],
        (10, 32, FREE, 3e-4, 0),
    ),
    "e88_heads_100m": (
        [105717568, 80322240, 99959520, 106387200, 99605280],
        (10, 32, FREE, 3e-4, 0),
    ),
    "e88_vs_baselines": (
        [101936528, 59566576, 40161600, 51979488, 64324672],
        (10, 32, FREE, 3e-4, 0),
    ),
    "simplification_e33_e42": (
        [49496320, 39665920, 29843200, 39665920, 29835520, 29835520, 29827840, 29835520],
        (10, 32, LEGACY, 1e-4, 1000),
    ),
    "e42_40m": ([42880512, 39665920, 39665920, 29835520], (10, 32, LEGACY, 1e-4, 1000)),
    "e4_50m": (
        [48742912, 49714944, 50610432, 49187840, 49187840, 53368832, 50928750],
        (2000, 32, FREE, 3e-4, 0),
    ),
    "e14_50m": ([49714944, 20349440, 50928750], (1, 16, "adamw", 3e-4, 100)),
    "e23_50m": ([49505280, 50928750, 50297600], (10, 64, FREE, 3e-4, 0)),
    "mega_100m": (
        [101936528, 105717568, 99959520, 101846464, 101918752, 99605280, 125582784, 98838400],
        (10, 32, FREE, 3e-4, 0),
    ),
    "mega_500m": (
        [508362560, 533694928, 508102784, 492498816, 507820416, 507679872, 506136064, 506419392],
        (10, 32, FREE, 3e-4, 0),
    ),
}
OF_100M_10MIN = {
    "e61": 98532480,
    "e62": 98532480,
    "e63": 84068864,
    "e64": 98532480,
    "e65": 98558080,
    "e66": 114916480,
    "e67": 98558080,
    "e68": 98583680,
    "e70": 98612116,
    "e71": 104022656,
    "e72": 104024576,
    "e73": 104020736,
    "e73cp": 104020736,
    "e1": 114890880,
    "e42": 94615296,
    "e56": 114890880,
    "cudagru_384x20_legacy": 82735872,
    "cudalstm_384x20_legacy": 106344192,
    "mamba2_896x20_legacy": 101936528,
    "fla-gdn": 95020016,
}


@cache
def suite(name: str) -> Suite:
    """Return one suite."""
    return load_suite(name)


@cache
def models() -> dict[str, Listed]:
    """Return every model by name."""
    return {one.name: one for one in shipped()}


def params(name: str) -> int:
    """Return the parameters that a model's file states."""
    config = models()[name].config
    assert config is not None
    assert config.expected_params is not None
    return config.expected_params


@cache
def tree(name: str) -> dict[str, Any]:
    """Return what ``benchmark=<name>`` composes, as a job's sections."""
    return plain_tree(compose_tree([f"benchmark={name}"]), "")


def configs(name: str) -> list[RunConfig]:
    """Return every run of a suite as Hydra composes it; models come from the catalog, in seconds.

    That needs runs of a model and values; `make test-slow` composes each through Hydra.
    """
    found = []
    for run in suite(name).runs:
        sections = {key: dict(section) for key, section in tree(name).items() if key != "mode"}
        model = models()[model_of(run) or ""].config
        assert model is not None, run
        flat = model.model_dump()
        sections["model"] = flat | flat.pop("options")
        for text in run:
            key, value = text.split("=")
            if key == "data":
                task = yaml.safe_load(group_files("data")[value].read_text(encoding="utf-8"))
                own = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
                sections["data"] = task["data"] | own.get("data", {})
                sections["train"] |= task["train"]
            elif key != "model":
                section, _, name_of_key = key.partition(".")
                assert name_of_key in sections[section], text
                sections[section][name_of_key] = yaml.safe_load(value)
        named = frozenset(text.split("=")[0] for text in run)
        found.append(validate(sections | {"mode": "train"}, named))
    return found


def test_every_suite_of_the_seeds_is_there() -> None:
    of_the_seeds = {*TABLES, "100m_10min", "batch_scaling", "e88_ablation", "scaling_1b"}
    assert of_the_seeds <= set(NAMES)
    assert suite_names() == NAMES


@suites
def test_every_run_is_a_model_that_composes_and_the_settings_are_shared(name: str) -> None:
    found = configs(name)
    assert len(found) == len(suite(name).runs)
    assert len(set(suite(name).runs)) == len(found)
    if any(isinstance(config.data, TaskConfig) for config in found):
        assert {config.optim.name for config in found} == {found[0].optim.name}
        return  # each task has a length of its own, and some more steps
    shared = {
        (config.train.minutes, config.train.steps, config.train.chunk_size, config.optim.name)
        for config in found
    }
    budgets = suite(name).budgets
    chunk_size = 64 if name.endswith("_quick") else 512  # tiny models, on a CPU
    budget = (budgets.get("minutes"), budgets.get("steps"))
    assert shared == {(*budget, chunk_size, found[0].optim.name)}
    batches = {config.train.batch_size for config in found}
    by_run = any("train.batch_size" in text for run in suite(name).runs for text in run)
    assert len(batches) == 1 or by_run
    assert all(config.data.path is None for config in found)


@suites
def test_its_file_says_what_it_is(name: str) -> None:
    one = suite(name)
    assert "specification" in one.citation
    assert 20 < len(one.title) < 72
    assert one.description.endswith(".")
    text = (FOLDER / f"{name}.yaml").read_text()
    assert text.splitlines()[0] == "# @package _global_"
    assert text.splitlines()[1].startswith("# ")
    assert "hydra: {mode: MULTIRUN}" in text


@suites
def test_a_claim_of_one_size_is_true_and_no_true_claim_is_left_out(name: str) -> None:
    counts = [params(model) for model in suite(name).models]
    spread = max(counts) / min(counts) - 1
    assert suite(name).claims_equal_size == (spread <= 0.15), f"{spread:.1%}"


@pytest.mark.parametrize("name", TABLES)
def test_models_and_settings_of_the_tables(name: str) -> None:
    counts, (length, batch, optim, lr, warmup) = TABLES[name]
    assert [params(model_of(run) or "") for run in suite(name).runs] == counts
    for config in configs(name):
        assert (config.train.minutes or config.train.steps) == length
        assert config.train.batch_size == batch
        assert config.train.seed == 42
        assert config.train.grad_clip == 1.0
        found = (config.optim.name, config.optim.lr, config.optim.warmup_steps)
        assert found == (optim, lr, warmup)


@pytest.mark.parametrize("name", ["e4_50m", "e23_50m", "batch_scaling"])
def test_the_schedule_free_recipe_of_early_january(name: str) -> None:
    for config in configs(name):
        found = (config.optim.beta1, config.optim.beta2, config.optim.weight_decay)
        assert found == (0.9, 0.999, 0.1)


def test_the_100m_benchmark() -> None:
    found = {model: params(model) for model in suite("100m_10min").models}
    assert OF_100M_10MIN.items() <= found.items()
    assert set(found) - set(OF_100M_10MIN) == {"e63m", "e70_linear", "e73_tanh", "llama"}
    (optim,) = {config.optim for config in configs("100m_10min")}
    assert (optim.name, optim.warmup_steps, optim.lr) == ("legacy", 1000, 3e-4)


def test_every_model_of_the_batch_scaling_runs_at_both_batches() -> None:
    found = {(config.model.name, config.train.batch_size) for config in configs("batch_scaling")}
    assert found == {(model, batch) for model in suite("batch_scaling").models for batch in (4, 64)}


def test_the_largest_models_have_the_batches_of_the_study() -> None:
    found = [(c.model.dim, c.train.batch_size, c.optim.lr) for c in configs("scaling_1b")]
    assert found == [(5888, 48, 1e-4), (6400, 40, 1e-4), (7680, 48, 1e-4)]
    assert suite("scaling_1b").budgets["minutes"] == 60


def test_the_ablation_changes_one_part_at_a_time() -> None:
    by_name = {config.model.name: config.model for config in configs("e88_ablation")}
    start = by_name["e88sh16n32_1792x20"]
    single = {
        "e88_conv_1792x20": {"use_conv": True},
        "e88a_linear_1792x20": {"linear_state": True},
        "e88b_nol2_1792x20": {"use_l2_norm": False},
        "e88b_nosilu_1792x20": {"use_silu": False},
        "e88a_nogate_1792x20": {"use_gate": False},
        "e88b_nonorm_1792x20": {"use_output_norm": False},
        "e88a_simpledecay_1792x20": {"decay_mode": "simple"},
    }
    for name, change in single.items():
        other = by_name[name]
        assert (other.dim, other.depth) == (start.dim, start.depth)
        differing = {k: v for k, v in other.options.items() if v != start.options[k]}
        differing.pop("phantom_norm_gain", None)
        assert differing == change, name
    assert by_name["e88d_linear_1792x20"].options["linear_state"] is True


@suites
def test_published_figures_belong_to_its_runs_and_were_printed_for_their_counts(name: str) -> None:
    one = suite(name)
    for record in one.published:
        figures = record.figures
        assert figures.model in one.models
        if figures.params is not None and f"{figures.params:,}" not in figures.caveat:
            assert figures.params == params(figures.model)


# The suites that a published table is named after: each of its rows runs, or says why it does not.
OWN = {
    "e75_100m": "e75_100m",
    "e75_expansion": "e75_100m_e2",
    "quick_test": "quick_test",
    "e88_nstate": "e88_nstate",
    "100m_10min": "100m_10min",
    "simplification_e33_e42": "simplification",
    "e42_40m": "e42_vs_baselines",
    "e4_50m": "e4_comparison",
    "e14_50m": "e14_comparison",
    "e23_50m": "e23_comparison",
    "batch_scaling": "batch_of_4",
    "mega_100m": "mega_100m",
    "mega_500m": "mega_500m",
    "e74_nstate": "e74_nstate",
    "e75_paramscan": "e75_10min",
    "e88_ablation": "e88_ablations",
}


@pytest.mark.parametrize(("name", "table"), OWN.items())
def test_no_row_of_its_own_table_is_left_out(name: str, table: str) -> None:
    one = suite(name)
    rows = [record for record in published() if record.of.suite == table]
    shown = [record for record in one.published if record.of.suite == table]
    losses = {record.figures.loss for record in one.published_only if record.of.suite == table}
    missing = [row for row in rows if row not in shown and row.figures.loss not in losses]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "row", "numbers"),
    [
        ("simplification_e33_e42", "32", (49496320, 1.6536, 143900)),
        ("simplification_e33_e42", "35", (39665920, 1.69, 137000)),
        ("simplification_e33_e42", "38", (29835520, 1.67, 143000)),
        ("simplification_e33_e42", "40", (29835520, 1.75, 132000)),
        ("simplification_e33_e42", "41", (29843200, 1.66, 106000)),
        ("e4_50m", "E2 512x21 e1.5", (49715112, 1.668, 20300)),
        ("scaling_1b", "Mamba2 at 1B, batch 48", (None, 1.73, 11000)),
    ],
)
def test_rows_of_cells_that_are_not_here(
    name: str, row: str, numbers: tuple[int | None, float, float]
) -> None:
    (figures,) = [r.figures for r in suite(name).published_only if r.figures.model == row]
    assert (figures.params, figures.loss, figures.tok_s) == numbers
    assert re.search(r"no such cell here|another harness", figures.caveat)


def test_the_figures_of_one_model_come_with_date_and_definition() -> None:
    first, *_ = suite("e75_100m").published_for("mamba2_896x20_legacy")
    assert (first.figures.loss, first.of.date) == (1.4862, "2026-01-19")
    assert "last 100 log windows" in first.of.definition


def test_a_suite_that_is_not_there_gets_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"no such suite \(did you mean e75_100m\?\)"):
        load_suite("e75_10m")


@pytest.mark.slow
@suites
def test_every_run_composes_through_hydra(name: str) -> None:
    from elman.config.compose import compose_config

    for run, expected in zip(suite(name).runs, configs(name), strict=True):
        assert compose_config([f"benchmark={name}", *run]) == expected


def test_the_arms_of_a_component_differ_in_it_alone_and_have_one_size() -> None:
    several = ("all parts of Gated DeltaNet", "its rule in place of E88's")
    for name in ("why_e88_trails", "why_e88_trails_quick"):
        for family in suite(name).components.values():
            for component, pair in family.items():
                one, other = (models()[pair[kind]].config for kind in ("with", "without"))
                assert one is not None
                assert other is not None
                assert params(pair["with"]) / params(pair["without"]) == pytest.approx(1, abs=0.02)
                if component in several:
                    continue
                with_it, without = one.settings(), other.settings()
                differing = {key for key in with_it if with_it[key] != without[key]}
                # The width pays for what is added.
                differing -= {"dim", "allow_unaligned", "gate_activation"}
                assert len(differing) == 1 or differing == {"n_heads", "head_dim", "expansion"}


@pytest.mark.parametrize("name", ["one_nonlinear_layer", "one_nonlinear_layer_quick"])
def test_the_arms_of_one_nonlinear_layer_are_of_one_size_and_count_their_layers(name: str) -> None:
    def nonlinear(arm: str) -> int:
        model = models()[arm].config
        assert model is not None
        parts = model.parts()
        return sum(part.depth for part in parts if not part.options.get("linear_state", True))

    depth = 8 if name.endswith("_quick") else 12
    shares = {"one nonlinear layer": 1, "a quarter nonlinear": depth // 4, "all nonlinear": depth}
    for family in suite(name).components.values():
        assert family.keys() == shares.keys()
        for component, pair in family.items():
            assert nonlinear(pair["with"]) == shares[component]
            assert nonlinear(pair["without"]) == 0
            assert params(pair["with"]) / params(pair["without"]) == pytest.approx(1, abs=0.02)
