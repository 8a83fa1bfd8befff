"""What a report says each component of a suite gains."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from elman.base.errors import UserError
from elman.config.suites import parse_suite
from elman.report.comparison.components import Components, effects
from elman.report.comparison.components_text import print_components, table_of, verdict
from elman.report.comparison.draw import draw
from elman.report.comparison.frame import Frame
from elman.report.comparison.ink import Group
from elman.report.comparison.page import page_text
from elman.report.comparison.pictures import Gains
from elman.report.comparison.plots import page_pictures
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.verdict import Arm
from elman.report.comparison.write import csv_text, markdown_text, write_report

from .fake_sweep import FakeSweep
from .test_tuning_block import COMMON, head, tune

MODELS = ("e1", "e42", "e33")
SUITE = {
    "title": "what a gate and a tanh gain",
    "source": "my notebook",
    "runs": [[f"model={model}"] for model in MODELS],
    "components": {
        "E1": {"gate": {"with": "e1", "without": "e42"}, "tanh": {"with": "e1", "without": "e33"}}
    },
}


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a tuned sweep: the gate helps at the best rates alone, the tanh does nothing."""
    tuned = head([*MODELS])
    found = FakeSweep(tmp_path / "a_sweep", benchmark="mine", suite=SUITE, tune=tuned)
    trials: dict[float, float | None] = {COMMON: 1.60, 1e-3: 1.40, 3e-3: 1.46, 1e-4: 1.7}
    tune(found, "e1", trials, best=[1.300, 1.305, 1.296], common=[1.620, 1.624, 1.615])
    tune(found, "e42", trials, best=[1.420, 1.426, 1.417], common=[1.520, 1.523, 1.517])
    tune(found, "e33", trials, best=[1.301, 1.302, 1.299], common=[1.620, 1.622, 1.616])
    return found


def components(report: Report) -> Components:
    """Return the gains of the only sweep."""
    (found,) = report.components
    return found


def test_the_gain_is_the_score_without_it_less_that_with_it(sweep: FakeSweep) -> None:
    gate, tanh = components(make_report([sweep.folder])).gains
    assert gate.best.value == pytest.approx(1.421 - 1.300333, abs=1e-6)
    assert gate.common.value == pytest.approx(1.52 - 1.619667, abs=1e-6)
    assert (gate.best.outcome, gate.common.outcome, gate.sign) == (
        "gains",
        "costs",
        "differs beyond noise",
    )
    assert tanh.best.outcome == "not distinguishable"
    low, high = tanh.best.interval or (0, 0)
    assert low < 0 < high


def test_one_sentence_says_which_components_help_and_where_the_sign_differs(
    sweep: FakeSweep,
) -> None:
    text = verdict(components(make_report([sweep.folder])))
    assert text.startswith(
        "With each arm at its own best setting, 1 of 2 components changes the score beyond noise "
        "(bits per byte): gate in E1 gains 0.1207 ("
    )
    assert text.endswith(
        "at the published setting (optim.lr 0.0003) the sign of 2 of 2 differs, beyond noise for "
        "gate in E1 (there it costs 0.0997), within noise for tanh in E1."
    )
    assert ". " not in text


def test_an_arm_at_an_edge_gives_no_verdict_on_its_component(sweep: FakeSweep) -> None:
    sweep.tuned("e42", "trial", 1e-2, 1.2, seed=0, trial=5)
    gate, tanh = components(make_report([sweep.folder])).gains
    assert gate.best.outcome == "no verdict"
    assert "e42: its best value is at the upper edge of optim.lr" in gate.best.why_not
    assert (gate.common.outcome, gate.sign) == ("costs", "unknown")
    assert tanh.best.outcome == "not distinguishable"


def test_a_component_whose_models_were_not_all_chosen_is_left_out(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "a", benchmark="mine", suite=SUITE, tune=head(["e1", "e33"]))
    tune(sweep, "e1", {COMMON: 1.6, 1e-3: 1.4, 3e-3: 1.5}, best=[1.3, 1.31], common=[1.6, 1.61])
    report = make_report([sweep.folder])
    (tanh,) = components(report).gains
    assert "e33: no trial of it has ended well" in tanh.best.why_not
    assert verdict(components(report)).startswith("No component has a verdict yet")
    sweep.top["tune"] = head(["e1"])
    sweep.write()
    assert make_report([sweep.folder]).components == ()


def test_levels_are_corrected_for_all_components() -> None:
    scores = {seed: 1.3 + 0.001 * seed for seed in range(3)}
    worse = {0: 1.3096, 1: 1.3112, 2: 1.3118}
    arms = {"a": Arm("a", scores), "b": Arm("b", worse), "c": Arm("c", dict(scores))}
    (alone,) = effects(arms, [("a", "b")], "minimize")
    first, *_ = effects(arms, [("a", "b"), ("a", "c"), ("c", "b")], "minimize")
    assert alone.pair is not None
    assert first.pair is not None
    assert first.pair.p == pytest.approx(3 * alone.pair.p)
    (upwards,) = effects(arms, [("a", "b")], "maximize")
    assert upwards.value == pytest.approx(-(alone.value or 0))


def test_the_gains_stand_on_the_page_in_the_terminal_and_in_the_files(sweep: FakeSweep) -> None:
    report = make_report([sweep.folder])
    text = verdict(components(report))
    assert "Gain of each component" in page_text(report)
    assert "gate in E1 gains" in markdown_text(report)
    console = Console(width=200, record=True, file=io.StringIO())
    print_components(console, report.components)
    printed = console.export_text()
    assert text in " ".join(printed.split())
    assert table_of(components(report)).cells[0][0] in printed
    lines = list(csv.DictReader(io.StringIO(csv_text(report))))
    gate = next(one for one in lines if one["kind"] == "component")
    assert (gate["label"], gate["verdict"], gate["sign"]) == (
        "E1: gate",
        "gains",
        "differs beyond noise",
    )
    write_report(report, sweep.folder)
    written = json.loads((sweep.folder / "components.json").read_text())
    (one,) = written["sweeps"]
    assert one["verdict"] == text
    assert one["components"][0]["at_best"]["gain"] == pytest.approx(0.120667, abs=1e-6)
    write_report(report, sweep.folder)  # its own file is replaced


def test_a_suite_names_two_models_of_its_runs_for_each_component() -> None:
    def refused(pair: dict[str, str]) -> str:
        with pytest.raises(UserError) as caught:
            parse_suite("mine", SUITE | {"components": {"E1": {"gate": pair}}})
        return str(caught.value)

    assert "components.E1.gate.without (in benchmark=mine): no run of it trains e43" in refused(
        {"with": "e1", "without": "e43"}
    )
    assert "E1.gate: needs two models" in refused({"with": "e1"})


def test_the_picture_has_a_dot_for_each_gain_on_its_side_of_zero(sweep: FakeSweep) -> None:
    (plot,) = page_pictures(make_report([sweep.folder])).components
    assert isinstance(plot.picture, Gains)
    ((family, (gate, tanh)),) = plot.picture.families
    assert (family, gate.name, tanh.name) == ("E1", "gate", "tanh")
    assert gate.best is not None
    assert gate.common is not None
    drawn = draw(plot.picture)
    dots = {group.tip: group.at for group in drawn.shapes if isinstance(group, Group) and group.tip}
    frame = Frame(plot.picture.x, plot.picture.x, left=190)
    assert dots[gate.best.tip][0] > frame.x(0.0) > dots[gate.common.tip][0]
    assert plot.svg.count("<circle") == 2 * 2 + 2  # and the two of the legend
    assert plot.figure.height > 0


@pytest.mark.parametrize("seeds", [3, 5])
def test_components_without_effect_are_claimed_in_at_most_one_sweep_of_twenty(seeds: int) -> None:
    """All components are compared with one base, as in why_e88_trails."""
    random = np.random.default_rng(5)
    labels = [f"arm {n}" for n in range(10)]
    pairs = [(label, labels[0]) for label in labels[1:]]
    sweeps, claims = 400, 0
    for _ in range(sweeps):
        scores = random.normal(size=(len(labels), seeds)) + 3 * random.normal(size=seeds)
        arms = {
            label: Arm(label, dict(enumerate(row.tolist())))
            for label, row in zip(labels, scores, strict=True)
        }
        claims += any(
            one.outcome != "not distinguishable" for one in effects(arms, pairs, "minimize")
        )
    assert claims <= 32  # 20 are expected at most; so many have a probability below 1 %
