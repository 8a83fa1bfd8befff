"""A run from before some settings is one experiment with a run that has them and uses none."""

from __future__ import annotations

from pathlib import Path

import yaml

from elman.config.newer_settings import without_newer
from elman.report.comparison.report_data import make_report

from .fake_sweep import make_run


def test_an_older_run_and_a_newer_one_are_one_row(tmp_path: Path) -> None:
    older, newer = (make_run(tmp_path / f"{seed}", f"train.seed={seed}") for seed in (1, 2))
    path = older / "config.yaml"
    path.write_text(yaml.safe_dump(without_newer(yaml.safe_load(path.read_text()))))
    (row,) = make_report([older, newer]).rows
    assert [run.seed for run in row.counted] == [1, 2]
