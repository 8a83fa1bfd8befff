"""``mode=report``: what is in the table, through the command line and the files that it writes."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elman.cli.main import main
from elman.evaluation.result import METRICS_VERSION

from .fake_sweep import FakeSweep, make_run, records


@dataclass(frozen=True)
class Reported:
    """What a command said and wrote."""

    status: int
    output: str
    errors: str
    folder: Path

    @property
    def lines(self) -> list[str]:
        """What stands under the table."""
        return [line for line in self.output.splitlines() if not set("│┃━") & set(line)]

    @property
    def table(self) -> dict[str, dict[str, str]]:
        """The cells of the terminal's table by model and head."""
        lines = [line.replace("┃", "│") for line in self.output.splitlines()]
        cells = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
        return {
            line[cells[0].index("model")]: dict(zip(cells[0], line, strict=True))
            for line in cells[1:]
        }

    @property
    def csv(self) -> list[dict[str, str]]:
        """The lines of report.csv."""
        return list(csv.DictReader(io.StringIO((self.folder / "report.csv").read_text())))

    @property
    def page(self) -> str:
        """The text of report.html."""
        return (self.folder / "report.html").read_text()


Report = Callable[..., Reported]
FILES = {"report.html", "report.csv", "report.md", "audit.json"}


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Report:
    """Return ``report(folder, *others)``: mode=report of it; of several, written into ``out``."""
    monkeypatch.chdir(tmp_path)

    def run(*folders: Path, arguments: tuple[str, ...] = ()) -> Reported:
        named = "[" + ",".join(map(str, folders)) + "]" if len(folders) > 1 else str(folders[0])
        out = tmp_path / "out"
        more = (f"report.out={out}",) if len(folders) > 1 else ()
        status = main(["mode=report", f"report.dir={named}", *more, *arguments])
        return Reported(status, *capfd.readouterr(), out if more else folders[0])

    return run


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return an empty sweep."""
    return FakeSweep(tmp_path / "outputs" / "a_sweep")


def test_seeds_are_one_row_with_mean_and_spread(report: Report, sweep: FakeSweep) -> None:
    for seed, loss, val in ((1, 1.50, 2.0), (2, 1.52, 2.2), (3, 1.57, 2.4)):
        numbers = {"loss": loss, "val_bpb": val, "tok_s": 1000.0 * seed}
        sweep.job("model=e1", f"train.seed={seed}", result=numbers)
    for seed, loss in ((1, 1.40), (2, 1.44)):
        sweep.job("model=e42", f"train.seed={seed}", result={"loss": loss})
    sweep.job("model=e68", "train.seed=1", result={"loss": 1.3})
    done = report(sweep.folder)
    assert (done.status, done.errors) == (0, "")
    three, two, one = (done.table[name] for name in ("e1", "e42", "e68"))
    # (1.50 + 1.52 + 1.57) / 3; squares of -0.03, -0.01, 0.04 over n - 1
    deviation = math.sqrt((0.0009 + 0.0001 + 0.0016) / 2)
    assert (three["loss"], three["spread"]) == ("1.5300", f"sd {deviation:.4f}, n=3")
    assert (three["val bpb"], three["tok/s"], three["seeds"]) == ("2.2000", "2,000", "1, 2, 3")
    assert (three["min"], three["GB"], three["params"]) == ("2.00", "0.39", "90,432")
    assert (two["loss"], two["spread"]) == ("1.4200", "sd 0.0283, n=2")
    assert (one["loss"], one["spread"]) == ("1.3000", "n=1")
    kinds = [line["kind"] for line in done.csv]
    assert kinds[:8] == ["model", *["run"] * 3, "model", *["run"] * 2, "model"]
    first = done.csv[0]
    assert float(first["loss"]) == pytest.approx(1.53)
    assert float(first["loss_sd"]) == pytest.approx(deviation)
    assert (first["loss_min"], first["loss_max"], first["n"]) == ("1.5", "1.57", "3")
    assert [line["loss"] for line in done.csv[1:4]] == ["1.5", "1.52", "1.57"]
    assert float(done.csv[4]["loss_sd"]) == pytest.approx(0.02 * math.sqrt(2))
    assert done.csv[7]["loss_sd"] == ""  # no standard deviation of one
    assert [line["folder"] for line in done.csv[1:3]] == [
        str(sweep.folder / "01_e1"),
        str(sweep.folder / "02_e1"),
    ]


def test_one_seed_everywhere_is_said(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1")
    sweep.job("model=e42")
    done = report(sweep.folder)
    (line,) = [line for line in done.lines if line.startswith("n=1:")]
    assert "the noise between seeds is unknown" in line
    assert line.split(":")[0] in done.page


@pytest.mark.parametrize("status", ["nan", "oom", "crash", "timeout", "interrupted"])
def test_a_failed_run_has_its_row_and_never_a_mean(
    report: Report, sweep: FakeSweep, status: str
) -> None:
    sweep.job("model=e1", "train.seed=1", result={"loss": 1.5})
    sweep.failed("model=e1", "train.seed=2", status=status, error="it broke", steps=17, loss=0.1)
    sweep.failed("model=e42", "train.seed=1", status=status, error="so did it", loss=0.2)
    done = report(sweep.folder)
    assert done.status == 0
    assert (done.table["e1"]["loss"], done.table["e1"]["spread"]) == ("1.5000", "n=1")
    assert (done.table["e1"]["status"], done.table["e1"]["seeds"]) == (f"1 ok, 1 {status}", "1")
    failed = done.table["e42"]
    assert failed["status"] == status
    assert {failed[head] for head in ("loss", "bpb", "val bpb", "tok/s", "seeds")} == {"-"}
    assert f"job 2 (02_e1, seed 2): {status} after 17 steps: it broke" in done.lines
    assert f"{status} after 17 steps: it broke" in done.page
    assert [line["reason"] for line in done.csv if line["kind"] == "run"][1:] == [
        "it broke",
        "so did it",
    ]


def test_jobs_without_a_result_are_rows(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", "train.seed=1")
    sweep.job("model=e1", "train.seed=2", status="not started", started=False)
    sweep.job("model=e42", status="killed (SIGKILL)", no_result=True)
    sweep.job("model=e68", status="refused", started=False)
    done = report(sweep.folder)
    statuses = {name: row["status"] for name, row in done.table.items()}
    assert statuses == {
        "e1": "1 ok, 1 not started",
        "e42": "killed (SIGKILL)",
        "e68": "refused",
    }
    assert "job 3 (03_e42, seed 42): killed (SIGKILL)" in done.lines


def test_a_failed_run_outside_a_sweep_is_named(report: Report, tmp_path: Path) -> None:
    failed = make_run(tmp_path / "alone", "model=e1", result={"status": "nan"})
    done = report(failed, make_run(tmp_path / "other", "model=e1"))
    assert any("alone, seed 42: nan" in line for line in done.lines)


def test_a_result_that_was_removed_is_missed(report: Report, sweep: FakeSweep) -> None:
    (sweep.job("model=e1") / "result.json").unlink()
    done = report(sweep.folder)
    assert done.table["e1"]["status"] == "damaged"
    assert any("no result.json, though its sweep saw it end well" in line for line in done.lines)


KILLED = "killed (SIGKILL)"
LATER = "2026-11-20T18:00:00+00:00"  # than the sweep's end


@pytest.mark.parametrize(
    ("result", "status", "said"),
    [
        # It was killed while it went on: its result is that of its session before.
        (
            {"status": "crash", "error": "no space left"},
            KILLED,
            f"{KILLED} after 40 steps: rank 1 was killed; its result says crash: no space left",
        ),
        ({"status": "ok"}, "ok", f"its process ended as {KILLED} after it had written its result"),
        # It went on alone, and ended in another way.
        (
            {"status": "crash", "error": "no space left", "ended": LATER},
            "crash",
            f"crash after 40 steps: no space left; its sweep had ended before and saw: {KILLED}",
        ),
        (
            {"status": "ok", "ended": LATER},
            "ok",
            f"its sweep had ended before and saw: {KILLED}",
        ),
    ],
)
def test_what_a_sweep_saw_beside_the_result_is_said(
    report: Report, sweep: FakeSweep, result: dict[str, Any], status: str, said: str
) -> None:
    sweep.job("model=e1", status=KILLED, result=result)
    sweep.jobs[0]["reason"] = "rank 1 was killed"
    sweep.write()
    done = report(sweep.folder)
    assert done.table["e1"]["status"] == status
    assert f"job 1 (01_e1, seed 42): {said}" in done.lines


def test_marks_of_how_a_run_was_computed(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", "train.seed=1", result={"contended": True})
    sweep.job("model=e1", "train.seed=2", result={"contended": False})
    path = {"slow_path": True, "path": "plain PyTorch, chunked", "backend": "reference"}
    sweep.job("model=mamba2", result=path)
    done = report(sweep.folder)
    assert done.table["e1"]["status"] == "ok, 1 contended"
    assert done.table["mamba2"]["status"] == "ok, slow path, unequal seeds"
    assert done.table["mamba2"]["backend"] == "reference: plain PyTorch, chunked"
    assert [line["contended"] for line in done.csv[1:3]] == ["true", "false"]


def test_a_run_on_a_shared_gpu_is_marked_with_what_that_means(
    report: Report, sweep: FakeSweep
) -> None:
    sweep.job("model=e1", result={"jobs_per_gpu": 4})
    sweep.job("model=e42", result={"jobs_per_gpu": 1})
    done = report(sweep.folder)
    assert done.table["e1"]["status"] == "ok, shared GPU"
    assert done.table["e42"]["status"] == "ok"
    runs = [line for line in done.csv if line["kind"] == "run"]
    assert [line["jobs_per_gpu"] for line in runs] == ["4", "1"]
    assert (
        "shared GPU: more than one of the most jobs" in (sweep.folder / "report.html").read_text()
    )


def test_replayed_runs_are_rows_of_their_own(report: Report, sweep: FakeSweep) -> None:
    # The first results did not say it: nothing was replayed then.
    for graph in (None, False, True):
        sweep.job("model=e1", f"train.seed={1 + bool(graph)}", result={"graph": graph})
    done = report(sweep.folder)
    assert list(done.table) == ["e1", "e1 #2"]
    runs = [line["graph"] for line in done.csv if line["kind"] == "run"]
    assert runs == ["", "false", "true"]
    assert "differs too: train.graph: false in e1; true in e1 #2" in done.lines


def test_runs_whose_layers_computed_side_by_side_are_rows_of_their_own(
    report: Report, sweep: FakeSweep
) -> None:
    # Older results do not say it, and older configurations lack train.overlap.
    for parts in (None, 1, 8):
        sweep.job("model=e1", f"train.seed={1 + (parts or 0)}", result={"time_parts": parts})
    done = report(sweep.folder)
    assert list(done.table) == ["e1", "e1 #2"]
    assert "differs too: parts of a row side by side (train.overlap): 1 in e1; 8 in e1 #2" in (
        done.lines
    )


def test_the_same_layers_typed_differently_are_one_row(report: Report, sweep: FakeSweep) -> None:
    ways = ("[e1,e88]", "[{cell:e88,at:[1,3]}]")
    for seed, way in enumerate(ways, 1):
        layers = f"model.layers={way}"
        sweep.job("model=e1", "model.depth=4", layers, f"train.seed={seed}")
    other = "model.layers=[e88,e1]"
    sweep.job("model=e1", "model.depth=4", other)
    labels = [f"e1 model.depth=4 model.layers={ways[0]}", f"e1 model.depth=4 {other}"]
    assert list(report(sweep.folder).table) == labels


def test_a_short_mean_says_its_count(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", result={"loss_steps": 40})
    assert report(sweep.folder).table["e1"]["loss"] == "1.5000 (last 40)"


RESET = "data.reset_at_documents"
CONDITIONS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "data": ((), {"data": {"sha256": "ffffffffffff"}}, "sha256 ffffffffffff"),
    "held-out bytes": ((), {"data": {"val_bytes": 77}}, "77 held out"),
    "batch": (("train.batch_size=8",), {}, "different batch: 4 in set 1; 8 in set 2"),
    "accumulated batch": (("train.grad_accum=2",), {}, "4 in set 1; 4 x 2 accumulated in set 2"),
    "chunk": (("train.chunk_size=64",), {}, "different chunk: 32 in set 1; 64 in set 2"),
    "tbptt": (("train.tbptt=true",), {}, "32, states carried (tbptt) in set 2"),
    "seeds": (("train.seed=7",), {}, "different seeds: 42 in set 1; 7 in set 2"),
    "data seed": (
        ("train.data_seed=7",),
        {},
        "different data seed: as train.seed in set 1; 7 in set 2",
    ),
    "steps": (("train.steps=50",), {}, "different duration: 40 steps in set 1; 50 steps in set 2"),
    "minutes": (("train.minutes=3",), {}, "40 steps in set 1; 40 steps or 3 min in set 2"),
    "version": ((), {"metrics_version": None}, "different metric version: 1 in set 1; not rec"),
    "validation": (("data.val_window=64",), {}, "different validation: 65536 bytes in windows"),
    "resets": ((f"{RESET}=true",), {}, "windows of 512, state zeroed after each document in set 2"),
    "device": ((), {"environment": {"device_name": "H200"}}, "AMD EPYC in set 1; H200 in set 2"),
}


@pytest.mark.parametrize(("overrides", "result", "words"), CONDITIONS.values(), ids=CONDITIONS)
def test_the_table_says_what_makes_rows_incomparable(
    report: Report, sweep: FakeSweep, overrides: tuple[str, ...], result: Any, words: str
) -> None:
    sweep.job("model=e1")
    sweep.job("model=e42", *overrides, result=result)
    done = report(sweep.folder)
    (line,) = [line for line in done.lines if line.startswith("not comparable:")]
    assert words in line
    assert [row["set"] for row in done.table.values()] == ["1", "2"]
    assert [line["set"] for line in done.csv if line["kind"] == "model"] == ["1", "2"]
    assert "not comparable" in done.page
    assert "not comparable" in (done.folder / "report.md").read_text()


def test_rows_that_agree_are_comparable(report: Report, sweep: FakeSweep) -> None:
    for model in ("e1", "e42"):
        sweep.job(f"model={model}", result={"tok_s": 7.0 if model == "e1" else 9.0})
    done = report(sweep.folder)
    assert not any("comparable" in line or "differs" in line for line in done.lines)
    assert "comparable: all conditions agree" in done.page
    assert all("set" not in row for row in done.table.values())


@pytest.mark.parametrize("sampled", [False, True])
def test_the_same_bytes_under_another_name_are_comparable(
    report: Report, sweep: FakeSweep, sampled: bool
) -> None:
    """A copy, or the text out of an archive; large texts that lie as they are have samples only."""
    same: dict[str, Any] = {"sample_sha256": "f" * 16 if sampled else None}
    packed = {"paths": ["/there/book.jsonl.zst"], "packed": {"documents": 3}}
    raw = {"sha256": None} if sampled else {}
    sweep.job("model=e1", result={"data": {"paths": ["/there/copy.txt"]} | same | raw})
    sweep.job("model=e42", "data.field=body", "data.path=x", result={"data": packed | same})
    done = report(sweep.folder)
    assert not any("not comparable" in line for line in done.lines)
    assert "comparable: all conditions agree" in done.page
    assert "copy.txt or book.jsonl.zst" in done.page


def test_a_failed_run_is_compared_with_nothing(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1")
    sweep.failed("model=e42", "train.batch_size=8", status="oom", error="too large")
    assert not any("comparable" in line for line in report(sweep.folder).lines)


def test_other_settings_that_differ_are_told_unless_they_were_swept(
    report: Report, tmp_path: Path
) -> None:
    swept = FakeSweep(tmp_path / "swept")
    for lr in ("0.001", "0.0001"):
        swept.job("model=e1", f"optim.lr={lr}")
    done = report(swept.folder)
    assert list(done.table) == ["e1 optim.lr=0.001", "e1 optim.lr=0.0001"]
    assert not any("differs" in line for line in done.lines)
    runs = [make_run(tmp_path / name, f"optim.lr={lr}") for name, lr in (("a", 1e-3), ("b", 1e-4))]
    done = report(*runs)
    assert sorted(done.table) == ["e88_tiny optim.lr=0.0001", "e88_tiny optim.lr=0.001"]
    assert any(line.startswith("differs too: optim.lr: 0.001 in") for line in done.lines)


def test_the_mlp_and_the_weights_of_the_validation_are_told(
    report: Report, sweep: FakeSweep
) -> None:
    sweep.job("model=e1", "optim=schedulefree")
    sweep.job("model=e42", "model.mlp_ratio=2.5")
    sweep.job("model=llama")
    lines = report(sweep.folder).lines
    told = "none in e1 optim=schedulefree; SwiGLU, 2.5 times the width in e42 model.mlp_ratio=2.5; "
    assert f"differs too: MLP behind the mixers: {told}llama's own in llama" in lines
    assert any(
        line.startswith("differs too: weights of the validation: averaged in e1") for line in lines
    )


def test_seeds_of_two_sweeps_are_one_row_and_a_run_named_twice_counts_once(
    report: Report, tmp_path: Path
) -> None:
    sweeps = [FakeSweep(tmp_path / name) for name in ("one", "two")]
    for seed, sweep in enumerate(sweeps, 1):
        sweep.job("model=e1", f"train.seed={seed}", result={"loss": float(seed)})
    alone = make_run(tmp_path / "alone", "model=e1", "train.seed=3", result={"loss": 3.0})
    done = report(*(sweep.folder for sweep in sweeps), alone, sweeps[0].folder / "01_e1")
    (row,) = done.table.values()
    assert (row["loss"], row["seeds"], row["spread"]) == ("2.0000", "1, 2, 3", "sd 1.0000, n=3")


def test_a_run_from_before_a_setting_is_a_seed_of_later_ones(
    report: Report, sweep: FakeSweep
) -> None:
    """What a run did has not changed because there is a name for it now."""
    older = sweep.job("model=e1", "train.seed=1", result={"loss": 1.0}) / "config.yaml"
    text = older.read_text()
    older.write_text(text.replace("  reset_at_documents: false\n", ""))
    assert older.read_text() != text
    sweep.job("model=e1", "train.seed=2", result={"loss": 2.0})
    done = report(sweep.folder)
    assert done.table["e1"]["loss"] == "1.5000"
    assert not any("differs" in line for line in done.lines)


def test_what_only_logs_makes_no_other_experiment(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", "log.every=5", "train.seed=1", result={"loss": 1.0})
    sweep.job("model=e1", "log.every=10", "train.seed=2", result={"loss": 2.0})
    assert report(sweep.folder).table["e1"]["loss"] == "1.5000"


def test_runs_of_one_configuration_on_other_data_are_no_seeds_of_each_other(
    report: Report, sweep: FakeSweep
) -> None:
    sweep.job("model=e1", "train.seed=1")
    sweep.job("model=e1", "train.seed=2", result={"data": {"sha256": "f" * 16}})
    assert list(report(sweep.folder).table) == ["e1", "e1 #2"]


def test_the_folder_of_a_day_holds_sweeps_and_runs(report: Report, tmp_path: Path) -> None:
    day = tmp_path / "2026-11-20"
    FakeSweep(day / "a_sweep").job("model=e1")
    FakeSweep(day / "b_sweep", mode="parity").write()
    make_run(day / "alone", "model=e42")
    (day / "notes").mkdir()
    refused = report(day)
    assert (refused.status, "report.out: missing" in refused.errors) == (2, True)
    done = report(day, arguments=("report.out=out",))
    assert list(done.table) == ["e1", "e42"]
    assert any("left out: report.dir=" in line and "mode=parity" in line for line in done.lines)


def test_unequal_sizes_are_told(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", result={"params": 1000})
    sweep.job("model=e42", result={"params": 1150})
    assert not any("params" in line for line in report(sweep.folder).lines)
    sweep.job("model=e68", result={"params": 1500})
    line = "differs too: params by 50%: 1,000 in e1 to 1,500 in e68"
    assert line in report(sweep.folder).lines


# ------------------------------------------------------------------ damaged files


def cut_in_half(path: Path) -> None:
    """Leave the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "result cut off": (
        lambda run: cut_in_half(run / "result.json"),
        "damaged",
        "result.json: not whole JSON",
    ),
    "result empty": (
        lambda run: (run / "result.json").write_bytes(b""),
        "damaged",
        "result.json: not whole JSON (0 bytes)",
    ),
    "result a list": (
        lambda run: (run / "result.json").write_text("[1]"),
        "damaged",
        "result.json: the whole:",
    ),
    "result of a wrong type": (
        lambda run: (run / "result.json").write_text('{"status": "ok", "loss": "low"}'),
        "damaged",
        "result.json: loss: input should be a valid number",
    ),
    "result that is a folder": (
        lambda run: ((run / "result.json").unlink(), (run / "result.json").mkdir()),
        "damaged",
        "result.json: cannot be read (Is a directory)",
    ),
    "metrics cut off": (
        lambda run: (run / "metrics.jsonl").open("a").write('{"kind": "step", "st'),
        "ok",
        "metrics.jsonl: its last line is cut off; left out",
    ),
    "metrics with foreign lines": (
        lambda run: (run / "metrics.jsonl").open("a").write('hello\n{"kind": "step"}\n[3]\n'),
        "ok",
        "metrics.jsonl: 3 lines cannot be read; left out",
    ),
    "metrics gone": (
        lambda run: (run / "metrics.jsonl").unlink(),
        "ok",
        "no metrics.jsonl: no curve",
    ),
    "config not YAML": (
        lambda run: (run / "config.yaml").write_text("a: [1"),
        "ok",
        "config.yaml: not valid YAML",
    ),
    "config of something else": (
        lambda run: (run / "config.yaml").write_text("a: 1"),
        "ok",
        "config.yaml: not the configuration of a run",
    ),
    "metric version of the future": (
        lambda run: (run / "result.json").write_text(
            json.dumps(json.loads((run / "result.json").read_text()) | {"metrics_version": 99})
        ),
        "ok, unknown metric version",
        "metric version 99 is not known here",
    ),
}


@pytest.mark.parametrize(("damage", "status", "words"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_run_says_so_and_the_rest_is_reported(
    report: Report, sweep: FakeSweep, damage: Callable[[Path], object], status: str, words: str
) -> None:
    damage(sweep.job("model=e1"))
    sweep.job("model=e42", result={"loss": 1.25})
    done = report(sweep.folder)
    assert (done.status, done.errors) == (0, "")
    assert done.table["e42"]["loss"] == "1.2500"
    assert done.table["e1"]["status"] == status
    assert (done.table["e1"]["loss"] == "-") == (status != "ok")
    assert any(line.startswith("job 1 (01_e1") and words in line for line in done.lines)
    assert words.split(" (")[0] in done.page


def test_numbers_that_are_not_finite_are_no_numbers(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", result={"loss": math.nan, "tok_s": math.inf})
    row = report(sweep.folder).table["e1"]
    assert (row["loss"], row["tok/s"], row["val bpb"]) == ("-", "-", "2.5000")


@pytest.mark.parametrize("text", ["", '{"jobs": [', "[]", '{"jobs": [3]}', '{"jobs": [{}]}'])
def test_a_damaged_sweep_file_leaves_its_runs(report: Report, sweep: FakeSweep, text: str) -> None:
    sweep.job("model=e1")
    (sweep.folder / "sweep.json").write_text(text)
    done = report(sweep.folder)
    assert (done.status, list(done.table)) == (0, ["e1"])
    assert any("sweep.json cannot be read" in line for line in done.lines)


def test_a_resumed_run_counts_its_later_steps(report: Report, sweep: FakeSweep) -> None:
    run = sweep.job("model=e1", losses=[3.0] * 20)
    again = [json.dumps(record) + "\n" for record in records([1.0] * 30, first=11)]
    with (run / "metrics.jsonl").open("a") as stream:
        stream.writelines(again)
    page = report(sweep.folder).page
    # 10 steps of 3 and 30 of 1, each as the mean over the last half of the steps so far
    assert "<td>3.0000</td><td>1.0000</td><td>1.0000</td><td>1.0000</td>" in page


# ------------------------------------------------------------------ where it is written


def test_only_the_four_files_are_written_and_an_earlier_report_is_replaced(
    report: Report, sweep: FakeSweep
) -> None:
    sweep.job("model=e1")
    before = {path: path.read_bytes() for path in sweep.folder.rglob("*") if path.is_file()}
    report(sweep.folder)
    (sweep.folder / "report.html").open("a").write("old")
    report(sweep.folder)
    now = {path: path.read_bytes() for path in sweep.folder.rglob("*") if path.is_file()}
    new = {path.name for path in set(now) - set(before)}
    assert new == FILES
    assert {path: now[path] for path in before} == before
    assert not now[sweep.folder / "report.html"].endswith(b"old")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_of_somebody_elses_is_not_replaced(
    report: Report, sweep: FakeSweep, name: str
) -> None:
    sweep.job("model=e1")
    (sweep.folder / name).write_text("mine")
    done = report(sweep.folder)
    assert done.status == 2
    assert f"{name}: exists and is not an earlier report" in done.errors
    assert (sweep.folder / name).read_text() == "mine"
    others = FILES - {name}
    assert not any((sweep.folder / other).exists() for other in others)


def test_a_report_may_be_written_elsewhere(
    report: Report, sweep: FakeSweep, tmp_path: Path
) -> None:
    run = sweep.job("model=e1")
    assert report(run, arguments=("report.out=deep/er",)).status == 0
    assert (tmp_path / "deep" / "er" / "report.html").is_file()
    assert not (run / "report.html").exists()


WRONG: dict[str, tuple[str, str]] = {
    "nothing there": ("nowhere", "no such folder; sweeps and runs are below outputs/"),
    "a file": ("book.txt", "this is a file; name the folder that it is in"),
    "no runs": ("notes", "no sweep and no training run (no sweep.json, result.json or"),
    "no folder": ("[]", "report.dir=: names no folder"),
    "a run without a place": ("run", "report.out: missing; report.dir is not the folder of one"),
    "sweep of another mode": ("parity", "a sweep of mode=parity, but this is for training"),
    "out is a file": ("sweep report.out=book.txt", "the report cannot be written (File exists)"),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("text")
    (tmp_path / "notes").mkdir()
    make_run(tmp_path / "run")
    FakeSweep(tmp_path / "sweep").job("model=e1")
    FakeSweep(tmp_path / "parity", mode="parity").write()
    before = sorted(tmp_path.rglob("*"))
    status = main(["mode=report", *f"report.dir={arguments}".split()])
    (line,) = capfd.readouterr().err.splitlines()
    assert status == 2
    assert words in line
    assert sorted(tmp_path.rglob("*")) == before


def forbid(monkeypatch: pytest.MonkeyPatch, method: str, place: Path) -> None:
    """Refuse a method of paths in one place; the tests may run as root, who may do everything."""
    usual = getattr(Path, method)

    def refuse(path: Path, *arguments: Any, **named: Any) -> Any:
        if path == place or place in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path, *arguments, **named)

    monkeypatch.setattr(Path, method, refuse)


def test_a_run_that_cannot_be_read_says_so(
    report: Report, sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = sweep.job("model=e1")
    sweep.job("model=e42")
    for method in ("read_bytes", "open", "exists"):
        forbid(monkeypatch, method, closed)
    done = report(sweep.folder)
    assert (done.status, done.table["e42"]["status"]) == (0, "ok")
    assert done.table["e1"]["status"] == "damaged"
    assert any("result.json: cannot be read (Permission denied)" in line for line in done.lines)


def test_a_folder_that_cannot_be_read_is_one_line(
    report: Report, sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.job("model=e1")

    forbid(monkeypatch, "iterdir", sweep.folder)
    done = report(sweep.folder)
    line = f"elman: error: {sweep.folder}: cannot be read (Permission denied)\n"
    assert (done.status, done.errors) == (2, line)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(sweep: FakeSweep) -> None:
    sweep.job("model=e1")
    code = (
        "import resource, sys\n"
        "from elman.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    before = sorted(sweep.folder.rglob("*"))
    ended = subprocess.run(
        [sys.executable, "-c", code, "mode=report", f"report.dir={sweep.folder}"],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "the report cannot be written (File too large)" in line
    # The table, small as it is, may have found room.
    left = set(sweep.folder.rglob("*")) - set(before)
    assert left <= {sweep.folder / "report.csv", sweep.folder / "report.md"}


def test_no_torch_is_imported(sweep: FakeSweep) -> None:
    sweep.job("model=e1")
    code = (
        "import sys; from elman.cli.main import main; main(sys.argv[1:]); "
        "print('torch' in sys.modules)"
    )
    arguments = ["mode=report", f"report.dir={sweep.folder}"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "False"


# ------------------------------------------------------------------ what others published


def test_a_suites_published_rows_stand_beside_ours(report: Report, tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep", benchmark="e75_100m")
    sweep.job("model=e75h4n16", result={"params": 97_561_856})
    sweep.job("model=e75h4n24", result={"params": 1000})
    done = report(sweep.folder)
    table = done.table
    assert table["e75h4n16"]["published"] == "1.7237 (e75_100m, 2026-01-19)"
    assert table["e75h4n24"]["published"] == "1.7007 at 104.1M (e75_100m, 2026-01-19)"
    assert table["e75h8n24"]["status"] == "published only"
    assert (table["e75h8n24"]["loss"], table["e75h8n24"]["params"]) == ("-", "99,131,904")
    for text in (done.page, (done.folder / "report.md").read_text()):
        assert "mean of the last 100 log windows, 1000 steps; zero padding counted" in text
        assert "Published losses have other definitions than ours" in text
    published = [line for line in done.csv if line["kind"] == "published"]
    assert "e75h8n24" in {line["model"] for line in published}
    assert all(line["definition"] for line in published)


def test_without_a_suite_the_newest_published_loss_is_shown(
    report: Report, sweep: FakeSweep
) -> None:
    sweep.job("model=e65", result={"params": 98_558_080})
    assert report(sweep.folder).table["e65"]["published"] == "1.7620 (100m_10min_again, 2026-01-19)"


def test_the_version_of_the_definitions_is_written_by_training(
    train: Callable[..., Any],
) -> None:
    assert train("model=e88_tiny").result["metrics_version"] == METRICS_VERSION


def test_a_seed_counts_once_however_often_it_ran(report: Report, sweep: FakeSweep) -> None:
    for loss in (1.5, 1.5, 1.5):
        sweep.job("model=e1", "train.seed=1", result={"loss": loss})
    sweep.job("model=e1", "train.seed=2", result={"loss": 1.7})
    done = report(sweep.folder)
    row = done.table["e1"]
    assert (row["loss"], row["spread"]) == ("1.6000", "sd 0.1414, n=2")
    assert (row["seeds"], row["status"]) == ("1, 2", "4 ok, 2 repeated")
    assert "e1: 2 more with a repeated seed, not in the means" in done.output


def test_a_copied_run_folder_counts_once(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", "train.seed=1", result={"loss": 1.5})
    original = sweep.folder / sweep.jobs[0]["folder"]
    copy = sweep.folder.parent / "copy"
    shutil.copytree(original, copy)
    done = report(original, copy)
    (row,) = done.table.values()
    assert row["spread"] == "n=1"


def test_a_status_that_no_run_ends_with_is_damage(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", "train.seed=1", result={"status": "fine"})
    done = report(sweep.folder)
    assert "damaged" in done.table["e1"]["status"]
    assert "'fine' is not a status; a run ends with one of ok, nan" in done.output
