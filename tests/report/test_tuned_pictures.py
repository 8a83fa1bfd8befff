"""The pictures of a tuned sweep: trials over keys, windows, failures, several keys, importance."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elman.cli.main import main
from elman.report.comparison.draw import Plot
from elman.report.comparison.page import page_text
from elman.report.comparison.plots import page_pictures
from elman.report.comparison.report_data import make_report

from .fake_sweep import FakeSweep

PUBLISHED = 3e-4
RATE = {"optim": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}}
DECAY = {"weight_decay": {"low": 1e-3, "high": 1.0, "log": True}}
TITLE = "Trials: held-out bits per byte over learning rate"
Score = float | str


def tuned(
    folder: Path,
    space: dict[str, Any],
    published: Mapping[str, Any],
    *arms: str,
    **changes: Any,
) -> FakeSweep:
    """Return a tuned sweep without jobs."""
    config = {"space": space} | changes.pop("config", {})
    told = [{"arm": arm, "model": arm, "published": dict(published)} for arm in arms]
    top = {"config": config, "score": "val_bpb", "goal": "minimize", "arms": told, "ranges": []}
    return FakeSweep(folder, tune=top | {"state": "done"} | changes)


def rates(folder: Path, *arms: str, **changes: Any) -> FakeSweep:
    """Return a sweep over the learning rate without jobs."""
    ends = {"optim.lr": {"low": 1e-4, "high": 1e-2}}
    published = {"optim.lr": PUBLISHED}
    return tuned(folder, RATE, published, *arms, **({"ranges": [ends]} | changes))


def add(
    sweep: FakeSweep,
    arm: str,
    values: Mapping[str, Any],
    score: Score,
    phase: str = "trial",
    **told: Any,
) -> None:
    """Add a job with a score, or with the word of its end."""
    seed = told.pop("seed", 0)
    trial = told.pop("trial", len(sweep.jobs) + 1 if phase == "trial" else None)
    tuning = {"arm": arm, "phase": phase, "trial": trial, "values": dict(values), **told}
    ended = isinstance(score, float)
    result = {"loss": score} if ended else {"status": score, "error": "it failed"}
    status = "ok" if ended else str(score)
    named = (f"model={arm}", f"train.seed={seed}")
    typed = [f"{key}={value}" for key, value in values.items() if key.startswith("optim.")]
    sweep.job(*named, *typed, status=status, tuning=tuning, result=result)


def try_rates(sweep: FakeSweep, arm: str, scores: Mapping[float, Score]) -> None:
    """Add the trials of an arm by their rates."""
    for rate, score in scores.items():
        add(sweep, arm, {"optim.lr": rate}, score)


def confirm(sweep: FakeSweep, arm: str, rate: float, *scores: float, phase: str = "best") -> None:
    """Add whole runs of an arm."""
    for seed, score in enumerate(scores, 1):
        add(sweep, arm, {"optim.lr": rate}, score, phase, seed=seed)


def plots(sweep: FakeSweep) -> dict[str, Plot]:
    """Return the pictures of the trials by their titles; no number in them is missing."""
    (found,) = page_pictures(make_report([sweep.folder])).tuned
    every = {plot.title: plot for plot in (*found.plots, *found.parallel)}
    for plot in every.values():
        ElementTree.fromstring(plot.svg)
        assert not re.search(
            r"\b(nan|inf)\b", re.sub(r"<title>.*?</title>|<text.*?</text>", "", plot.svg)
        )
    return every


def tips(plot: Plot) -> list[str]:
    """Return what each mark of a picture says."""
    tree = ElementTree.fromstring(plot.svg)
    return [element.text or "" for element in list(tree.iter("title"))[1:]]


def texts(plot: Plot) -> list[str]:
    """Return the words of a picture."""
    return [element.text or "" for element in ElementTree.fromstring(plot.svg).iter("text")]


INSIDE: dict[float, Score] = {PUBLISHED: 1.6, 1e-3: 1.4, 1.2e-3: 1.41, 3e-3: 1.5, 1e-2: "nan"}


def two_arms(folder: Path, **changes: Any) -> FakeSweep:
    sweep = rates(folder, "e1", "e42", **changes)
    try_rates(sweep, "e1", INSIDE)
    try_rates(sweep, "e42", {1e-4: "crash", PUBLISHED: 1.5, 1e-3: 1.52, 3e-3: 1.6, 1e-2: "oom"})
    confirm(sweep, "e1", 1e-3, 1.30, 1.32)
    confirm(sweep, "e42", PUBLISHED, 1.40, 1.41)
    confirm(sweep, "e1", PUBLISHED, 1.45, 1.46, phase="common")
    return sweep


def test_every_arm_has_a_curve_a_window_and_its_confirmed_settings(tmp_path: Path) -> None:
    plot = plots(two_arms(tmp_path / "sweep"))[TITLE]
    tree = ElementTree.fromstring(plot.svg)
    curves = [len((line.get("points") or "").split()) for line in tree.iter("polyline")]
    assert curves == [4, 3]
    said = tips(plot)
    assert "e1: window 0.001 to 0.0012, 2 points" in said
    assert "e42: window 0.0003 to 0.0003, 1 point" in said
    assert "e1, optim.lr 0.001: trial 2; held-out bits per byte 1.4000; the best" in said
    confirmed = "e1, optim.lr 0.001: full budget, best setting; held-out bits per byte 1.3100, "
    assert f"{confirmed}1.3000 to 1.3200, n=2" in said
    assert any("full budget, published setting; held-out bits per byte 1.4550" in s for s in said)
    assert plot.svg.count('class="shade"') == 2
    assert texts(plot).count("published") == 1
    assert "within 1 % of its best score" in plot.caption


def test_a_failed_trial_has_the_mark_of_its_end_and_no_score(tmp_path: Path) -> None:
    plot = plots(two_arms(tmp_path / "sweep"))[TITLE]
    said = tips(plot)
    assert "e1, optim.lr 0.01: trial 5; nan" in said
    assert "e42, optim.lr 0.0001: trial 6; crash" in said
    assert "e42, optim.lr 0.01: trial 10; oom" in said
    assert {"failed", "diverged (nan)", "out of memory (oom)", "crash"} <= set(texts(plot))
    assert "timeout" not in texts(plot)
    top = float(re.findall(r'data-box="\S+ \S+ (\S+)', plot.svg)[0])
    marks = [
        float(y)
        for y in re.findall(r'data-at="\S+ (\S+)"><title>[^<]*(?:nan|oom|crash)<', plot.svg)
    ]
    assert len(marks) == 3
    assert all(y < top for y in marks)
    # Two trials at one rate stand above each other.
    assert len(set(marks)) == 2


def test_a_best_value_at_the_edge_and_the_growth_of_the_range_are_named(tmp_path: Path) -> None:
    ranges = [{"optim.lr": {"low": 1e-4, "high": top}} for top in (1e-2, 1e-1)]
    sweep = rates(tmp_path / "sweep", "e1", ranges=ranges)
    try_rates(sweep, "e1", {PUBLISHED: 1.6, 1e-3: 1.5, 1e-2: 1.4, 5e-2: 1.3})
    plot = plots(sweep)[TITLE]
    assert "upper edge" in texts(plot)
    assert "The best value is at an edge of optim.lr: e1 (upper edge)." in plot.caption
    assert "The range grew once, for all arms alike" in plot.caption
    assert plot.svg.count('class="grown"') == 1
    assert "grown" in texts(plot)


def test_the_page_has_the_pictures_with_titles_and_a_legend_of_arms(tmp_path: Path) -> None:
    sweep = two_arms(tmp_path / "sweep")
    page = page_text(make_report([sweep.folder]))
    tree = ElementTree.fromstring(page.partition("\n")[2])
    pictures = {svg.get("id"): svg for svg in tree.iter("svg")}
    picture = pictures["tuned-optim-lr"]
    assert picture.findtext("title") == TITLE
    assert picture.get("aria-labelledby") == "tuned-optim-lr-title"
    rows = {group.get("data-row") for group in picture.iter("g")} - {None}
    assert rows == {"0", "1"}
    names = [
        b for b in tree.iter("button") if b.find("svg[@class='sample trial c1 d0']") is not None
    ]
    assert ["".join(button.itertext()).strip() for button in names] == ["e42"]
    assert "Loss over bytes: each arm at its best setting" in page


def test_an_arm_has_a_color_of_its_own_before_any_run_is_confirmed(tmp_path: Path) -> None:
    sweep = rates(tmp_path / "sweep", "e1", "e42")
    try_rates(sweep, "e1", {PUBLISHED: 1.5, 1e-3: "running"})
    try_rates(sweep, "e42", {PUBLISHED: 1.6})
    (found,) = page_pictures(make_report([sweep.folder])).tuned
    assert [(arm.row, arm.style) for arm in found.arms] == [(0, 0), (1, 1)]
    assert [tip for tip in tips(plots(sweep)[TITLE]) if "running" in tip] == []
    assert "<svg" in page_text(make_report([sweep.folder]))


def test_arms_of_different_published_values_have_a_line_each(tmp_path: Path) -> None:
    sweep = rates(tmp_path / "sweep", "e1", "e42")
    sweep.top["tune"]["arms"][1]["published"] = {"optim.lr": 1e-3}
    try_rates(sweep, "e1", INSIDE)
    try_rates(sweep, "e42", INSIDE)
    plot = plots(sweep)[TITLE]
    assert {"e1: published value", "e42: published value"} <= set(tips(plot))
    assert "published" not in texts(plot)
    assert "published value" in texts(plot)


def test_without_a_score_there_is_no_picture(tmp_path: Path) -> None:
    sweep = rates(tmp_path / "sweep", "e1")
    try_rates(sweep, "e1", {PUBLISHED: "nan"})
    assert plots(sweep) == {}
    assert "Each at its best" in page_text(make_report([sweep.folder]))


def test_a_list_of_names_is_an_axis_of_names(tmp_path: Path) -> None:
    space = {"optim": {"name": {"values": ["adamw", "lion", "muon"]}}}
    sweep = tuned(tmp_path / "sweep", space, {"optim.name": "adamw"}, "e1")
    for name, score in (("adamw", 1.5), ("lion", 1.4), ("muon", "nan")):
        trial = {"arm": "e1", "phase": "trial", "trial": 1, "values": {"optim.name": name}}
        result = {"loss": score} if isinstance(score, float) else {"status": score}
        status = "ok" if isinstance(score, float) else score
        sweep.job("model=e1", "train.seed=0", status=status, tuning=trial, result=result)
    plot = plots(sweep)["Trials: held-out bits per byte over optim.name"]
    assert {"adamw", "lion", "muon"} <= set(texts(plot))
    assert "<polyline" not in plot.svg


def several(folder: Path, trials: int, *arms: str) -> FakeSweep:
    """Return a sweep over two keys; the rate alone decides the score, and the highest diverge."""
    space = {"optim": RATE["optim"] | DECAY}
    ends = {
        "optim.lr": {"low": 1e-4, "high": 1e-2},
        "optim.weight_decay": {"low": 1e-3, "high": 1.0},
    }
    published = {"optim.lr": PUBLISHED, "optim.weight_decay": 0.0}
    sweep = tuned(folder, space, published, *arms, ranges=[ends])
    for arm in arms:
        add(sweep, arm, published, 1.7)
        for number in range(1, trials):
            rate = float(f"{1e-4 * 100 ** (number / trials):.4g}")
            decay = float(f"{1e-3 * 1000 ** (number * 7 % trials / trials):.4g}")
            score: Score = "nan" if number == trials - 1 else 1.3 + abs(number - 0.7 * trials) / 40
            add(sweep, arm, {"optim.lr": rate, "optim.weight_decay": decay}, score)
    return sweep


def test_several_keys_have_a_picture_each_and_parallel_coordinates_of_each_arm(
    tmp_path: Path,
) -> None:
    found = plots(several(tmp_path / "sweep", 16, "e1", "e42"))
    assert list(found) == [
        TITLE,
        "Trials: held-out bits per byte over weight decay",
        "Importance of each key (PED-ANOVA)",
        "Trials of e1",
        "Trials of e42",
    ]
    assert "<polyline" not in found[TITLE].svg
    assert "Other keys vary too" in found[TITLE].caption
    lines = re.findall(r'<polyline class="(\w+)"', found["Trials of e1"].svg)
    assert len(lines) == 16
    assert (lines.count("best"), lines.count("failed")) == (1, 1)
    assert lines[-1] == "best"
    # A published weight decay of 0 has a place on the logarithmic axis.
    assert "0" in texts(found["Trials: held-out bits per byte over weight decay"])


def test_an_arm_whose_trials_are_to_come_has_no_parallel_coordinates_yet(tmp_path: Path) -> None:
    sweep = several(tmp_path / "sweep", 12, "e1")
    told = {"arm": "e42", "model": "e42", "published": {"optim.lr": PUBLISHED}}
    sweep.top["tune"]["arms"].append(told)
    sweep.write()
    found = plots(sweep)
    assert "Trials of e1" in found
    assert "Trials of e42" not in found


def test_importance_names_its_method_and_the_number_of_trials(tmp_path: Path) -> None:
    plot = plots(several(tmp_path / "sweep", 16, "e1"))["Importance of each key (PED-ANOVA)"]
    assert "Trials with a score: e1 14" in plot.caption
    assert plot.numbers is not None
    ((_, lr, decay, trials),) = plot.numbers.cells
    assert trials == "14"
    assert float(lr) > 0.5 > float(decay)
    assert float(lr) + float(decay) == pytest.approx(1, abs=2e-3)


def test_of_few_trials_no_importance_is_given_and_a_sentence_says_why(tmp_path: Path) -> None:
    sweep = several(tmp_path / "sweep", 8, "e1")
    assert "Importance of each key (PED-ANOVA)" not in plots(sweep)
    page = page_text(make_report([sweep.folder]))
    assert (
        "No importance of keys is given for e1 (6 trials with a score): fewer than 10 scores tell "
        "too little." in page
    )


def test_a_shape_is_several_keys(tmp_path: Path) -> None:
    shape = {"depth": [0.5, 2.0]}
    sweep = tuned(
        *(
            tmp_path / "sweep",
            RATE,
            {"optim.lr": PUBLISHED, "shape": "depth=4 dim=512"},
            "e1",
            "e42",
        ),
        config={"shape": shape},
        ranges=[{"optim.lr": {"low": 1e-4, "high": 1e-2}}],
    )
    for depth in range(2, 9):
        text = f"depth={depth} dim={2048 // depth}"
        add(sweep, "e1", {"optim.lr": 1e-3, "shape": text}, 1.5 + abs(depth - 5) / 10)
    for width in (128, 256):
        text = f"depth={width // 64} dim={width} n_state=16"
        add(sweep, "e42", {"optim.lr": 1e-3, "shape": text}, 1.5)
    found = plots(sweep)
    assert "Trials: held-out bits per byte over model.depth" in found
    assert {"model.depth", "model.dim"} <= set(texts(found["Trials of e1"]))
    # Models whose cells have other sizes have other axes.
    assert "model.n_state" not in texts(found["Trials of e1"])
    assert "model.n_state" in texts(found["Trials of e42"])
    assert found["Trials of e42"].svg.count("<polyline") == 2


def test_the_best_of_shares_of_right_answers_is_the_highest(tmp_path: Path) -> None:
    sweep = rates(tmp_path / "sweep", "e1", score="accuracy", goal="maximize")
    for rate, accuracy in ((PUBLISHED, 0.5), (1e-3, 0.9), (3e-3, 0.8)):
        trial = {"arm": "e1", "phase": "trial", "trial": 1, "values": {"optim.lr": rate}}
        result = {"accuracy": accuracy}
        sweep.job("model=e1", f"optim.lr={rate}", tuning=trial, result=result)
    plot = plots(sweep)["Trials: share of right answers over learning rate"]
    assert any("share of right answers 0.9000; the best" in tip for tip in tips(plot))


def test_fifteen_arms_have_their_windows_below_the_curves(tmp_path: Path) -> None:
    arms = [f"arm {number}" for number in range(15)]
    sweep = rates(tmp_path / "sweep", *arms)
    for number, arm in enumerate(arms):
        for rate, score in ((PUBLISHED, 1.5), (1e-3, 1.4 + number / 50), (1e-2, "nan")):
            trial = {"arm": arm, "phase": "trial", "trial": 1, "values": {"optim.lr": rate}}
            result = {"loss": score} if isinstance(score, float) else {"status": score}
            status = "ok" if isinstance(score, float) else score
            sweep.job("model=e1", f"optim.lr={rate}", status=status, tuning=trial, result=result)
    plot = plots(sweep)[TITLE]
    assert plot.svg.count('class="reach"') == 15
    assert 'class="shade"' not in plot.svg
    width, height = map(float, re.findall(r'viewBox="0 0 (\S+) (\S+)"', plot.svg)[0])
    for x, y in re.findall(r'data-at="(\S+) (\S+)"', plot.svg):
        assert 0 < float(x) < width
        assert 0 < float(y) < height


def test_a_paper_has_the_pictures_as_figures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = several(tmp_path / "sweep", 12, "e1", "e42")
    assert main(["mode=report", f"report.dir={sweep.folder}", "report.paper=true"]) == 0
    capfd.readouterr()
    place = sweep.folder / "paper"
    document = (place / "figures.tex").read_text()
    for name in ("optim-lr", "optim-weight_decay", "importance", "parallel-1", "parallel-2"):
        assert (place / f"tuned-{name}.pdf").read_bytes().startswith(b"%PDF-")
        drawn = ElementTree.parse(place / f"tuned-{name}.svg").getroot()
        assert drawn.tag.endswith("svg")
        assert f"{{tuned-{name}.pdf}}" in document
    assert "PED-ANOVA" in document
    names = (place / "tuned-optim-lr.svg").read_text()
    assert ">e1</text>" in names
    assert ">e42</text>" in names


def test_the_parallel_coordinates_of_many_arms_are_folded(tmp_path: Path) -> None:
    arms = ("e1", "e42", "e68", "e33", "mamba2")
    page = page_text(make_report([several(tmp_path / "sweep", 3, *arms).folder]))
    tree = ElementTree.fromstring(page.partition("\n")[2])
    title = "The trials of each arm as parallel coordinates"
    (fold,) = [one for one in tree.iter("details") if one.findtext("summary") == title]
    assert [svg.get("id") for svg in fold.iter("svg")] == [
        f"tuned-parallel-{number}" for number in range(1, 6)
    ]
