"""The page of probes in a real browser: no fault, a narrow screen, and values of its axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.exit_status import RunStatus
from elman.probe import ablation, loss, memory, recall, state
from elman.probe.result import DEFINITIONS, ProbeResult
from elman.report.probe.page import page_text
from elman.report.probe.views import views_of
from elman.sections.probe import CHANGES
from tests.probe.hand_set import Delay, Leak, letters, model_of, reader_of, text_of

from .browser import look, needs_browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a page of two runs."""
    trees = []
    for name, layers in {"one": (Leak(0.9), Delay(8)), "two": (Leak(0.5), Delay(3))}.items():
        text = text_of(tmp_path_factory.mktemp(name), letters(256, documents=2))
        reader = reader_of(model_of(*layers), trained=32)
        result = ProbeResult(
            status=RunStatus.OK,
            checkpoint=f"/runs/{name}/checkpoints/step-0000001",
            step=1,
            model="hand",
            cell="hand",
            params=1,
            trained_length=32,
            length=256,
            documents=2,
            text="letters",
            device="a CPU",
            precision="fp32",
            definitions=DEFINITIONS,
            loss=loss.measure(reader, text),
            memory=memory.measure(reader, text, CHANGES),
            recall=recall.measure(reader, text, seed=1),
            state=state.measure(reader, text),
            ablation=ablation.measure(reader, text),
        )
        trees.append(result.model_dump())
    return page_text(views_of(trees))


def test_values_of_logarithmic_axes_are_told_by_the_arrow_keys(page: str, tmp_path: Path) -> None:
    script = """
    var tip = function () { return document.querySelector(".tip").textContent; };
    var press = function (svg, key) {
      svg.dispatchEvent(new KeyboardEvent("keydown", { key: key, cancelable: true }));
      return tip();
    };
    var plot = document.querySelector("#probe-saved");
    found.told = [];
    for (var n = 0; n < 9; n++) { found.told.push(press(plot, "ArrowRight")); }
    found.names = Array.from(document.querySelectorAll("tbody td.k")).slice(0, 2)
      .map(function (cell) { return cell.textContent; });
    found.log = document.querySelector("#probe-kl-replaced").dataset.log;
    """
    found = look(page, script, tmp_path / "browser")
    places = [line.rsplit(": ", 1)[1] for line in found["told"]]
    assert places == ["1", "2", "4", "8", "16", "32", "64", "128", "256"]
    assert found["names"] == ["hand (one, step 1)", "hand (two, step 1)"]
    assert found["log"] == "xy"


@pytest.mark.parametrize("width", [1200, 380])
def test_nothing_is_wider_than_the_screen(page: str, tmp_path: Path, width: int) -> None:
    script = """
    found.wide = document.documentElement.scrollWidth;
    found.plots = document.querySelectorAll("svg.plot").length;
    found.cut = [];
    document.querySelectorAll("svg.plot").forEach(function (svg) {
      var left = svg.getBoundingClientRect().left;
      svg.querySelectorAll(".grid text").forEach(function (text) {
        if (text.getBoundingClientRect().left < left) { found.cut.push(text.textContent); }
      });
    });
    """
    found = look(page, script, tmp_path / "browser", width)
    assert found["wide"] <= width
    assert found["cut"] == []
    # 3 of loss, 2 of memory, 4 or fewer of recall, 3 of ablation, 2 and 2 of each run's layers.
    assert found["plots"] >= 14
