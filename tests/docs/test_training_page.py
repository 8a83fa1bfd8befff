"""The page about training names settings, optimizers, files and records, and all there are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elman.config.suggestions import known_keys
from elman.evaluation.records import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
# What a run adds to every record, and what the page says of a record in words.
EVERYWHERE = {"kind", "step"}


def test_every_setting_on_the_page_exists() -> None:
    named = set(re.findall(r"`((?:train|optim|log|data)\.[a-z_]+)", PAGE)) - {"train.log"}
    assert len(named) > 20
    assert named - set(known_keys()) == set()


def test_every_optimizer_is_on_the_page() -> None:
    files = list((ROOT / "conf" / "optim").glob("*.yaml"))
    assert files
    for file in files:
        assert f"`{file.stem}`" in PAGE, file.stem


def test_every_record_and_every_file_of_a_run_is_on_the_page(train: Callable[..., Any]) -> None:
    folder: Path = train("log.tensorboard=true").folder
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    kinds = {record["kind"]: record.keys() - EVERYWHERE for record in records}
    assert kinds.keys() == {"session", "step", "window", "validation"}
    for kind, names in kinds.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |"))
        assert [name for name in names if f"`{name}`" not in row] == []
        assert names <= KINDS[kind].model_fields.keys()
    for path in folder.iterdir():
        if path.name != ".lock":
            assert f"`{path.name}" in PAGE, path.name
