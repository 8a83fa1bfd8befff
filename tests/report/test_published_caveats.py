"""What a reader must know before comparing a published figure with a run of today."""

from __future__ import annotations

import pytest
from rich.console import Console

from elman.config.catalog import listed_models
from elman.config.compose import compose_config
from elman.config.suites import load_suite
from elman.published import PublishedResult, published
from elman.report.comparison.published_figures import published_words
from elman.report.tables.models import figure_numbers
from elman.report.tables.suites import print_suite


def test_every_published_e70_says_that_its_decay_did_not_learn() -> None:
    records = [record for record in published() if record.figures.model.startswith("e70")]
    assert len(records) == 4
    for record in records:
        assert "the decay stayed at 0.9 (0.8984 in bf16)" in record.caveats
        assert "model.learned_decay=false" in record.caveats


@pytest.mark.parametrize("name", ["e70", "e70_linear", "e70_linear_2176x20"])
def test_what_the_caveat_names_is_an_option_of_the_same_count(name: str) -> None:
    model = compose_config([f"model={name}", "model.learned_decay=false"]).model
    assert model.options["learned_decay"] is False
    assert model.expected_params == compose_config([f"model={name}"]).model.expected_params


# ------------------------------------------------------------------------- protocols

PARTS = ("rate: ", "tuned: ", "negative eigenvalues: ", "MLP: ", "precision: ")


def withdrawn() -> PublishedResult:
    (record,) = [record for record in published() if record.figures.withdrawn]
    return record


def test_every_published_figure_says_how_it_was_trained_or_that_it_is_not_known() -> None:
    for record in published():
        places = [record.protocol.text.index(part) for part in PARTS]
        assert places == sorted(places)
        setting = record.of.setting
        assert ("bf16" in setting) <= (record.protocol.precision == "bf16")
        assert ("lr " in setting) <= (f"lr {record.protocol.rate}" in setting)
    known = {record.protocol.rate or "not known" for record in published()}
    assert known == {"not known", "1e-4", "3e-4"}


def test_a_withdrawn_figure_says_so_wherever_it_stands() -> None:
    record = withdrawn()
    figures = record.figures
    assert (figures.model, figures.task, figures.accuracy) == ("fla-gdn_h32_384x4_e1", "s5", 0.355)
    for words in ("0.999 with negative eigenvalues", "an MLP of ratio 2", "rate 5e-4"):
        assert words in record.caveats
    assert record.protocol.negative_eigenvalues == "no"
    assert "one rate" in record.protocol.tuned
    assert "0.355 on s5 at 128, withdrawn" in published_words(record)
    assert "0.355 on s5 at 128 (withdrawn)" in figure_numbers(figures)[0]


def test_a_suite_prints_protocols_and_what_was_withdrawn(capsys) -> None:
    suite = load_suite("expressivity")
    print_suite(Console(width=400), suite, listed_models(suite.models), "none")
    printed = " ".join(capsys.readouterr().out.split())
    assert "withdrawn: by its authors" in printed
    groups = printed.partition("tasks_8m_groups, 2026-05: ")[2]
    assert all(f"{part}not known" in groups.partition("loss:")[0] for part in PARTS)
