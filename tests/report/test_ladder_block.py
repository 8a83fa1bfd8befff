"""The block on a ladder: its verdict, laws, predictions, limits and pictures, on made-up runs."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from elman.cli.main import main
from elman.report.comparison.ladder import Ladder
from elman.report.comparison.ladder_text import METHOD, limits, tables, verdict_sentence
from elman.report.comparison.page import page_text
from elman.report.comparison.plots import page_pictures
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.write import markdown_text

from .fake_sweep import FakeSweep

SIZES = {"100k": (117_520, 128), "200k": (233_488, 256), "400k": (401_184, 256)}
SIZES |= {"800k": (850_992, 384)}
SPACE = {"optim": {"lr": {"low": 1e-4, "high": 1e-1, "log": True}}}
NOW = "2026-11-28T00:22:09+00:00"
RATES = {"100k": 8e-3, "200k": 4e-3, "400k": 4e-3, "800k": 2.7e-3}


def score(family: str, params: int) -> float:
    """Return the score that a law of a family gives."""
    limit, factor = {"e88": (1.0, 1.2), "e1": (1.2, 1.3)}[family]
    return limit + factor * float((params / 1e6) ** -0.3)


class FakeLadder:
    """A ladder's folder whose runs score what a law says."""

    def __init__(self, folder: Path, *families: str, sizes: tuple[str, ...] = tuple(SIZES)) -> None:
        told = [self._arm(family, size) for family in families for size in sizes]
        line = {"points": [[128, 8e-3], [256, 4e-3]], "slope": -1.0, "at": NOW}
        self.top: dict[str, Any] = {
            "choice": "ladder",
            "config": {"space": SPACE, "ladder": {"check_trials": 3}},
            "score": "val_bpb",
            "goal": "minimize",
            "arms": told,
            "ranges": [{"optim.lr": {"low": 1e-4, "high": 1e-1}}],
            "state": "done",
            "lines": dict.fromkeys(families, line),
            "predictions": {},
        }
        self.sweep = FakeSweep(folder, tune=self.top)

    @staticmethod
    def _arm(family: str, size: str) -> dict[str, Any]:
        params, width = SIZES[size]
        model = f"{family}_{size}"
        named = {"arm": model, "model": model, "params": params, "seeds": [1, 2, 3]}
        ladder = {"family": family, "size": int(size[:-1]) * 1000, "width": width}
        return {**named, "published": {"optim.lr": 3e-4}, **ladder}

    def predict(self, family: str, size: str, value: float | None, reach: float = 0.05) -> None:
        """Record what was predicted of a size."""
        ends = (None, None) if value is None else (value - reach, value + reach)
        told = {"score": value, "low": ends[0], "high": ends[1], "sizes": [[1, 2.0]], "at": NOW}
        self.top["predictions"][f"{family}_{size}"] = told

    def trials(self, family: str, size: str, scores: Mapping[float, float]) -> None:
        for number, (rate, value) in enumerate(scores.items(), 1):
            self._job(family, size, rate, value, "trial", seed=0, trial=number)

    def runs(self, family: str, size: str, value: float | None, *seeds: int, end: str = "") -> None:
        """Add the whole runs of a size, their scores a little apart; ``end``: how they ended."""
        for seed in seeds or (1, 2, 3):
            own = None if value is None else value + 0.002 * (seed - 2)
            self._job(family, size, RATES[size], own, "best", seed=seed, end=end)

    def _job(
        self,
        family: str,
        size: str,
        rate: float,
        value: float | None,
        phase: str,
        *,
        seed: int,
        trial: int | None = None,
        end: str = "",
    ) -> None:
        model, (params, _) = f"{family}_{size}", SIZES[size]
        tuning = {"arm": model, "phase": phase, "trial": trial, "values": {"optim.lr": rate}}
        result: dict[str, Any] = {"status": end, "error": "it failed"}
        if value is not None:
            flops = 6.0 * params * params
            result = {"loss": value, "val_bpb": value, "params": params, "flops": flops}
        overrides = (f"model={model}", f"train.seed={seed}", f"optim.lr={rate:g}")
        self.sweep.job(*overrides, status=end or "ok", tuning=tuning, result=result)

    def whole(self, *families: str, sizes: tuple[str, ...] = tuple(SIZES)) -> None:
        """Add everything that a finished ladder has."""
        for family in families:
            for size, best in (("100k", 8e-3), ("200k", 4e-3)):
                self.trials(family, size, {best / 3: 3.0, best: 2.5, best * 3: 3.1})
            for size in sizes:
                self.runs(family, size, score(family, SIZES[size][0]))

    def report(self) -> Report:
        """Return the report on it."""
        self.sweep.write()
        return make_report([self.sweep.folder])

    def ladder(self) -> Ladder:
        (found,) = self.report().ladders
        return found


@pytest.fixture
def finished(tmp_path: Path) -> FakeLadder:
    made = FakeLadder(tmp_path / "ladder", "e88", "e1")
    made.whole("e88", "e1")
    made.trials("e88", "400k", {4e-3: 2.6, 8e-3: 2.7, 2e-3: 2.5})
    made.predict("e88", "800k", score("e88", 850_992) + 0.01)
    made.predict("e1", "800k", score("e1", 850_992) - 0.2)
    return made


def test_the_verdict_is_one_sentence(finished: FakeLadder) -> None:
    text = verdict_sentence(finished.ladder())
    assert text.startswith(
        "At 800K, e88 leads with 2.2595 held-out bits per byte, and e1 is behind"
    )
    assert "the two laws do not cross between 118K and 851K" in text
    assert "missed by 0.2000 at most, and 1 of 2 scores are inside their intervals" in text
    assert text.count(".") == text.count("0.") + text.count("2.2595") + 1


def test_laws_predictions_and_lines_stand_in_tables(finished: FakeLadder) -> None:
    laws, last, rates = (one.cells for one in tables(finished.ladder()))
    assert laws[0][:2] == ["e88", "4"]
    assert laws[0][2].startswith(("1.0", "0.99"))
    assert re.fullmatch(r"0\.\d+ \(0\.\d+ to 0\.\d+\)", laws[0][4])
    assert last[0][3] == NOW
    assert [line[5:] for line in last] == [["-0.0100", "yes"], ["+0.2000", "no"]]
    assert rates[0] == ["e88", "-1.00", "e88_400k", "0.004", "0.002", "2", "+0.1000"]
    assert rates[1][2:] == ["-"] * 5  # no trial checks the line of e1


def test_what_is_too_short_is_said(finished: FakeLadder) -> None:
    found = "\n".join(limits(finished.ladder()))
    assert "e88: the best rate at e88_400k is the lowest one that was tried" in found
    assert "A law through fewer than 5 sizes bends with each of them" in found


def test_a_page_has_the_block_and_its_pictures(finished: FakeLadder, tmp_path: Path) -> None:
    report = finished.report()
    assert not report.tuned  # arms of other sizes are not compared with each other
    page = page_text(report)
    assert "The ladder</h2>" in page
    assert NOW in page
    (pictures,) = page_pictures(report).ladders
    assert [one.picture.name for one in pictures.plots] == [
        *("ladder-size", "ladder-compute", "ladder-rates")
    ]
    for plot in pictures.plots:
        tree = ElementTree.fromstring(plot.svg)
        assert len([one for one in tree.iter() if "trial" in (one.get("class") or "")]) >= 2
        assert "nan" not in plot.svg
    assert "held out" in pictures.plots[0].svg
    assert "predicted" in pictures.plots[0].svg
    assert "e88 leads" in markdown_text(report)
    assert all(f">{text}</p>" in unescape(page) for text in METHOD)
    assert "\n\n".join(METHOD) in markdown_text(report)


def test_sizes_of_a_ladder_are_declared_in_the_audit(finished: FakeLadder) -> None:
    report = finished.report()
    (row,) = [one for one in report.audit.rows if one.check.key == "params"]
    assert row.finding.state == "declared"
    assert row.finding.detail.endswith("the sizes of a ladder")


def test_the_command_prints_it_and_writes_it_as_json(
    finished: FakeLadder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished.report()
    out = tmp_path / "out"
    folder = f"report.dir={finished.sweep.folder}"
    assert main(["mode=report", folder, f"report.out={out}", "report.paper=true"]) == 0
    printed = capsys.readouterr().out
    assert "The ladder:" in printed
    assert "limit: " in printed
    (found,) = json.loads((out / "ladder.json").read_text())["ladders"]
    law = found["families"]["e88"]["law"]
    assert law["a_interval"][0] <= 0.3 <= law["a_interval"][1]
    assert found["families"]["e1"]["inside_its_interval"] is False
    assert (out / "paper" / "ladder-size.pdf").is_file()


def shown(ladder: FakeLadder) -> str:
    """Return everything that a ladder says, after every form of it was made."""
    report = ladder.report()
    page_text(report)
    markdown_text(report)
    (found,) = report.ladders
    tables(found)
    return "\n".join([verdict_sentence(found), *limits(found)])


def test_two_sizes_give_an_open_law(tmp_path: Path) -> None:
    made = FakeLadder(tmp_path / "ladder", "e88", "e1", sizes=("100k", "200k"))
    made.whole("e88", "e1", sizes=("100k", "200k"))
    made.predict("e88", "200k", None)
    text = shown(made)
    assert "e88: too few smaller sizes have a score, so nothing was predicted." in text
    assert "At 200K, e88 leads" in text


def test_scores_that_rise_with_size_have_a_flat_law(tmp_path: Path) -> None:
    made = FakeLadder(tmp_path / "ladder", "e88")
    for place, size in enumerate(SIZES):
        made.runs("e88", size, 2.0 + 0.1 * place)
    text = shown(made)
    assert "e88: its score does not fall with size, so its law is flat." in text
    assert "There is no order at the largest size (e88: no other arm has a verdict)" in text


def test_a_family_without_its_largest_size_gets_a_sentence(tmp_path: Path) -> None:
    made = FakeLadder(tmp_path / "ladder", "e88", "e1")
    made.whole("e88")
    made.whole("e1", sizes=("100k", "200k", "400k"))
    assert "e1: it was not trained there" in shown(made)


def test_failed_runs_and_one_seed_get_a_sentence(tmp_path: Path) -> None:
    made = FakeLadder(tmp_path / "ladder", "e88", "e1")
    made.whole("e88", "e1", sizes=("100k", "200k", "400k"))
    made.runs("e88", "800k", None, end="nan")
    made.runs("e1", "800k", 2.5, 1)
    text = shown(made)
    assert "e88_800k: 3 of its runs failed (seed 1: nan, seed 2: nan, seed 3: nan)." in text
    assert "A size with one seed says nothing about its noise" in text


def test_a_ladder_that_has_just_begun_says_what_is_missing(tmp_path: Path) -> None:
    made = FakeLadder(tmp_path / "ladder", "e88", "e1")
    made.top["lines"] = {}
    text = shown(made)
    assert "e88: no law, because 0 of its sizes have a score." in text
    assert "e88: no line of rates, because no trial of its small sizes has a score." in text
