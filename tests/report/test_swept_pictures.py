"""What was swept becomes the picture: one key, two keys, names, seeds, and what failed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from elman.report.comparison.axes import Axis, axis_of_values
from elman.report.comparison.frame import Frame
from elman.report.comparison.page import page_text
from elman.report.comparison.pictures import OverNumbers
from elman.report.comparison.plots import Plot, make_plots
from elman.report.comparison.report_data import make_report

from .fake_sweep import FakeSweep


def plots_of(folder: Path) -> dict[str, Plot]:
    """Return the plots of a sweep by their titles."""
    return {plot.title: plot for plot in make_plots(make_report([folder]).rows)}


def tips(plot: Plot) -> list[str]:
    """Return what the dots or cells of a plot tell."""
    tree = ElementTree.fromstring(plot.svg)
    return [text.split(": ", 1)[1] for e in tree.iter("title") if ": " in (text := e.text or "")]


@pytest.mark.parametrize(
    ("texts", "log"),
    [
        (["1e-4", "3e-4", "1e-3"], True),
        (["1", "2", "4", "8"], True),
        (["1", "2", "3", "4"], False),
        (["10", "40", "70", "100"], False),
        (["0", "0.001", "0.1"], False),
    ],
)
def test_an_axis_is_logarithmic_where_the_values_are(texts: list[str], log: bool) -> None:
    made = axis_of_values("optim.lr", texts)
    assert made.log is log
    assert [text for _, text in made.shown_ticks] == texts
    shares = [made.share(value) for value, _ in made.shown_ticks]
    assert all(0 < share < 1 for share in shares)
    assert shares == sorted(shares)


def test_one_key_has_its_means_ranges_best_and_failures(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for lr, losses in (("1e-4", (1.9, 2.1)), ("1e-3", (1.4, 1.5)), ("1e-2", (1.7, None))):
        for seed, loss in enumerate(losses):
            named = ("model=e1", f"optim.lr={lr}", f"train.seed={seed}")
            if loss is None:
                sweep.failed(*named, status="nan", error="loss is nan")
            else:
                sweep.job(*named, result={"loss": loss})
    sweep.failed("model=e1", "optim.lr=1e-1", "train.seed=0", status="oom", error="no memory")
    plot = plots_of(sweep.folder)["Loss over optim.lr"]
    assert tips(plot) == [
        "loss 2.0000, 1.9000 to 2.1000, n=2",
        "loss 1.4500, 1.4000 to 1.5000, n=2; the best",
        "loss 1.7000, n=1; 1 nan; unequal seeds",
        "oom",
    ]
    assert "logarithmic" in plot.caption
    assert "The best is that of the 2 rows in set 1" in plot.caption
    assert "best: 1.4500" in plot.svg
    assert plot.svg.count('class="cross"') == 2  # the row that failed, and one run of another


def test_two_keys_are_a_heat_map(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for lr in ("1e-4", "1e-3"):
        for depth in (1, 2, 4):
            named = ("model=e1", f"optim.lr={lr}", f"model.depth={depth}")
            if (lr, depth) == ("1e-3", 4):
                sweep.failed(*named, status="oom", error="no memory")
            else:
                sweep.job(*named, result={"loss": 2 - depth / 10 - (lr == "1e-3") / 20})
    plot = plots_of(sweep.folder)["Loss over model.depth and optim.lr"]
    cells = re.findall(
        r'<g class="cell( best)?".*?<title>(.*?)</title>.*?<rect .*?fill:(.*?)"', plot.svg
    )
    assert len(cells) == 6
    (best,) = [told for best, told, _ in cells if best]
    assert best.endswith("model.depth=4: loss 1.6000, n=1; the best")
    (hatched,) = [told for _, told, fill in cells if fill.startswith("url(")]
    assert hatched.endswith("oom")
    fills = {told.partition(": ")[2]: fill for _, told, fill in cells}
    assert fills["loss 1.6000, n=1; the best"] != fills["loss 1.9000, n=1"]


def test_models_are_listed_from_the_best_on(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for model, loss in (("e1", 1.5), ("e42", 1.25), ("mamba2", 1.75)):
        sweep.job(f"model={model}", result={"loss": loss, "slow_path": model == "mamba2"})
    plot = plots_of(sweep.folder)["Loss of each model"]
    names = re.findall(r'<text class="name".*?>(.*?)<', plot.svg)
    assert names == ["e42", "e1", "mamba2"]
    assert tips(plot)[0] == "loss 1.2500, n=1; the best"
    assert tips(plot)[2] == "loss 1.7500, n=1; slow path"
    assert plot.svg.count('class="mark"') == 1


def test_an_outlier_is_at_the_edge_and_ranges_are_not_cut(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for lr, losses in (("1", (1.0, 1.2)), ("2", (1.1, 1.5)), ("3", (1.2, 1.3)), ("4", (99, 99))):
        for seed, loss in enumerate(losses):
            sweep.job("model=e1", f"optim.lr={lr}", f"train.seed={seed}", result={"loss": loss})
    plot = plots_of(sweep.folder)["Loss over optim.lr"]
    assert "1 row lies above" in plot.caption
    assert isinstance(plot.picture, OverNumbers)
    assert 1.5 < plot.picture.y.high < 10
    assert "loss 99.0000, 99.0000 to 99.0000, n=2" in tips(plot)


def test_seeds_are_a_mean_with_a_band_in_every_plot_of_curves(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for seed, height in ((1, 2.0), (2, 4.0)):
        sweep.job("model=e1", f"train.seed={seed}", losses=[height] * 40)
    plot = plots_of(sweep.folder)["Loss over steps"]
    tree = ElementTree.fromstring(plot.svg)
    (line,), (band,) = list(tree.iter("polyline")), list(tree.iter("polygon"))
    assert line.findtext("title") == "e1, mean of 2 seeds"

    def heights(points: str | None) -> set[float]:
        return {float(point.split(",")[1]) for point in (points or "").split()}

    (middle,) = heights(line.get("points"))
    low, high = sorted(heights(band.get("points")))
    assert middle == pytest.approx((low + high) / 2, abs=0.02)
    assert "lowest to the highest" in plot.caption


def test_validations_are_drawn_and_marks_are_everywhere(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    run = sweep.job("model=e1", result={"contended": True})
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "validation", "step": 20, "val_bpb": 3.0}\n')
        stream.write('{"kind": "session", "step": 40, "batch_size": 4, "chunk_size": 32}\n')
        stream.write('{"kind": "validation", "step": 40, "val_bpb": 2.5}\n')
    sweep.job("model=e42", "train.batch_size=8")
    sweep.job("model=mamba2")
    found = plots_of(sweep.folder)
    numbers = found["Validation over steps"].numbers
    assert numbers is not None
    assert numbers.cells[0] == ["e1", "2.5000", "2.5000", "2"]
    assert found["Validation over steps"].svg.count("<circle") == 2
    page = page_text(make_report([sweep.folder]))
    tree = ElementTree.fromstring(page.partition("\n")[2])
    for title in ("Loss over steps", "Loss of each model", "Loss against throughput"):
        assert "contended, resumed" in found[title].svg or "contended; resumed" in found[title].svg
        assert "unequal batch" in found[title].svg
    for name, marks in (("e1", "contended, resumed"), ("e42", "unequal batch")):
        rows = [row for row in tree.iter("tr") if name in "".join(row.itertext())]
        assert all(marks in "".join(row.itertext()) for row in rows if row.get("data-row"))


@pytest.mark.parametrize(("text", "left"), [("0.5", 58), ("12,345.678", 108)])
def test_texts_beside_an_axis_have_room(text: str, left: int) -> None:
    y = Axis("y", 0, 1, own_ticks=((0.5, text),))
    assert Frame(Axis("x", 0, 1), y).left == left
    assert Frame(Axis("x", 0, 1), y, left=24).left == 24
