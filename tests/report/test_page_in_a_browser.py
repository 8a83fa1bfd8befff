"""The page in a real browser: sorting, filtering, values by pointer and keys, and its layout."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import make_report

from .browser import look, needs_browser
from .fake_sweep import FakeSweep

pytestmark = needs_browser

# Helpers for the scripts below.
TOOLS = """
var all = function (query, inside) {
  return Array.from((inside || document).querySelectorAll(query));
};
var shown = function (part) { return part.getClientRects().length !== 0; };
var table = document.querySelector("table.sorted");
var heads = all("thead th", table).map(function (head) { return head.textContent; });
var column = function (name) {
  return Array.from(table.tBodies[0].rows).filter(shown).map(function (line) {
    return line.cells[heads.indexOf(name)].textContent;
  });
};
var type = function (text) {
  var field = document.querySelector("input[type=search]");
  field.value = text;
  field.dispatchEvent(new Event("input"));
};
var tip = function () {
  var box = document.querySelector(".tip");
  return box.hidden ? null : box.textContent;
};
"""


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a sweep of two models, each with a row of two seeds and marks."""
    sweep = FakeSweep(tmp_path / "sweep")
    for seed in (1, 2):
        for model, loss in (("e1", 1.5), ("e42", 1.25)):
            result = {"loss": loss + seed / 100, "contended": model == "e42"}
            sweep.job(f"model={model}", f"train.seed={seed}", result=result)
    sweep.failed("model=mamba2", "train.seed=1", status="nan", error="loss is nan at step 7")
    return sweep


def test_sorting_and_filtering_change_table_and_plots(sweep: FakeSweep, tmp_path: Path) -> None:
    found = look(
        page_text(make_report([sweep.folder])),
        TOOLS
        + """
        var losses = all("thead th", table)[heads.indexOf("loss")].querySelector("button");
        losses.click();
        found.rising = column("loss");
        losses.click();
        found.falling = column("loss");
        found.sort = losses.parentNode.getAttribute("aria-sort");
        type("contended");
        found.contended = column("loss");
        found.count = document.querySelector(".filter output").textContent;
        found.curves = all("#loss-steps .line").filter(shown).length;
        found.dots = all("#swept-model .point").filter(shown).length;
        type("-contended loss<2");
        found.others = column("loss");
        type("e1 nothing");
        found.none = column("loss");
        type("");
        found.whole = column("loss").length;
        """,
        tmp_path / "browser",
    )
    assert found["rising"] == ["1.2650", "1.5150", "-"]
    assert found["falling"] == ["1.5150", "1.2650", "-"]
    assert found["sort"] == "descending"
    assert (found["contended"], found["count"]) == (["1.2650"], "1 of 3 rows")
    assert (found["curves"], found["dots"]) == (1, 1)
    assert found["others"] == ["1.5150"]
    assert (found["none"], found["whole"]) == ([], 3)


def test_values_are_told_where_one_points_and_by_the_arrow_keys(
    sweep: FakeSweep, tmp_path: Path
) -> None:
    found = look(
        page_text(make_report([sweep.folder])),
        TOOLS
        + """
        var plot = document.querySelector("#loss-steps");
        var box = function () { return plot.getBoundingClientRect(); };
        var move = function (x, y) {
          plot.dispatchEvent(new MouseEvent("mousemove", { clientX: x, clientY: y }));
        };
        var scale = box().width / 580, end = all("polyline", plot)[0].points.getItem(39);
        move(box().left + end.x * scale + 3, box().top + end.y * scale + 3);
        found.pointed = tip();
        move(box().left + 1, box().bottom - 1);
        found.beside = tip();
        var press = function (svg, key) {
          svg.dispatchEvent(new KeyboardEvent("keydown", { key: key, cancelable: true }));
          return tip();
        };
        found.reachable = plot.tabIndex;
        found.first = press(plot, "ArrowRight");
        found.second = press(plot, "ArrowRight");
        found.other = press(plot, "ArrowDown");
        found.gone = press(plot, "Escape");
        var dots = document.querySelector("#swept-model");
        found.dots = [1, 2, 3].map(function () { return press(dots, "ArrowRight"); });
        found.live = document.querySelector(".tip").getAttribute("role");
        """,
        tmp_path / "browser",
    )
    where = "\nloss, nats per byte: 3.525\noptimizer steps: 40"  # the last half of 40 steps
    assert found["pointed"] == f"e1, mean of 2 seeds{where}"
    assert found["beside"] is None
    # The steps before are cut off: the axis ends where the curves are after a fifth of their run.
    assert found["first"] == "e1, mean of 2 seeds\nloss, nats per byte: 4.725\noptimizer steps: 8"
    assert found["second"] == "e1, mean of 2 seeds\nloss, nats per byte: 4.7\noptimizer steps: 9"
    assert found["other"].startswith("e42, mean of 2 seeds (contended)")
    assert found["other"].endswith("optimizer steps: 9")
    assert (found["gone"], found["reachable"], found["live"]) == (None, 0, "status")
    assert found["dots"] == [
        "e42: val bpb 1.2650, 1.2600 to 1.2700, n=2; contended; the best",
        "e1: val bpb 1.5150, 1.5100 to 1.5200, n=2",
        "mamba2: nan",
    ]


# Finds texts of a picture that overlap each other, and what is wider than the window.
LAYOUT = """
found.width = innerWidth;
found.wide = document.documentElement.scrollWidth - innerWidth;
found.overlaps = [];
all("svg.plot").forEach(function (plot) {
  var texts = all("text", plot).filter(shown).map(function (text) {
    return [text.getBoundingClientRect(), text.textContent];
  });
  texts.forEach(function (one, at) {
    texts.slice(at + 1).forEach(function (two) {
      var across = Math.min(one[0].right, two[0].right) - Math.max(one[0].left, two[0].left);
      var down = Math.min(one[0].bottom, two[0].bottom) - Math.max(one[0].top, two[0].top);
      if (across > 1.5 && down > 3) { found.overlaps.push([plot.id, one[1], two[1]]); }
    });
  });
});
found.small = all("svg.plot text").filter(shown).map(function (text) {
  var plot = text.ownerSVGElement;
  var scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale;
}).reduce(function (a, b) { return Math.min(a, b); });
found.rows = table.tBodies[0].rows.length;
"""


def copy_job(sweep: FakeSweep, base: Path, number: int) -> None:
    """Add a job like that in ``base`` with its own clipping and result; some ran out of memory."""
    folder = sweep.folder / f"job_{number}"
    shutil.copytree(base, folder)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(re.sub("grad_clip: .*", f"grad_clip: {1 + number}", config))
    result = json.loads((folder / "result.json").read_text())
    result["loss"], result["tok_s"] = 1.2 + number * 7 % 300 / 300, 1000.0 + number * 11 % 300
    status = "oom" if number % 20 == 7 else "ok"
    error = None if status == "ok" else "out of memory"
    (folder / "result.json").write_text(json.dumps(result | {"status": status, "error": error}))
    model = result["model"]
    swept = [f"model={model}", f"train.grad_clip={1 + number}"]
    job = {"number": number + 1, "model": model, "seed": 42, "swept": swept, "status": status}
    sweep.jobs.append(job | {"folder": folder.name, "command": " ".join(["elman", *swept])})


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a sweep with 300 rows."""
    sweep = FakeSweep(tmp_path_factory.mktemp("long") / "sweep")
    models = ("e1", "e42", "mamba2")
    for model in models:
        sweep.job(f"model={model}", "train.grad_clip=1")
    bases = [sweep.folder / job["folder"] for job in sweep.jobs]
    sweep.jobs.clear()
    for number in range(300):
        copy_job(sweep, bases[number % 3], number)
    sweep.write()
    text = page_text(make_report([sweep.folder]))
    assert len(text) < 2_000_000
    return text


@pytest.mark.parametrize("width", [1200, 400])
def test_three_hundred_rows_fit_without_overlapping_labels(
    long: str, tmp_path: Path, width: int
) -> None:
    found = look(long, TOOLS + LAYOUT, tmp_path, width)
    assert (found["rows"], found["width"]) == (300, width)
    assert found["wide"] <= 0
    assert found["overlaps"] == []
    assert found["small"] > 9


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a tuned sweep over two keys whose range grew, with failures."""
    space = {
        "optim": {
            "lr": {"low": 1e-4, "high": 1e-2, "log": True},
            "weight_decay": {"low": 1e-3, "high": 1.0, "log": True},
        }
    }
    decays = {"optim.weight_decay": {"low": 1e-3, "high": 1.0}}
    arms = ("e1", "e42", "mamba2")
    published = {"optim.lr": 3e-4, "optim.weight_decay": 0.1}
    head = {
        "config": {"space": space},
        "score": "val_bpb",
        "goal": "minimize",
        "arms": [{"arm": arm, "model": arm, "published": published} for arm in arms],
        "ranges": [decays | {"optim.lr": {"low": 1e-4, "high": top}} for top in (1e-2, 1e-1)],
        "state": "done",
    }
    sweep = FakeSweep(tmp_path_factory.mktemp("tuned") / "sweep", tune=head)
    for place, arm in enumerate(arms):
        for number in range(12):
            values = {
                "optim.lr": float(f"{1e-4 * 1000 ** (number / 11):.4g}"),
                "optim.weight_decay": float(f"{1e-3 * 1000 ** (number * 5 % 12 / 11):.4g}"),
            }
            failed = {11: "nan", 10: "oom", 0: "crash"} if arm == "e1" else {}
            status = failed.get(number, "ok")
            trial = {"arm": arm, "phase": "trial", "trial": number + 1, "values": values}
            score = 1.9 - number * 0.05 + place / 10
            result = {"loss": score} if status == "ok" else {"status": status}
            sweep.job(f"model={arm}", status=status, tuning=trial, result=result)
        for seed in (1, 2):
            best = {"arm": arm, "phase": "best", "trial": None, "values": values}
            result = {"loss": 1.2 + place / 10 + seed / 50}
            sweep.job(f"model={arm}", f"train.seed={seed}", tuning=best, result=result)
    return page_text(make_report([sweep.folder]))


@pytest.mark.parametrize("width", [1200, 360])
def test_pictures_of_a_tuned_sweep_fit_without_overlapping_labels(
    tuned: str, tmp_path: Path, width: int
) -> None:
    script = """
    found.outside = [];
    all("svg[id^=tuned] text").filter(shown).forEach(function (text) {
      var one = text.getBoundingClientRect(), svg = text.ownerSVGElement.getBoundingClientRect();
      if (one.left < svg.left - 1 || one.right > svg.right + 1 || one.bottom > svg.bottom + 1) {
        found.outside.push([text.ownerSVGElement.id, text.textContent]);
      }
    });
    """
    found = look(tuned, TOOLS + LAYOUT + script, tmp_path, width)
    assert found["wide"] <= 0
    assert [one for one in found["overlaps"] if one[0].startswith("tuned")] == []
    assert found["outside"] == []
    assert found["small"] > 9


def test_trials_are_told_by_the_arrow_keys_and_picked_by_their_arm(
    tuned: str, tmp_path: Path
) -> None:
    found = look(
        tuned,
        TOOLS
        + """
        var press = function (svg, key) {
          svg.dispatchEvent(new KeyboardEvent("keydown", { key: key, cancelable: true }));
          return tip();
        };
        var plot = document.querySelector("#tuned-optim-lr"), told = press(plot, "ArrowRight");
        found.told = [];
        for (var n = 0; n < 70 && found.told.indexOf(told) < 0; n += 1) {
          found.told.push(told);
          told = press(plot, "ArrowRight");
        }
        all("button[data-row]").find(function (one) {
          return one.textContent === "e42";
        }).click();
        found.picked = all(".trial.on", plot).map(function (one) { return one.dataset.row; });
        """,
        tmp_path / "browser",
    )
    told = found["told"]
    assert "e1, optim.lr 0.0001, optim.weight_decay 0.001: trial 1; crash" in told
    assert any("mamba2" in one and "full budget, best setting" in one for one in told)
    assert found["picked"] == ["1"] * len(found["picked"]) != []
