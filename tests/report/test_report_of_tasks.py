"""The report of runs that learned tasks: verdicts, the grid, curves, published figures beside."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from elman.config.suites import load_suite
from elman.report.comparison.draw import draw_tasks
from elman.report.comparison.ink import svg
from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.tasks import AT_CHANCE, NO_RESULT, NOT_SOLVED, SOLVED
from elman.report.comparison.terminal import print_report
from elman.report.comparison.write import csv_text, markdown_text

from .browser import look, needs_browser
from .fake_sweep import FakeSweep

TEN_TASKS = ["copy", "dyck1", "dyck2", "fsm", "keyed_fsm", "parity", "recall", "s3", "s5"]
TEN_TASKS += ["modular_counter"]
LENGTH = 32  # of the rows that the runs of a fake sweep train on
E88, GDN = "e88_h32n32_384x4", "fla-gdn_h32_384x4_e1"


def answers(task: str, chance: float, trained: float, longer: float) -> dict[str, Any]:
    return {
        "accuracy": trained,
        "accuracy_by_length": {str(LENGTH): trained, "500": longer},
        "data": {"task": task, "chance": chance, "bytes": None, "sha256": task * 3},
    }


def add(sweep: FakeSweep, model: str, task: str, seeds: list[float], chance: float = 0.5) -> None:
    for seed, accuracy in enumerate(seeds, 1):
        result = answers(task, chance, accuracy, accuracy / 2)
        sweep.job(f"model={model}", f"data={task}", f"train.seed={seed}", result=result)


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    sweep = FakeSweep(tmp_path / "sweep", benchmark="expressivity")
    add(sweep, E88, "parity", [1.0, 0.995, 0.999])
    add(sweep, GDN, "parity", [1.0, 0.99, 1.0])
    add(sweep, E88, "s3", [1.0, 0.6], chance=1 / 6)
    add(sweep, GDN, "s3", [0.2, 0.21], chance=1 / 6)
    return sweep


def report_of(sweep: FakeSweep) -> Report:
    return make_report([sweep.folder])


def verdict(report: Report, model: str, task: str) -> str:
    cell = report.tasks.of(model, task)
    assert cell is not None
    return cell.verdict


def test_solved_means_every_seed_above_99_percent(sweep: FakeSweep) -> None:
    report = report_of(sweep)
    assert verdict(report, E88, "parity") == SOLVED
    assert verdict(report, GDN, "parity") == NOT_SOLVED  # one seed has 0.99 exactly
    assert verdict(report, E88, "s3") == NOT_SOLVED
    assert verdict(report, GDN, "s3") == AT_CHANCE


def test_a_model_that_always_gives_one_answer_is_at_chance_at_every_length(tmp_path: Path) -> None:
    """Of rows of 40 about 44 % ask for what was never written; 1 of 17 answers would be 5.9 %."""
    sweep = FakeSweep(tmp_path / "sweep")
    told = {"accuracy": 0.42, "accuracy_by_length": {"40": 0.42, "128": 0.14}}
    rows = {"task": "reset_recall", "chance": 1 / 17, "bytes": None, "sha256": "abc"}
    settings = ("model=e88_tiny", "data=reset_recall", "train.chunk_size=40")
    sweep.job(*settings, result={**told, "data": rows})
    report = report_of(sweep)
    (cell,) = report.tasks.cells
    assert cell.verdict == AT_CHANCE
    assert cell.chances == {40: pytest.approx(0.444, abs=0.01), 128: pytest.approx(0.135, abs=0.01)}
    (line,) = report.tasks.verdicts()
    assert "at chance: reset_recall (0.42, chance 0.44)" in line
    lines = report.tasks.by_length("reset_recall").cells
    assert lines[-1] == [
        "chance (the best blind guess)",
        *(f"{cell.chances[n]:.3f}" for n in (40, 128)),
    ]
    page = page_text(report)
    assert 'class="floor"' in page
    assert "The dashed line is chance" in page
    # A run that has recorded it is not measured again.
    again = FakeSweep(tmp_path / "again")
    known = {"chance": 0.5, "chance_by_length": {"40": 0.5, "128": 0.25}}
    again.job(*settings, result={**told, "data": rows | known})
    assert report_of(again).tasks.cells[0].chances == {40: 0.5, 128: 0.25}


def test_settings_of_a_task_do_not_split_a_model(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep", benchmark="expressivity")
    for task, rate in (("parity", "0.001"), ("s3", "0.003")):
        for model in (E88, GDN):
            given = (f"model={model}", f"data={task}", f"optim.lr={rate}")
            sweep.job(*given, result=answers(task, 0.5, 1.0, 0.5))
    assert report_of(sweep).tasks.models == [E88, GDN]
    sweep.job(f"model={E88}", "data=s3", "optim.lr=0.01", result=answers("s3", 0.5, 1.0, 0.5))
    models = report_of(sweep).tasks.models
    assert f"{E88} optim.lr=0.01" in models  # two rates of one task are two lines
    assert len(models) == 5


def test_a_failed_seed_is_no_solved_seed(sweep: FakeSweep) -> None:
    sweep.failed(f"model={E88}", "data=parity", "train.seed=4", status="nan", error="nan")
    sweep.failed(f"model={E88}", "data=fsm", "train.seed=1", status="oom", error="too large")
    report = report_of(sweep)
    assert verdict(report, E88, "parity") == NOT_SOLVED
    assert verdict(report, E88, "fsm") == NO_RESULT
    cell = report.tasks.of(E88, "parity")
    assert cell is not None
    assert "1 of 4 runs do not count" in cell.summary


def test_every_file_says_it_and_the_page_is_well_formed(sweep: FakeSweep) -> None:
    report = report_of(sweep)
    page = page_text(report)
    tree = ElementTree.fromstring(page.partition("\n")[2])
    grid = ElementTree.fromstring(svg(draw_tasks(report.tasks)))
    cells = [g for g in grid.iter("g") if "task" in (g.get("class") or "").split()]
    assert len(cells) == 4
    assert sum(1 for _ in grid.iter("circle")) == 3 + 3 + 2 + 2
    titles = {element.text for element in tree.iter("h3")}
    assert {"Accuracy by length: parity", "Accuracy by length: s3"} <= titles
    out = Console(file=io.StringIO(), width=250)
    print_report(out, report)
    said = f"{E88}: solved 1 of 2 tasks at the trained length (2 to 3 seeds): parity"
    for text in (page, markdown_text(report).replace("\\", ""), out.file.getvalue()):
        assert said in text
        assert "0.499" in text  # parity at 500, mean of the seeds
    lines = list(csv.DictReader(io.StringIO(csv_text(report))))
    first = next(line for line in lines if line["kind"] == "run")
    assert first["accuracy_by_length"] == "32:1.0 500:0.5"


def test_published_accuracies_stand_beside_ours_of_the_same_task(sweep: FakeSweep) -> None:
    report = report_of(sweep)
    lines = report.tasks.beside_published(report.published.records).cells
    found = {(line[0], line[1]): tuple(line[2:4]) for line in lines}
    assert found[(E88, "parity at 500")] == ("0.499", "0.887")
    beside = dict(zip([row.label for row in report.rows], report.published.by_row, strict=True))
    for label, records in beside.items():
        assert {record.figures.task for record in records} <= {label.split("data=")[1]}


def test_rows_of_different_tasks_are_not_called_unequal(sweep: FakeSweep) -> None:
    report = report_of(sweep)
    by_task = {row.label.split("data=")[1]: row for row in report.rows}
    assert not any(row.unequal for row in by_task.values())
    assert len({row.set for row in report.rows}) == 2


def test_a_model_is_one_line_though_its_suite_trains_the_tasks_in_other_ways(
    tmp_path: Path,
) -> None:
    """Steps and lengths that a suite sets for a task are no other model, nor is an early end."""
    sweep = FakeSweep(tmp_path / "sweep")
    told = {"parity": (40, 32), "s5": (80, 32), "fsm": (40, 64)}
    for task, (steps, length) in told.items():
        for model in (E88, GDN):
            for seed in (1, 2, 3):
                named = (f"model={model}", f"data={task}", f"train.seed={seed}")
                budget = (f"train.steps={steps}", f"train.chunk_size={length}")
                result = answers(task, 0.5, 1.0, 1.0) | {"steps": 10 * seed}
                sweep.job(*named, *budget, "train.until_accuracy=0.999", result=result)
    report = report_of(sweep)
    assert [(row.label, len(row.counted)) for row in report.rows] == [
        (f"{model} data={task}", 3) for task in told for model in (E88, GDN)
    ]
    assert report.tasks.models == [E88, GDN]
    assert report.tasks.names == list(told)
    assert all(report.tasks.of(model, task) for model in (E88, GDN) for task in told)
    # Rows that differ in such a setting within a task are told apart by it, as before.
    for seed in (1, 2):
        result = answers("fsm", 0.5, 0.9, 0.9)
        named = (f"model={E88}", "data=fsm", f"train.seed={seed}", "train.steps=80")
        sweep.job(*named, "train.chunk_size=64", "train.until_accuracy=0.999", result=result)
    labels = [row.label for row in report_of(sweep).rows]
    assert [f"{E88} data=fsm train.steps={steps}" in labels for steps in (40, 80)] == [True, True]


def test_another_difficulty_is_another_column(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for modulus in (3, 7):
        result = answers("modular_counter", 1 / modulus, 1.0, 1.0)
        sweep.job(
            "model=e88_tiny", "data=modular_counter", f"data.modulus={modulus}", result=result
        )
    names = report_of(sweep).tasks.names
    assert [("modulus=3" in name, "modulus=7" in name) for name in names] == [
        (True, False),
        (False, True),
    ]


def test_text_has_no_such_section(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    sweep.job("model=e1")
    assert "What each can compute" not in page_text(report_of(sweep))


def test_the_suite_has_every_run_of_one_seed_before_the_next() -> None:
    suite = load_suite("expressivity")
    seeds = [next(text for text in run if text.startswith("train.seed")) for run in suite.runs]
    assert seeds == sorted(seeds, key=["train.seed=42", "train.seed=123", "train.seed=456"].index)
    assert len(set(suite.runs)) == len(suite.runs) == 3 * 14 * len(suite.models)
    assert all("train.steps=20000" in run for run in suite.runs if "data=s5" in run)


def styles_of(page: str) -> tuple[dict[str, dict[str, str]], dict[str, str], dict[str, str]]:
    """Return what styles a page shows: by plot the curves', the legend's of models, the table's.

    A style is the classes of a color and of dashes. Curves and rows of the table are named by the
    row's number, entries of the legend by their model.
    """
    tree = ElementTree.fromstring(page.partition("\n")[2])
    curves, legend, table = {}, {}, {}
    for plot in (one for one in tree.iter("svg") if (one.get("id") or "").startswith("task-")):
        lines = [g for g in plot.iter("g") if (g.get("class") or "").startswith("line ")]
        curves[str(plot.get("id"))] = {str(g.get("data-row")): line_style(g) for g in lines}
    shared = next(one for one in tree.iter("ul") if one.get("class") == "legend")
    for button in shared.iter("button"):
        legend["".join(button.itertext())] = line_style(button[0])
    for line in (one for one in tree.iter("tr") if one.get("data-row")):
        samples = [svg for svg in line.iter("svg") if "sample" in (svg.get("class") or "")]
        if samples:
            table[str(line.get("data-row"))] = line_style(samples[0])
    return curves, legend, table


def line_style(element: ElementTree.Element) -> str:
    return (element.get("class") or "").partition("line ")[2]


def color(style: str) -> str:
    return style.split()[0]


@pytest.mark.parametrize("by_model", [True, False])
def test_a_model_has_one_color_on_the_whole_page(tmp_path: Path, by_model: bool) -> None:
    """A suite may run all tasks of a model first, or all models of a task."""
    sweep = FakeSweep(tmp_path / "sweep", benchmark="expressivity")
    models, tasks = [E88, GDN, "e1_384x4_e2"], TEN_TASKS
    pairs = [(model, task) for model in models for task in tasks]
    for model, task in pairs if by_model else sorted(pairs, key=lambda pair: pair[1]):
        sweep.job(f"model={model}", f"data={task}", result=answers(task, 0.5, 1.0, 0.7))
    report = report_of(sweep)
    curves, legend, table = styles_of(page_text(report))
    assert list(legend) == models
    assert len(set(legend.values())) == len(models)
    assert len(curves) == len(tasks)
    by_row = {str(cell.number): cell.model for cell in report.tasks.cells}
    for drawn in curves.values():
        assert {by_row[row]: style for row, style in drawn.items()} == legend
    for row, model in by_row.items():
        assert color(table[row]) == color(legend[model])


def test_a_run_on_text_changes_no_color_of_a_task(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    sweep.job("model=e1")
    for model in (E88, GDN):
        sweep.job(f"model={model}", "data=s3", result=answers("s3", 0.5, 1.0, 0.7))
    report = report_of(sweep)
    curves, _, table = styles_of(page_text(report))
    (drawn,) = curves.values()
    assert len(drawn) == 2
    assert drawn == {row: table[row] for row in drawn}


@needs_browser
def test_the_entry_of_a_model_shows_its_curves_of_all_tasks(
    sweep: FakeSweep, tmp_path: Path
) -> None:
    script = """
    var buttons = Array.from(document.querySelectorAll(".legend button"));
    var entry = buttons.filter(function (one) { return one.dataset.row === "0 2"; })[0];
    var on = function () {
      return Array.from(document.querySelectorAll('svg[id^="task-"] .line.on'), function (line) {
        return line.dataset.row;
      });
    };
    var pressed = function () {
      return buttons.filter(function (one) { return one.getAttribute("aria-pressed") === "true"; })
        .map(function (one) { return one.textContent; });
    };
    found.hue = getComputedStyle(document.querySelector('#task-s3 [data-row="2"] polyline')).stroke;
    found.sample = getComputedStyle(entry.querySelector("polyline")).stroke;
    entry.click();
    found.kept = [on(), pressed()];
    entry.click();
    found.dropped = [on(), pressed()];
    """
    found = look(page_text(report_of(sweep)), script, tmp_path / "browser")
    assert found["kept"][0] == ["0", "2"]
    assert set(found["kept"][1]) == {E88, f"{E88} data=parity", f"{E88} data=s3"}
    assert found["dropped"] == [[], []]
    assert found["sample"] == found["hue"]
