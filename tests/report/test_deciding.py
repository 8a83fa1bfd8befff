"""Which number decides who wins: held-out bits or the loss, and what a report says of both."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from elman.report.comparison.deciding import LOSS, SPEED, VAL_BPB
from elman.report.comparison.page import page_text
from elman.report.comparison.paper import table_text
from elman.report.comparison.pictures import OverNames, Scatter
from elman.report.comparison.plots import page_pictures
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.terminal import print_report
from elman.report.comparison.wins_text import EARLIER, sentence, verdict
from elman.report.comparison.write import csv_text, markdown_text

from .fake_sweep import BATCH, CHUNK, FakeSweep

TEN_MINUTES = 600.0


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return an empty sweep."""
    return FakeSweep(tmp_path / "sweep")


def falling(seconds: float) -> float:
    """A loss as it falls with time, the same whatever the steps."""
    return 1.0 + 3.0 / math.sqrt(1.0 + seconds / 5.0)


def timed(
    sweep: FakeSweep,
    model: str,
    steps: int,
    at: Callable[[float], float] = falling,
    budget: Sequence[str] = ("train.minutes=10", "train.steps=null"),
    seconds: float = TEN_MINUTES,
    **result: Any,
) -> None:
    """Add three seeds of a model that takes so many steps; its loss is a function of time."""
    each = seconds / steps
    random = np.random.default_rng(steps)
    for seed in (1, 2, 3):
        shift = 0.002 * seed + random.normal(0, 0.001)
        losses = [at(each * step) + shift for step in range(1, steps + 1)]
        told = {
            "loss": float(np.mean(losses[-100:])),
            "loss_steps": min(100, steps),
            "val_bpb": (at(seconds) + shift) / math.log(2),
            "steps": steps,
            "tokens": steps * BATCH * CHUNK,
            "seconds": {"train": seconds},
            **result,
        }
        run = sweep.job(f"model={model}", f"train.seed={seed}", *budget, losses=losses, result=told)
        sweep.jobs[-1]["swept"] = [f"model={model}", f"train.seed={seed}", *budget[2:]]
        lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
        for line in lines:
            if line["kind"] == "window":
                line["train_seconds"] = each * line["step"]
        if told["val_bpb"] is not None:
            lines.append({"kind": "validation", "step": steps, "val_bpb": told["val_bpb"]})
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    sweep.write()


def said(report: Report) -> str:
    out = Console(file=io.StringIO(), width=250)
    print_report(out, report)
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("held_out", [True, False])
def test_rows_of_equal_loss_at_every_moment_are_not_told_apart_by_their_steps(
    sweep: FakeSweep, held_out: bool
) -> None:
    """200 and 2,000 steps in ten minutes: the last 100 steps are 5 minutes, and 30 seconds."""
    lacking = {} if held_out else {"val_bpb": None}
    timed(sweep, "e1", 200, **lacking)
    timed(sweep, "e42", 2000, **lacking)
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    assert (group.by.number, group.axis) == (VAL_BPB if held_out else LOSS, "minutes")
    (one,) = group.challengers
    for number in (LOSS, VAL_BPB) if held_out else (LOSS,):
        line = one.line(number, "minutes")
        assert line.value == pytest.approx(0, abs=0.003)
        assert "worse" not in verdict(line)
    text = said(report)
    assert " at equal minutes decides: " in text
    assert ("is missing in e1 (3 of 3 runs), e42 (3 of 3 runs)" in text) == (not held_out)


def test_pictures_the_row_to_beat_and_the_sentences_have_one_order(sweep: FakeSweep) -> None:
    """By held-out bits the slow model leads, by the last 100 steps the fast one."""
    timed(sweep, "e1", 200, lambda seconds: falling(seconds) - 0.02)
    timed(sweep, "e42", 2000)
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    assert group.reference.label == "e1"
    assert sentence(group, group.challengers[0]).startswith("e42: worse: val bpb +0.0")
    assert "against e1 (the lowest val bpb, n=3)" in said(report)
    of_table = [
        float(cells[[c.head for c in report.columns].index("loss")]) for cells in report.cells
    ]
    assert of_table[0] > of_table[1]
    pictures = [plot.picture for plot in page_pictures(report).all]
    (names,) = (one for one in pictures if isinstance(one, OverNames))
    assert names.title == "Val bpb of each model"
    assert [name for _, name in names.y.own_ticks] == ["e1", "e42"]
    assert [dot.name for dot in names.dots if dot.best] == ["e1"]
    (scatter,) = (one for one in pictures if isinstance(one, Scatter))
    assert (scatter.title, scatter.measure) == ("Val bpb against throughput", "val bpb")
    for text in (page_text(report), markdown_text(report), table_text(report)):
        assert "val bpb at equal minutes decides" in text.replace("Val", "val")
    lines = [*csv.DictReader(io.StringIO(csv_text(report)))]
    decisive = [(one["measure"], one["at"]) for one in lines if one["decides"] == "true"]
    assert decisive == [("val_bpb", "minutes")]


@pytest.mark.parametrize(
    ("steps", "decides"), [(120, VAL_BPB), (999, VAL_BPB), (1000, LOSS), (2000, LOSS)]
)
def test_the_last_hundred_steps_decide_where_they_are_a_tenth_of_a_run_at_most(
    sweep: FakeSweep, steps: int, decides: object
) -> None:
    for model in ("e1", "e42"):
        timed(sweep, model, steps, budget=(f"train.steps={steps}",))
    (group,) = make_report([sweep.folder]).wins.groups
    assert (group.by.number, group.axis) == (decides, "steps")


def test_numbers_that_disagree_are_both_named_with_their_probabilities(sweep: FakeSweep) -> None:
    for model, losses, held_out in (
        ("e1", (1.50, 1.53, 1.56), (2.10, 2.12, 2.14)),
        ("e42", (1.55, 1.58, 1.54), (2.20, 2.23, 2.25)),
    ):
        for seed, (loss, bits) in enumerate(zip(losses, held_out, strict=True), 1):
            told = {"loss": loss, "val_bpb": bits, "steps": 2000, "tokens": 2000 * BATCH * CHUNK}
            sweep.job(f"model={model}", f"train.seed={seed}", "train.steps=2000", result=told)
            sweep.jobs[-1]["swept"] = [f"model={model}", f"train.seed={seed}"]
    sweep.write()
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    (one,) = group.challengers
    assert group.by.number is LOSS
    line, beside = group.decisive(one), group.beside(one)
    assert (line.decided, beside.decided) == (False, True)
    assert beside.interval is not None
    low, high = beside.interval
    words = (
        f"val bpb disagrees: worse, {beside.value:+.4f} ({low:+.4f} to {high:+.4f}), "
        f"p {beside.p:.2g} beside {line.p:.2g} of loss"
    )
    told_of_it = sentence(group, one)
    assert told_of_it.startswith("e42: not distinguishable with 3 seeds")
    assert words in told_of_it
    lines = csv.DictReader(io.StringIO(csv_text(report)))
    (of_bits,) = (cell for cell in lines if (cell["measure"], cell["at"]) == ("val_bpb", "steps"))
    assert float(of_bits["p_holm"]) == beside.p
    # More seeds are advised for the number that decides; the other is decided already.
    assert (beside.more_seeds, bool(one.to_decide)) == (None, True)


def test_one_run_without_held_out_bits_lets_the_loss_decide_for_all_rows(sweep: FakeSweep) -> None:
    timed(sweep, "e1", 300)
    timed(sweep, "e42", 400)
    timed(sweep, "e68", 350, val_bpb=None)
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    assert group.by.number is LOSS
    assert "val bpb would, but it is missing in e68 (3 of 3 runs); it is the mean over" in said(
        report
    )
    assert len(group.challengers) == 2
    assert all(group.decisive(one).difference is not None for one in group.challengers)


def test_runs_of_one_time_budget_have_no_star_though_one_ends_a_step_later(
    sweep: FakeSweep,
) -> None:
    timed(sweep, "e1", 20, seconds=617.0)  # a step takes half a minute
    timed(sweep, "e42", 20, seconds=600.1)
    timed(sweep, "e68", 20, seconds=600.5)
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    assert not any(group.decisive(one).earlier for one in group.challengers)
    assert all(group.decisive(one).difference is not None for one in group.challengers)
    assert EARLIER not in said(report)


def test_a_model_with_many_more_steps_still_has_its_star_at_equal_steps(sweep: FakeSweep) -> None:
    timed(sweep, "e1", 1000)
    timed(sweep, "e42", 2000)
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    (one,) = group.challengers
    assert (one.line(LOSS, "steps").earlier, group.decisive(one).earlier) == (True, False)
    assert f"* {EARLIER}" in said(report)


def test_one_validation_has_its_dot_and_its_spread(sweep: FakeSweep) -> None:
    for model in ("e1", "e42"):
        timed(sweep, model, 200)
    report = make_report([sweep.folder])
    assert 'id="validation"' in page_text(report)
    heads = [column.head for column in report.columns]
    place = heads.index("val bpb")
    assert heads[place : place + 2] == ["val bpb", "val spread"]
    assert all(cells[place + 1].startswith("sd 0.0") for cells in report.cells)
    assert heads.index("loss") < min(heads.index("params"), heads.index("backend"))


def test_marks_between_two_rows_are_of_their_own_runs(sweep: FakeSweep) -> None:
    """Rows of a smaller set are unequal to the largest; that says nothing between them."""
    for model in ("e1", "e42", "e68"):
        timed(sweep, model, 200)
    for model in ("e1", "e42"):
        budget = ("train.minutes=10", "train.steps=null", "train.batch_size=8")
        timed(sweep, model, 200, budget=budget, contended=model == "e1" or None)
    groups = make_report([sweep.folder]).wins.groups
    smaller = min(groups, key=lambda group: len(group.challengers))
    assert "unequal batch" in smaller.reference.marks
    (one,) = smaller.challengers
    assert one.line(SPEED).marks == ("contended",)


def test_the_time_of_a_step_is_in_the_line_of_a_row(sweep: FakeSweep) -> None:
    timed(sweep, "e1", 200)
    lines = [*csv.DictReader(io.StringIO(csv_text(make_report([sweep.folder]))))]
    row, *runs = [line for line in lines if line["kind"] in ("model", "run")]
    assert (row["kind"], len(runs)) == ("model", 3)
    assert float(row["step_us"]) == pytest.approx(float(runs[0]["step_us"]))


def test_a_row_that_never_left_its_warm_up_is_marked(sweep: FakeSweep) -> None:
    budget = ("train.minutes=10", "train.steps=null")
    warm_up = ("optim.warmup_steps=100",)
    for model, steps in (("e1", 26), ("e42", 300), ("e68", 2000)):
        timed(sweep, model, steps, budget=(*budget, *warm_up))
    for job in sweep.jobs:
        job["swept"] = job["swept"][:2]
    sweep.write()
    report = make_report([sweep.folder])
    marks = {row.model: row.marks for row in report.rows}
    assert marks == {"e1": ["never left warm-up"], "e42": ["long warm-up"], "e68": []}
    note = (
        "not the same warm-up: e1: 100 steps of warm-up, and the run had 26: its rate reached 26% "
        "of optim.lr; e42: 100 steps of warm-up, and the run had 300"
    )
    for text in (said(report), markdown_text(report).replace("\\", ""), page_text(report)):
        assert note in text
        assert "never left warm-up" in text


def test_a_warm_up_in_a_share_of_the_budget_is_not_marked(sweep: FakeSweep) -> None:
    budget = ("train.minutes=10", "train.steps=null", "optim.warmup_share=0.05")
    for model, steps in (("e1", 26), ("e42", 2000)):
        timed(sweep, model, steps, budget=(*budget, "optim.warmup_steps=100"))
    assert not any(row.marks for row in make_report([sweep.folder]).rows)


def test_a_run_that_does_not_know_the_newer_settings_differs_in_none(sweep: FakeSweep) -> None:
    """Runs of an earlier version and new seeds of the same sweep are one row."""
    newer = {"optim": ("warmup_share",), "train": ("data_seed",), "data": ("val_path",)}
    for seed in (1, 2):
        run = sweep.job("model=e1", f"train.seed={seed}")
        if seed == 1:
            tree = yaml.safe_load((run / "config.yaml").read_text())
            for section, keys in newer.items():
                for key in keys:
                    assert tree[section].pop(key) is None
            (run / "config.yaml").write_text(yaml.safe_dump(tree))
    report = make_report([sweep.folder])
    (row,) = report.rows
    assert len(row.counted) == 2
    assert not any("differs too" in note for note in report.comparison)
