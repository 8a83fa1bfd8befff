"""``report.paper=true``: figures as SVG and PDF, the table as LaTeX, captions with definitions."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from elman.cli.main import main
from elman.evaluation.metrics import DEFINITIONS
from elman.report.comparison.paper import latex

from .fake_sweep import FakeSweep


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a sweep over two keys, with seeds, marks and a failure."""
    sweep = FakeSweep(tmp_path / "sweep")
    for model in ("e1", "e42"):
        for lr in ("1e-4", "1e-3"):
            for seed, loss in ((1, 1.5), (2, 1.6)):
                named = (f"model={model}", f"optim.lr={lr}", f"train.seed={seed}")
                if (model, lr) == ("e42", "1e-3"):
                    sweep.failed(*named, status="nan", error="loss is nan")
                else:
                    sweep.job(*named, result={"loss": loss, "contended": model == "e42"})
    return sweep


def test_every_figure_and_the_table_are_written(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["mode=report", f"report.dir={sweep.folder}", "report.paper=true"]
    assert main(command) == 0
    place = sweep.folder / "paper"
    assert f"paper: {place} (" in capfd.readouterr().out
    document = (place / "figures.tex").read_text()
    shown = re.findall(r"\\includegraphics\{(.*?)\.pdf\}", document)
    assert shown[0] == "swept-model-optim-lr"
    assert shown[1:] == ["loss-steps", "loss-minutes", "loss-tokens", "throughput", "pareto"]
    assert document.count(r"\caption{") == len(shown)
    assert "Each point is the mean over the 100 optimizer steps up to it" in document
    for name in shown:
        assert (place / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
        drawn = ElementTree.parse(place / f"{name}.svg").getroot()
        assert drawn.tag.endswith("svg")
    assert "oom" not in (place / "swept-model-optim-lr.svg").read_text()
    assert "2 nan" in (place / "swept-model-optim-lr.svg").read_text()
    table = (place / "table.tex").read_text()
    assert r"e1 optim.lr=1e-4 & 90,432 & 2 & $1.5500 \pm 0.0707$ &" in table
    assert r"e42 optim.lr=1e-3 & 90,432 & 0 & - & - & - & - & nan \\" in table
    assert r"2 contended" not in table
    assert "contended" in table
    for key in ("loss", "val_bpb", "tok_s"):
        assert latex(DEFINITIONS[key]) in table
    # The same report makes the same bytes; what is no longer a figure of it goes.
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    (place / "swept-old.svg").write_bytes(before["pareto.svg"])
    assert main(command) == 0
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_figure_of_somebody_elses_is_not_replaced(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    (sweep.folder / "paper").mkdir()
    mine = sweep.folder / "paper" / "table.tex"
    mine.write_text("mine")
    assert main(["mode=report", f"report.dir={sweep.folder}", "report.paper=true"]) == 2
    assert f"{mine}: exists and is not of an earlier report" in capfd.readouterr().err
    assert mine.read_text() == "mine"
    assert sorted(path.name for path in mine.parent.iterdir()) == ["table.tex"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a_b & 50%", r"a\_b \& 50\%"), ("\\x{$1}", r"\textbackslash{}x\{\$1\}"), ("a\nb", "a b")],
)
def test_names_are_text_in_latex(text: str, shown: str) -> None:
    assert latex(text) == shown
