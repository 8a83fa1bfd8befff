"""The page of a report, its plots, and the other files as texts."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from elman.base.consoles import table_console
from elman.report.comparison.axes import axis
from elman.report.comparison.columns import COLUMNS
from elman.report.comparison.page import page_text
from elman.report.comparison.pictures import Curve, Point
from elman.report.comparison.plots import pareto_front, running_mean
from elman.report.comparison.report_data import make_report
from elman.report.comparison.terminal import print_report
from elman.report.comparison.write import csv_text, markdown_text, write_report
from elman.report.metrics_file import read_metrics

from .fake_sweep import FakeSweep, make_run, records


def page_of(*folders: Path) -> ElementTree.Element:
    """Return the page as a tree: it is well-formed XML too."""
    text = page_text(make_report(folders))
    doctype, _, tree = text.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ElementTree.fromstring(tree)


def texts(element: ElementTree.Element) -> list[str]:
    """Return the text of every cell of a row."""
    return ["".join(cell.itertext()) for cell in element if cell.tag in ("td", "th")]


def labels(page: ElementTree.Element) -> set[str | None]:
    """Return what the rows are called."""
    return {span.text for span in page.iter("span") if span.get("class") == "label"}


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a sweep with every sort of row."""
    sweep = FakeSweep(tmp_path / "a_sweep", benchmark="e75_100m")
    for seed in (1, 2, 3):
        result = {"loss": 1.5 + seed / 100, "tok_s": 1000.0 * seed}
        sweep.job("model=e75h4n16", f"train.seed={seed}", result=result)
    sweep.job("model=fla-gdn", "train.seed=1", result={"loss": 1.4})
    sweep.failed("model=fla-gdn", "train.seed=2", status="nan", error="loss at step 40")
    sweep.job("model=e75h8n24", status="not started", started=False)
    return sweep


def test_the_page_has_every_row_run_and_definition(sweep: FakeSweep) -> None:
    page = page_of(sweep.folder)
    (main, *_) = [
        table
        for section in page.iter("section")
        if section.findtext("h2") == "Table"
        for table in section.iter("table")
    ]
    heads, *rows = [texts(row) for row in main.iter("tr")]
    labels = [row[heads.index("model")] for row in rows]
    assert labels[:3] == ["e75h4n16", "fla-gdn", "e75h8n24"]
    assert "mamba2_896x20_legacy" in labels[3:]  # published only
    statuses = [row[heads.index("status")] for row in rows]
    assert statuses[:3] == ["ok", "1 ok, 1 nan, unequal seeds", "not started"]
    assert set(statuses[3:]) == {"published only"}
    (runs,) = [section for section in page.iter("section") if section.findtext("h2") == "Runs"]
    names = [texts(row)[1] for row in runs.iter("tr")]
    assert names == ["run", *(job["folder"] for job in sweep.jobs)]
    defined = {
        term.text: text.text for term, text in zip(page.iter("dt"), page.iter("dd"), strict=True)
    }
    for column in COLUMNS:
        if column.head in heads:
            assert defined[column.head] == column.definition


def test_every_run_is_drawn_in_every_plot(sweep: FakeSweep) -> None:
    page = page_of(sweep.folder)
    plots = {plot.get("id"): plot for plot in page.iter("svg") if plot.get("id")}
    lines = ["loss-steps", "loss-minutes", "loss-bytes", "throughput"]
    assert list(plots) == ["swept-model", *lines, "pareto"]
    names = ["e75h4n16, mean of 3 seeds", "fla-gdn, seed 1 (unequal seeds)", "fla-gdn, seed 2"]
    for name in lines:
        drawn = [line.findtext("title") for line in plots[name].iter("polyline")]
        assert drawn == names
        assert plots[name].get("role") == "img"
        assert plots[name].findtext("title")
        crosses = [path for path in plots[name].iter("path") if path.get("class") == "cross"]
        assert len(crosses) == 1  # the run that ended with nan
    points = [point.findtext("title") for point in plots["pareto"].iter("circle")]
    assert points == ["e75h4n16", "fla-gdn (unequal seeds, n=1)"]
    swept, *figures = page.iter("figure")
    assert swept.find("details/div/table") is not None
    assert len(figures) == 5
    assert all(figure.find("details/div/table") is not None for figure in figures)
    assert "mean over the 100 optimizer steps" in str(figures[0].findtext("figcaption"))


def test_noise_and_slow_paths_are_seen_in_the_plot_of_speed(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for seed, loss in ((1, 1.5), (2, 1.6)):
        sweep.job("model=e1", f"train.seed={seed}", result={"loss": loss, "slow_path": True})
    sweep.job("model=e42", "train.seed=1", result={"loss": 1.7, "tok_s": 2000.0})
    page = page_of(sweep.folder)
    (plot,) = [plot for plot in page.iter("svg") if plot.get("id") == "pareto"]
    circles = {circle.findtext("title"): circle.get("class") for circle in plot.iter("circle")}
    assert circles == {"e1 (slow path)": None, "e42 (unequal seeds, n=1)": "hollow"}
    assert len([path for path in plot.iter("path") if path.get("class") == "mark"]) == 2


def test_the_ends_of_the_axes_are_where_the_runs_end(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", losses=[2.0] * 40)
    page = page_of(run)
    numbers = {}
    for figure in page.iter("figure"):
        heads, row = (texts(line) for line in figure.iter("tr"))
        numbers[figure.findtext("h3")] = dict(zip(heads[1:], row[1:], strict=True))
    assert list(numbers["Loss over steps"])[-1] == "40 steps"
    assert list(numbers["Loss over minutes"])[-1] == "2 minutes"  # 40 steps of 3 s
    assert list(numbers["Loss over bytes"])[-1] == f"{40 * 4 * 32:,} bytes"
    assert set(numbers["Loss over steps"].values()) == {"2.0000"}
    assert numbers["Throughput over minutes"]["lowest point"] == "43"  # 128 bytes in 3 s


class Links(HTMLParser):
    """Collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes that refer to something."""
        referring = ("src", "href", "xlink:href", "srcset", "data", "action", "background")
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in referring]


def test_the_page_refers_to_nothing_outside(sweep: FakeSweep) -> None:
    text = page_text(make_report([sweep.folder]))
    links = Links()
    links.feed(text)
    assert links.found == []
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)", re.sub(r"// .*", "", text))
    assert "default-src 'none'" in text
    assert len(text) < 100_000


EVIL = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "[red]x[/red]",
    "a|b\\`*_",
    "=HYPERLINK(1)",
    "\x1b[31mred\x00\ud800",
    "a\nb",
]


@pytest.mark.parametrize("name", EVIL, ids=range(len(EVIL)))
def test_names_are_text_everywhere(tmp_path: Path, name: str) -> None:
    sweep = FakeSweep(tmp_path / "<b>&sweep", command=f"elman {name}", started=name)
    sweep.job("model=e1", result={"model": name, "backend": name, "error": name})
    sweep.failed("model=e42", "train.seed=5", status=name, error=name)
    report = make_report([sweep.folder])
    page = page_of(sweep.folder)
    assert [element.tag for element in page.iter("script")] == ["script"]
    assert not list(page.iter("img"))
    assert not any("onmouseover" in element.attrib for element in page.iter())
    (label, *_) = [span for span in page.iter("span") if span.get("class") == "label"]
    printable = re.sub("[\x00\x1b\ud800]", "\N{REPLACEMENT CHARACTER}", name)
    assert label.text == printable
    console = table_console()
    with console.capture() as printed:
        print_report(console, report)
    assert "\x1b" not in printed.get()
    table = [line for line in markdown_text(report).splitlines() if line.startswith("| ")]
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table[:4]}
    assert len(bars) == 1
    cells = csv_text(report)
    assert not re.search(r"(^|[,\"])[=+@]", cells)
    write_report(report, tmp_path / "out")


def test_markdown_defines_every_column(sweep: FakeSweep) -> None:
    report = make_report([sweep.folder])
    text = markdown_text(report)
    assert all(f"- {column.head}: " in text for column in report.columns)
    assert text.count("| published only |") == len(report.published.not_run)


@pytest.mark.parametrize("width", [80, 120, 240])
def test_a_narrow_terminal_gets_fewer_columns_and_none_is_cut(sweep: FakeSweep, width: int) -> None:
    file = io.StringIO()
    report = make_report([sweep.folder])
    print_report(Console(width=width, file=file), report)
    lines = file.getvalue().splitlines()
    heads = [head.strip() for head in lines[0].split("┃")]
    told = [line for line in lines if line.startswith("columns left out (terminal too narrow): ")]
    left_out = re.sub(".*: |; --wide.*", "", told[0]).split(", ") if told else []
    assert bool(left_out) == (width < 240)
    assert sorted([*heads, *left_out]) == sorted(column.head for column in report.columns)
    assert {"model", "val bpb", "tok/s", "status"} <= set(heads)  # of 40 steps val bpb decides
    table = [line for line in lines if "│" in line]
    assert all(len(line) <= width for line in table)
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in table)
    assert "1.5200" in table[0]


def test_thinning_keeps_first_last_lowest_and_highest() -> None:
    numbers = random.Random(3)
    y = np.array([numbers.gauss(0, 1) for _ in range(100_000)])
    y[[12_345, 54_321]] = 50.0, -50.0
    curve = Curve(0, "", True, np.arange(100_000.0), y)
    thin = curve.thinned(200)
    assert thin.x.size <= 800
    assert (thin.y.max(), thin.y.min()) == (50.0, -50.0)
    assert (thin.x[0], thin.x[-1]) == (0.0, 99_999.0)
    assert np.all(np.diff(thin.x) > 0)
    assert np.array_equal(y[thin.x.astype(int)], thin.y)
    for first in range(0, 100_000, 500):
        part = thin.y[(thin.x >= first) & (thin.x < first + 500)]
        assert (part.max(), part.min()) == (
            y[first : first + 500].max(),
            y[first : first + 500].min(),
        )
    short = Curve(0, "", True, np.arange(3.0), y[:3])
    assert short.thinned(200) is short


def test_a_curve_ends_in_the_loss_of_the_table() -> None:
    values = np.array([random.Random(1).random() for _ in range(250)]) + np.arange(250)
    mean = running_mean(values)
    assert mean[-1] == pytest.approx(values[-100:].mean())
    assert mean[6] == pytest.approx(values[3:7].mean())
    assert mean[0] == values[0]


def test_a_curve_has_no_kink_where_its_window_is_full() -> None:
    """A loss that falls like 1 / step: whatever bends in the mean of it is the mean's own doing."""
    mean = running_mean(3.0 / np.arange(1.0, 401.0))
    bends = np.abs(np.diff(mean, 2)) / mean[:-2]
    assert bends[60:].max() < 0.02


def test_a_resumed_run_is_read_as_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", losses=[3.0] * 20)
    lines = [json.dumps(record) + "\n" for record in records([1.0] * 20, first=11)]
    lines[0] = lines[0].replace('"batch_size": 4', '"batch_size": 8')
    lines.append('{"kind": "step", "step": 31, "loss": null, "lr": 1, "applied": false}\n')
    lines.append('{"kind": "step", "step": 32, "loss": NaN, "lr": 1}\n')
    with (run / "metrics.jsonl").open("a") as stream:
        stream.writelines(lines)
    metrics = read_metrics(run)
    assert metrics.steps.tolist() == list(range(1, 31))
    assert metrics.losses.tolist() == [3.0] * 10 + [1.0] * 20
    assert metrics.problems == ()
    assert metrics.window_steps.tolist() == [5, 10, 15, 20, 25, 30]
    # 10 steps of 4 x 32 bytes, then 8 x 32; two micro-batches each
    assert metrics.bytes_at(np.array([0.0, 10.0, 12.0]), 2).tolist() == [0.0, 2560.0, 3584.0]
    assert metrics.seconds_at(np.array([0.0, 7.0, 30.0])).tolist() == [0.0, 21.0, 90.0]


def test_the_front_holds_what_nothing_beats() -> None:
    def point(row: int, x: float, y: float) -> Point:
        return Point(row, str(row), x, y, (x, x), (y, y))

    slow_good, fast_bad = point(0, 1.0, 1.0), point(1, 9.0, 3.0)
    beaten, middle = point(2, 4.0, 2.5), point(3, 5.0, 2.0)
    twin = point(4, 5.0, 2.5)
    front = pareto_front([slow_good, fast_bad, beaten, middle, twin])
    assert [p.row for p in front] == [0, 3, 1]


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (1.37, 1.38), (2.0, 2.0), (0.0, 0.0), (0.0, 3.3e9), (-1e-9, 1e9)]
)
def test_an_axis_has_a_few_round_ticks_inside(low: float, high: float) -> None:
    made = axis("", [low, high])
    ticks = made.shown_ticks
    assert 3 <= len(ticks) <= 8
    assert all(made.low <= tick <= made.high for tick, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


def test_the_page_of_forty_long_runs_stays_small(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    numbers = random.Random(5)
    losses = [3 + numbers.gauss(0, 0.1) for _ in range(3000)]
    first = sweep.job("model=e1", losses=losses)
    config = (first / "config.yaml").read_text()
    for number in range(1, 40):
        folder = sweep.folder / f"copy_{number}"
        shutil.copytree(first, folder)
        (folder / "config.yaml").write_text(config.replace("lr: 0.0003", f"lr: {number}.0"))
        sweep.jobs.append(sweep.jobs[0] | {"folder": folder.name, "number": number + 1})
    sweep.write()
    page = write_report(make_report([sweep.folder]), sweep.folder)
    assert page.stat().st_size < 2_500_000
    tree = ElementTree.fromstring(page.read_text().partition("\n")[2])
    classes = {line.get("class") for line in tree.iter("g") if "line" in str(line.get("class"))}
    assert len(classes) == 40  # every row has a line of its own
    (speeds,) = [plot for plot in tree.iter("svg") if plot.get("id") == "pareto"]
    names = [text.get("class") for text in speeds.iter("text") if text.text in labels(tree)]
    assert (len(names), names.count("quiet")) == (40, 39)  # one is on the front, as fast and good
