"""Who wins: what a report says of the differences between rows, in every form."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from elman.cli.main import main
from elman.report.comparison.deciding import LOSS, MEMORY, SPEED, VAL_BPB
from elman.report.comparison.page import page_text
from elman.report.comparison.published_figures import beside
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.rows import Row
from elman.report.comparison.wins import Wins, who_wins
from elman.report.comparison.wins_text import METHOD, print_wins, sentence, verdict, wins_markdown
from elman.report.comparison.write import csv_text, markdown_text

from .fake_sweep import BATCH, CHUNK, FakeSweep

BYTES = BATCH * CHUNK
STEPS = 400


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return an empty sweep."""
    return FakeSweep(tmp_path / "outputs" / "a_sweep")


def seeded(sweep: FakeSweep, model: str, losses: list[float], **result: Any) -> None:
    """Add a row: a job for each loss, with seeds from 1."""
    for seed, loss in enumerate(losses, 1):
        whole = {"loss": loss} | result
        sweep.job(f"model={model}", f"train.seed={seed}", result=whole)


def differences(report: Report) -> list[dict[str, str]]:
    """Return the differences in report.csv."""
    lines = csv.DictReader(io.StringIO(csv_text(report)))
    return [line for line in lines if line["kind"] == "difference"]


def test_the_lowest_loss_is_compared_with_by_default(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.52, 1.57])
    seeded(sweep, "e42", [1.40, 1.43, 1.47])
    (group,) = make_report([sweep.folder]).wins.groups
    assert (group.reference.label, group.chosen, group.axis) == ("e42", False, "steps")
    (one,) = group.challengers
    line = one.line(LOSS, "steps")
    # Pairs 0.10, 0.09, 0.10; sd 0.005774.
    reach = 4.302652729749464 * math.sqrt((2 * 0.01**2 / 3) / 2 / 3)
    mean = 0.29 / 3
    assert line.value == pytest.approx(mean)
    assert line.interval == (pytest.approx(mean - reach), pytest.approx(mean + reach))
    assert verdict(line) == "worse"
    told = sentence(group, group.challengers[0])
    assert told.startswith(
        "e1: worse: val bpb +0.0967 (+0.0823 to +0.1110) at equal steps; loss agrees, +0.0967 ("
    )


def test_what_noise_hides_is_said_with_the_seeds_that_would_decide(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.54])
    seeded(sweep, "e42", [1.49, 1.50])
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    line = group.challengers[0].line(LOSS, "steps")
    # Pairs 0.01 and 0.04. Five pairs find 0.025 with sd 0.0212 in 50 of 100 cases, 8 in 81.
    words = "not distinguishable with 2 seeds; about 6 more would decide"
    assert verdict(line) == words
    for text in (page_text(report), markdown_text(report)):
        assert words in text
    assert differences(report)[0]["more_seeds"] == "6"


def test_one_seed_has_no_interval(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.5])
    seeded(sweep, "e42", [1.4])
    report = make_report([sweep.folder])
    line = report.wins.groups[0].challengers[0].line(LOSS, "steps")
    assert line.interval is None
    assert verdict(line) == "one seed in a row, so the noise is unknown"
    assert differences(report)[0]["low"] == ""


def test_a_lucky_single_seed_is_not_what_the_others_are_compared_with(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.54])
    seeded(sweep, "e42", [1.60, 1.62])
    seeded(sweep, "e68", [1.2])
    (group,) = make_report([sweep.folder]).wins.groups
    assert group.reference.label == "e1"
    assert [one.row.label for one in group.challengers] == ["e68", "e42"]


def test_other_seeds_are_compared_without_pairs(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.54, 1.52])
    for seed, loss in ((7, 1.4), (8, 1.41)):
        sweep.job("model=e42", f"train.seed={seed}", result={"loss": loss})
    report = make_report([sweep.folder])
    (group,) = report.wins.groups
    found = group.challengers[0].line(LOSS, "steps").difference
    assert found is not None
    assert (found.method, found.n) == ("Welch", (3, 2))
    assert report.wins.left_out == ()


def test_rows_that_are_not_comparable_are_left_out_with_the_reason(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.54])
    seeded(sweep, "e42", [1.40, 1.43])
    sweep.job("model=e68", "train.batch_size=8", "data.val_window=128")
    sweep.failed("model=e63", status="nan", error="it broke")
    report = make_report([sweep.folder])
    line = "not compared with e42: e68 train.batch_size=8 data.val_window=128 (different batch, "
    assert report.wins.left_out == (line + "validation)",)
    assert line in page_text(report)
    (group,) = report.wins.groups
    assert [one.row.label for one in group.challengers] == ["e1"]


def test_nobody_wins_where_no_two_rows_are_comparable(sweep: FakeSweep) -> None:
    for batch in (4, 8, 16):
        sweep.job("model=e1", f"train.batch_size={batch}")
    report = make_report([sweep.folder])
    assert report.wins.groups == ()
    line = "no two rows are comparable, so nobody wins; they differ in batch"
    assert report.wins.left_out == (line,)
    assert line in markdown_text(report)


def test_one_row_is_compared_with_nothing(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.54])
    report = make_report([sweep.folder])
    assert "Who wins" not in page_text(report) + markdown_text(report)


def test_speed_and_memory_are_ratios_with_intervals(sweep: FakeSweep) -> None:
    for seed, (slow, fast) in enumerate(((1000, 2000), (1100, 2300), (900, 1750)), 1):
        at = f"train.seed={seed}"
        sweep.job("model=e1", at, result={"tok_s": slow, "peak_memory_bytes": 2e9, "loss": 2.0})
        sweep.job("model=e42", at, result={"tok_s": fast, "peak_memory_bytes": 1e9, "loss": 1.0})
    (group,) = make_report([sweep.folder]).wins.groups
    (one,) = group.challengers
    logs = np.log([1000 / 2000, 1100 / 2300, 900 / 1750])
    reach = 4.302652729749464 * logs.std(ddof=1) / math.sqrt(3)
    speed = one.line(SPEED)
    assert speed.value == pytest.approx(math.exp(logs.mean()))
    expected = (math.exp(logs.mean() - reach), math.exp(logs.mean() + reach))
    assert speed.interval == pytest.approx(expected)
    assert verdict(speed) == "slower"
    assert (one.line(MEMORY).value, verdict(one.line(MEMORY))) == (pytest.approx(2), "larger")


def test_a_contended_speed_is_marked(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.54], contended=True)
    seeded(sweep, "e42", [1.40, 1.43])
    (group,) = make_report([sweep.folder]).wins.groups
    line = group.challengers[0].line(SPEED)
    assert verdict(line).endswith("; not the model's own speed: contended")
    assert "(contended)" in sentence(group, group.challengers[0])


def test_speeds_and_times_of_a_shared_gpu_are_marked_and_losses_are_not(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.54], jobs_per_gpu=4)
    seeded(sweep, "e42", [1.40, 1.43], jobs_per_gpu=1)
    (group,) = make_report([sweep.folder]).wins.groups
    (one,) = group.challengers
    marked = {(line.number, line.axis) for line in one.lines if line.marks}
    assert marked == {(SPEED, None), (LOSS, "minutes"), (VAL_BPB, "minutes")}
    assert verdict(one.line(SPEED)).endswith("; not the model's own speed: shared GPU")


def crossing(sweep: FakeSweep, budget: str) -> None:
    """Add two rows whose losses are lines: the first falls faster, and takes twice the time.

    At a step n the first has 6 - n/100 and the second 5 - n/200, so that they cross at step 200.
    Mean over 100 steps: 49.5 steps earlier. The second is through with 400 steps in half the time.
    """
    for model, start, per_step, steps, seconds in (
        ("e1", 6.0, 0.01, STEPS, 2.0),
        ("e42", 5.0, 0.005, 2 * STEPS if budget == "train.minutes=20" else STEPS, 1.0),
    ):
        for seed in (1, 2):
            losses = [start - per_step * n + 0.01 * seed for n in range(1, steps + 1)]
            run = sweep.job(
                f"model={model}",
                f"train.seed={seed}",
                budget,
                *(["train.steps=null"] if "minutes" in budget else []),
                losses=losses,
                result={
                    "loss": float(np.mean(losses[-100:])),
                    "steps": steps,
                    "tokens": steps * BYTES,
                    "val_bpb": losses[-1],
                    "seconds": {"train": seconds * steps},
                },
            )
            lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
            for line in lines:
                if line["kind"] == "window":
                    line["train_seconds"] = seconds * line["step"]
            for step in range(100, steps + 1, 100):
                lines.append({"kind": "validation", "step": step, "val_bpb": losses[step - 1]})
            (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def test_equal_steps_minutes_and_bytes_are_read_from_the_curves(sweep: FakeSweep) -> None:
    crossing(sweep, "train.minutes=20")
    (group,) = make_report([sweep.folder]).wins.groups
    assert (group.reference.model, group.axis) == ("e42", "minutes")
    (one,) = group.challengers
    # The shortest run has 400 steps; there the other one is at its 400th of 800.
    steps = one.line(LOSS, "steps")
    assert (steps.effort, steps.earlier) == (400, True)
    assert steps.value == pytest.approx((6 - 0.01 * 350.5) - (5 - 0.005 * 350.5))
    size = one.line(LOSS, "bytes")
    assert (size.effort, size.value) == (400 * BYTES, pytest.approx(steps.value))
    # At equal minutes both are through: 800 s. The last tenth of it is centered on 760 s.
    minutes = one.line(LOSS, "minutes")
    assert (minutes.effort, minutes.earlier) == (pytest.approx(800 / 60), False)
    assert minutes.value == pytest.approx((6 - 0.01 * 380) - (5 - 0.005 * 760))
    printed = io.StringIO()
    print_wins(Console(file=printed, width=200), Wins((group,)))
    assert "minus that of e42" in printed.getvalue()
    assert "\n* before the end of the longer runs: " in printed.getvalue()
    held_out = one.line(VAL_BPB, "steps")
    assert held_out.value == pytest.approx((6 - 0.01 * 400) - (5 - 0.005 * 400))


def test_a_faster_model_may_lose_at_equal_steps_and_win_at_equal_minutes(sweep: FakeSweep) -> None:
    crossing(sweep, "train.steps=400")
    (group,) = make_report([sweep.folder]).wins.groups
    assert (group.reference.model, group.axis) == ("e1", "steps")
    (one,) = group.challengers
    assert one.line(LOSS, "steps").value == pytest.approx(-1 + 0.005 * 350.5)  # crossed, ahead
    # The last tenth of 400 s is centered on 380 s, step 190 of the slow one.
    minutes = one.line(LOSS, "minutes")
    assert minutes.effort == pytest.approx(400 / 60)
    assert minutes.value == pytest.approx((5 - 0.005 * 380) - (6 - 0.01 * 190))
    assert verdict(minutes) == "better"
    assert verdict(one.line(LOSS, "steps")) == "worse"


def test_a_validation_that_was_not_recorded_there_is_not_made_up(sweep: FakeSweep) -> None:
    result: dict[str, Any] = {"seconds": {"train": 120.0}}
    longer = {"seconds": {"train": 240.0}, "steps": 80, "tokens": 80 * BYTES}
    for seed in (1, 2):
        budget = ("train.minutes=2", "train.steps=null", f"train.seed={seed}")
        sweep.job("model=e1", *budget, result=result)
        losses = [5 - 0.01 * n for n in range(80)]
        sweep.job("model=e42", *budget, losses=losses, result=longer | {"loss": 1.0})
    (group,) = make_report([sweep.folder]).wins.groups
    line = group.challengers[0].line(VAL_BPB, "steps")
    assert line.difference is None
    assert verdict(line) == "not recorded near steps 40 in every run"


@pytest.mark.parametrize("against", ["e1", "1", "2"])
def test_a_row_may_be_chosen(
    sweep: FakeSweep, tmp_path: Path, capfd: pytest.CaptureFixture[str], against: str
) -> None:
    seeded(sweep, "e1", [1.50, 1.52])
    seeded(sweep, "e42", [1.40, 1.43])
    assert main(["mode=report", f"report.dir={sweep.folder}", f"report.against={against}"]) == 0
    output = capfd.readouterr().out
    assert "Who wins, against e1 (report.against, n=2); in brackets 95 % intervals:" in output
    assert "e42: not distinguishable with 2 seeds" in output or "e42: better" in output
    assert "Against e1 (report.against, n=2)" in (sweep.folder / "report.html").read_text()
    found = csv.DictReader((sweep.folder / "report.csv").open())
    assert {line["against"] for line in found} == {"", "e1"}


WRONG = {
    "e24": "report.against=e24: no such row (did you mean e42?); name a row by its model, as in e1",
    "99": "report.against=99: no such row; name a row by its model, as in e1",
    "e68": "report.against=e68: 2 rows are called so; name one by the number of a job of it, "
    "report.against=<number>: 4 (e68 optim.lr=0.1), 5 (e68 optim.lr=0.2)",
    "e63": "report.against=e63: no run of this row ended with ok (nan); name another row",
}


@pytest.mark.parametrize("against", WRONG)
def test_a_row_that_cannot_be_chosen_is_one_line(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str], against: str
) -> None:
    seeded(sweep, "e1", [1.50, 1.52])
    seeded(sweep, "e42", [1.40])
    for lr in ("0.1", "0.2"):
        sweep.job("model=e68", f"optim.lr={lr}", "train.seed=1")
    sweep.failed("model=e63", status="nan", error="it broke")
    assert main(["mode=report", f"report.dir={sweep.folder}", f"report.against={against}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"elman: error: {WRONG[against]}")
    assert not (sweep.folder / "report.html").exists()


def test_many_rows_are_adjusted_for_and_said(sweep: FakeSweep) -> None:
    """A difference that would count alone does not among many rows without any."""
    noise = np.random.default_rng(5).normal(0, 0.02, (9, 4))
    noise -= noise.mean(1, keepdims=True)
    for model, values in zip(
        ("e14", "e23", "e33", "e36", "e42", "e63", "e68", "gru", "lstm"), noise, strict=True
    ):
        seeded(sweep, model, (1.5 + values).tolist())
    seeded(sweep, "e1", [1.5 + x for x in (0.010, 0.022, 0.014, 0.030)])
    report = make_report([sweep.folder])
    line = next(
        line
        for line in differences(report)
        if (line["label"], line["measure"], line["at"]) == ("e1", "loss", "steps")
    )
    assert float(line["p_holm"]) == pytest.approx(min(1, 9 * float(line["p"])))


def test_every_form_has_the_method_and_the_csv_every_number(sweep: FakeSweep) -> None:
    seeded(sweep, "e1", [1.50, 1.52, 1.57])
    seeded(sweep, "e42", [1.40, 1.43, 1.47])
    report = make_report([sweep.folder])
    page, markdown = unescape(page_text(report)), markdown_text(report)
    assert all(text in page for text in METHOD)
    assert all(text in markdown for text in METHOD)
    lines = differences(report)
    told = [(line["measure"], line["at"]) for line in lines]
    axes = ("steps", "minutes", "bytes")
    losses = [(key, axis) for key in ("loss", "val_bpb") for axis in axes]
    assert told == [*losses, ("tok_s", ""), ("peak_memory_gb", "")]
    assert lines[0]["against"] == "e42"
    assert float(lines[0]["low"]) < float(lines[0]["difference"]) < float(lines[0]["high"])


def test_three_hundred_rows_are_all_compared(sweep: FakeSweep) -> None:
    sweep.job("model=e1", "train.seed=1")
    report = make_report([sweep.folder])
    (run,) = report.runs
    assert run.result is not None
    random = np.random.default_rng(0)
    rows = []
    for row in range(300):
        runs = []
        for seed in range(1, 4):
            told = {"loss": 1.5 + 0.001 * row + random.normal(0, 0.02), "tok_s": 1000.0 + row}
            result = run.result.model_copy(update=told)
            runs.append(replace(run, seed=seed, result=result))
        rows.append(Row("e1", tuple(runs), f"row {row}", 1))
    wins = who_wins(rows)
    whole = replace(report, rows=tuple(rows), wins=wins, published=beside(rows, []))
    lines = differences(whole)
    text = "".join(map(str, wins_markdown(wins)))
    assert len(lines) == 299 * 8
    assert "report.csv has the rest" in text
