"""What a report says of a tuned sweep."""

from __future__ import annotations

import csv
import io
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from elman.cli.main import main
from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.tuned_text import (
    care_line,
    print_tuning,
    rank_line,
    sentences,
    table_of,
)
from elman.report.comparison.verdict import METHOD
from elman.report.comparison.write import csv_text, markdown_text

from .fake_sweep import FakeSweep

COMMON = 3e-4
TYPED = "elman -m model=e1,e42 tune=rates train.steps=40 train.seed=1,2,3"
SEEDS = (1, 2, 3)
TRIAL_SEED = 0


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return an empty tuned sweep."""
    return FakeSweep(tmp_path / "outputs" / "a_sweep", typed=TYPED, tune=head(["e1", "e42"]))


def head(arms: list[str], **changes: Any) -> dict[str, Any]:
    """Return what sweep.json says of the tuning of some arms."""
    space = {"optim": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}}
    return {
        "config": {"space": space},
        "score": "val_bpb",
        "goal": "minimize",
        "arms": [
            {"arm": arm, "model": arm, "published": {"optim.lr": COMMON}, "params": 90432}
            for arm in arms
        ],
        "ranges": [{"optim.lr": {"low": 1e-4, "high": 1e-2}}],
        "state": "done",
    } | changes


def tune(
    sweep: FakeSweep,
    arm: str,
    trials: dict[float, float | None],
    best: list[float],
    common: list[float],
    second: float | None = None,
) -> None:
    """Add an arm: its trials by rate, and the scores of its confirmed runs, with seeds from 1."""
    for number, (lr, score) in enumerate(trials.items()):
        status = "ok" if score is not None else "nan"
        sweep.tuned(arm, "trial", lr, score, seed=TRIAL_SEED, status=status, trial=number)
    known = {lr: score for lr, score in trials.items() if score is not None}
    first, next_best, *_ = sorted(known, key=lambda lr: known[lr])
    for seed, score in zip(SEEDS, best, strict=False):
        sweep.tuned(arm, "best", first, score, seed=seed, common=first == COMMON)
    if second is not None:
        sweep.tuned(arm, "second", next_best, second, seed=1)
    if first != COMMON:
        for seed, score in zip(SEEDS, common, strict=False):
            sweep.tuned(arm, "common", COMMON, score, seed=seed)


def two_arms(sweep: FakeSweep) -> None:
    """Add two arms whose order at the published rate is the reverse of that at each one's best."""
    tune(
        *(sweep, "e1", {COMMON: 1.60, 1e-3: 1.40, 3e-3: 1.46, 1e-2: None}),
        best=[1.300, 1.305, 1.296],
        common=[1.520, 1.524, 1.515],
        second=1.35,
    )
    tune(
        *(sweep, "e42", {COMMON: 1.50, 1e-3: 1.52, 3e-3: 1.55, 1e-4: 1.9}),
        best=[1.420, 1.426, 1.417],
        common=[],
        second=1.44,
    )


def lines_of(report: Report, kind: str) -> list[dict[str, str]]:
    """Return the lines of report.csv of one kind."""
    return [one for one in csv.DictReader(io.StringIO(csv_text(report))) if one["kind"] == kind]


def test_only_runs_of_the_best_setting_are_rows_and_compared(sweep: FakeSweep) -> None:
    two_arms(sweep)
    report = make_report([sweep.folder])
    rows = lines_of(report, "model")
    assert [(row["model"], row["n"], row["runs"]) for row in rows] == [
        ("e1", "3", "3"),
        ("e42", "3", "3"),
    ]
    assert len(lines_of(report, "run")) == 6
    (group,) = report.wins.groups
    assert group.reference.model == "e1"
    line = group.decisive(group.challengers[0])
    assert line.value == pytest.approx(1.421 - 1.300333, abs=1e-6)


def test_while_only_trials_have_run_there_is_no_row_and_nobody_wins(sweep: FakeSweep) -> None:
    sweep.tuned("e1", "trial", COMMON, 1.5, seed=TRIAL_SEED)
    sweep.tuned("e42", "trial", COMMON, 1.6, seed=TRIAL_SEED)
    report = make_report([sweep.folder])
    assert (report.rows, report.wins.groups) == ((), ())
    assert "Table" in page_text(report)
    assert "# Report" in markdown_text(report)


def test_a_trial_that_diverged_is_no_failure_of_the_sweep(sweep: FakeSweep) -> None:
    two_arms(sweep)
    assert "Failures" not in page_text(make_report([sweep.folder]))
    sweep.tuned("e1", "common", COMMON, None, seed=9, status="nan")
    assert "Failures" in page_text(make_report([sweep.folder]))


def said(sweep: FakeSweep) -> list[str]:
    """Return the two orders."""
    (tuned,) = make_report([sweep.folder]).tuned
    return sentences(tuned)


def test_two_sentences_say_the_order_at_the_published_rate_and_at_each_ones_best(
    sweep: FakeSweep,
) -> None:
    two_arms(sweep)
    first, second = said(sweep)
    assert first.startswith(
        "With every arm at the published setting (optim.lr 0.0003), e42 leads with 1.4210 bits per "
        "byte (95 % interval 1.4096 to 1.4324, 3 seeds); e1 is worse by 0.0987 ("
    )
    assert second.startswith(
        "With each arm at its own best setting, e1 leads with 1.3003 bits per byte"
    )
    assert "e42 is worse by 0.1207 (" in second
    assert second.endswith(
        "The two orders differ beyond noise: e42 is ahead of e1 at the published setting, and "
        "behind it at each one's best."
    )


def test_scores_of_trials_are_not_in_the_verdict(sweep: FakeSweep) -> None:
    two_arms(sweep)
    before = said(sweep)
    sweep.tuned("e42", "trial", 5e-5, 0.1, seed=TRIAL_SEED, trial=9)
    after = said(sweep)
    assert after[0] == before[0]
    # Now its best trial is at the edge.
    assert "e42: its best value is at the lower edge of optim.lr" in after[1]


def test_the_table_shows_windows_edges_and_both_confirmations(sweep: FakeSweep) -> None:
    two_arms(sweep)
    (tuned,) = make_report([sweep.folder]).tuned
    assert table_of(tuned).cells == [
        [
            *("e1", "4, 1 nan", "optim.lr 0.001", "optim.lr 0.001 (1 point)", "-"),
            *("1.4000", "1.3003 (1.2891 to 1.3115, n=3)", "1.5197 (1.5085 to 1.5309, n=3)"),
            "leads",
        ],
        [
            *("e42", "4", "optim.lr 0.0003", "optim.lr 0.0003 (1 point)", "-"),
            *("1.5000", "1.4210 (1.4096 to 1.4324, n=3)", "1.4210 (1.4096 to 1.4324, n=3)"),
            "worse",
        ],
    ]


def test_an_arm_at_an_edge_gets_no_verdict_and_a_wider_range_to_type(sweep: FakeSweep) -> None:
    tune(
        *(sweep, "e1", {COMMON: 1.6, 1e-3: 1.5, 1e-2: 1.4}),
        best=[1.3, 1.31, 1.29],
        common=[1.5, 1.51, 1.52],
    )
    tune(
        *(sweep, "e42", {COMMON: 1.6, 1e-3: 1.5, 1e-2: 1.7}),
        best=[1.4, 1.41, 1.39],
        common=[1.6, 1.61, 1.62],
    )
    first, second = said(sweep)
    assert "e1 leads" in first
    assert second == (
        "With each arm at its own best setting there is no verdict (e42: no other arm has a "
        "verdict; e1: its best value is at the upper edge of optim.lr, so a better one may lie "
        "beyond). So the two orders cannot be "
        "compared."
    )
    report = make_report([sweep.folder])
    wider = f"for a verdict on e1: {TYPED} tune.space.optim.lr.high=0.1"
    assert wider in printed(report)
    assert f"`{TYPED} tune.space.optim.lr.high=0.1`" in markdown_text(report)
    assert f"<code>{TYPED} tune.space.optim.lr.high=0.1</code>" in page_text(report)


def test_a_window_that_ends_where_trials_ended_may_reach_farther(sweep: FakeSweep) -> None:
    tune(sweep, "e1", {1e-4: 1.6, COMMON: 1.5, 1e-3: 1.505}, best=[1.3, 1.31], common=[])
    tune(sweep, "e42", {COMMON: 1.9, 1e-3: 1.5, 3e-3: 1.6}, best=[1.4, 1.41], common=[])
    (tuned,) = make_report([sweep.folder]).tuned
    windows = [line[3] for line in table_of(tuned).cells]
    assert windows == [
        "optim.lr 0.0003 to 0.001 (2 points, may reach higher)",
        "optim.lr 0.001 (1 point)",
    ]


def test_an_arm_at_an_edge_inside_the_range_gets_more_trials_to_type(sweep: FakeSweep) -> None:
    inside = {1e-4: 1.9, COMMON: 1.6, 1e-3: 1.5}
    tune(sweep, "e1", inside, best=[1.3, 1.31, 1.29], common=[])
    tune(sweep, "e42", inside, best=[1.4, 1.41, 1.39], common=[])
    more = f"for a verdict on e1, e42: elman -m sweep.add={sweep.folder} tune.trials=16"
    assert more in printed(make_report([sweep.folder]))


def test_an_arm_whose_confirmation_failed_or_has_one_seed_gets_no_verdict(
    sweep: FakeSweep,
) -> None:
    sweep.top["tune"] = head(["e1", "e42", "e68", "e33"])
    two_arms(sweep)
    inside = {1e-4: 1.9, COMMON: 1.5, 1e-3: 1.6}
    tune(sweep, "e68", inside, best=[1.2], common=[])
    tune(sweep, "e33", inside, best=[1.2, 1.21], common=[])
    sweep.tuned("e33", "best", COMMON, None, seed=3, status="oom", common=True)
    _, second = said(sweep)
    assert "e68, one seed, so its noise is unknown" in second
    assert "e33, 1 of its 3 confirmed runs failed (seed 3: oom)" in second
    lines = printed(make_report([sweep.folder]))
    assert f"for a verdict on e68: elman -m sweep.add={sweep.folder} train.seed=2,3" in lines
    assert f"for a verdict on e33: elman -m sweep.resume={sweep.folder}" in lines


def test_before_the_confirmation_the_arms_are_shown_without_a_verdict(sweep: FakeSweep) -> None:
    for arm in ("e1", "e42"):
        sweep.tuned(arm, "trial", COMMON, 1.5, seed=TRIAL_SEED, trial=1)
    first, second = said(sweep)
    assert "there is no verdict (e1: it was not trained there; e42:" in first
    assert "there is no verdict (e1: its trials have not ended; e42:" in second
    assert "Each at its best" in page_text(make_report([sweep.folder]))


def test_arms_of_unequal_conditions_are_not_compared(sweep: FakeSweep) -> None:
    sweep.top["tune"] = head(["e1", "e42", "e68"])
    two_arms(sweep)
    for number, lr in enumerate((1e-4, COMMON, 1e-3)):
        sweep.tuned("e68", "trial", lr, 1.5 + abs(number - 1), seed=TRIAL_SEED, trial=number)
    told = {"arm": "e68", "phase": "best", "values": {"optim.lr": COMMON}, "common": True}
    for seed in SEEDS:
        overrides = ("model=e68", f"train.seed={seed}", "train.batch_size=8")
        sweep.job(*overrides, tuning=told, result={"loss": 1.0 + seed / 100})
    assert "e68, its runs have other conditions (batch)" in said(sweep)[0]


def test_the_care_that_every_arm_got_is_said(sweep: FakeSweep) -> None:
    two_arms(sweep)
    sweep.top["tune"]["ranges"].append({"optim.lr": {"low": 1e-4, "high": 3e-2}})
    sweep.write()
    (tuned,) = make_report([sweep.folder]).tuned
    assert care_line(tuned) == (
        "Every arm had 8 trials of the full budget from the same space, with optim.lr 0.0001 to "
        "0.03, which grew 1 time for all."
    )


def test_trials_that_order_settings_as_whole_runs_do_not_are_counted(sweep: FakeSweep) -> None:
    two_arms(sweep)
    (tuned,) = make_report([sweep.folder]).tuned
    # e1: 1e-3, 3e-3 and 3e-4 in this order in both; e42: 3e-4 before 1e-3 in both.
    assert rank_line(tuned) == (
        "Trials order settings as whole runs do in 4 of 4 pairs within an arm (Kendall's tau 1.00, "
        "n=4); over all settings Spearman's rank correlation is 1.00 (n=5)."
    )
    sweep.tuned("e42", "second", 3e-3, 1.40, seed=1)
    (tuned,) = make_report([sweep.folder]).tuned
    assert "in 4 of 6 pairs within an arm (Kendall's tau 0.33, n=6)" in rank_line(tuned)


def test_what_noise_hides_says_how_many_seeds_would_decide(sweep: FakeSweep) -> None:
    inside = {1e-4: 1.9, COMMON: 1.5, 1e-3: 1.6}
    tune(sweep, "e1", inside, best=[1.50, 1.53, 1.55], common=[])
    tune(sweep, "e42", inside, best=[1.53, 1.56, 1.54], common=[])
    sweep.write()
    first, second = said(sweep)
    assert "e42 is not distinguishable from it (+0.0167, " in first
    assert "3 seeds; about" in second
    assert second.endswith("The two orders do not differ in their leader.")
    report = make_report([sweep.folder])
    pair = report.tuned[0].best.standings[1].pair
    assert pair is not None
    seeds = f"'train.seed=range(4,{4 + (pair.more_seeds or 0)})'"
    assert f"to decide e42: elman -m sweep.add={sweep.folder} {seeds}" in printed(report)
    (group,) = report.wins.groups
    (command,) = group.challengers[0].to_decide
    # A tuned sweep gives seeds to all its arms, with the settings that it has chosen for them.
    words = ["elman", "-m", f"sweep.add={sweep.folder}"]
    assert shlex.split(command)[:-1] == words


def test_who_wins_has_numbers_and_no_second_verdict(sweep: FakeSweep) -> None:
    two_arms(sweep)
    lines = markdown_text(make_report([sweep.folder])).splitlines()
    (line,) = [one for one in lines if one.startswith("e42 optim.lr=0.0003: val bpb")]
    assert "at equal steps" in line
    assert "worse" not in line
    assert "distinguishable" not in line


def test_page_and_markdown_say_how_the_verdict_is_given(sweep: FakeSweep) -> None:
    two_arms(sweep)
    report = make_report([sweep.folder])
    assert all(f">{text}</p>" in unescape(page_text(report)) for text in METHOD)
    assert "\n\n".join(METHOD) in markdown_text(report)


def test_csv_has_a_line_for_each_arm(sweep: FakeSweep) -> None:
    two_arms(sweep)
    best, other = lines_of(make_report([sweep.folder]), "arm")
    assert (best["label"], best["best_setting"], best["verdict"]) == (
        *("e1", "optim.lr 0.001", "leads"),
    )
    assert float(best["confirmed"]) == pytest.approx(1.3003333)
    assert float(best["common"]) == pytest.approx(1.5196667)
    assert float(best["trial_score"]) == 1.4
    assert (other["n"], other["edge"]) == ("3", "")


def test_a_report_of_the_folder_prints_the_verdict(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    two_arms(sweep)
    assert main(["mode=report", f"report.dir={sweep.folder}"]) == 0
    output = capfd.readouterr().out
    for sentence in said(sweep):
        assert sentence in output.splitlines()


def test_a_damaged_record_of_the_tuning_is_a_problem_and_no_crash(sweep: FakeSweep) -> None:
    two_arms(sweep)
    sweep.top["tune"] = {"config": {"space": 3}}
    sweep.write()
    report = make_report([sweep.folder])
    assert report.tuned == ()
    assert any("of its tuning cannot be read" in line for line in report.problems)


def test_mode_verdict_refuses_an_arm_that_gets_no_verdict(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    two_arms(sweep)
    rows = f"verdict.dir={sweep.folder}"
    assert main(["mode=verdict", "verdict.a=e1", "verdict.b=e42", rows]) == 0
    sweep.tuned("e42", "trial", 5e-5, 0.1, seed=TRIAL_SEED, trial=9)
    capfd.readouterr()
    assert main(["mode=verdict", "verdict.a=e1", "verdict.b=e42", rows]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "no verdict on this row: its best value is at the lower edge of optim.lr" in line
    assert line.endswith("tune.space.optim.lr.low=1e-05")


def printed(report: Report) -> list[str]:
    """Return the lines that a terminal shows."""
    console = Console(width=10_000, record=True, file=io.StringIO())
    print_tuning(console, report.tuned)
    return [line.rstrip() for line in console.export_text().splitlines()]
