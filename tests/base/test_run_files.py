"""The names of a run's files: each stands once, so that a name is changed in one place."""

from __future__ import annotations

import re
from pathlib import Path

import elman
from elman.base import run_files
from elman.base.run_files import checkpoints_in, earlier_results, next_earlier_result

NAMES = [
    value
    for name, value in vars(run_files).items()
    if name.isupper() and isinstance(value, str) and "." in value
]


def test_no_other_file_spells_the_name_of_a_runs_file() -> None:
    spelled = re.compile("[\"'/](" + "|".join(map(re.escape, NAMES)) + ")[\"']")
    package = Path(elman.__file__).parent
    found = [
        f"{path.relative_to(package)}: {name}"
        for path in package.rglob("*.py")
        for name in spelled.findall(path.read_text(encoding="utf-8"))
    ]
    assert sorted(found) == [f"base/run_files.py: {name}" for name in sorted(NAMES)]


def test_the_next_earlier_result_comes_after_those_that_are_there(tmp_path: Path) -> None:
    moved = []
    for _ in range(3):
        moved.append(next_earlier_result(tmp_path))
        moved[-1].touch()
    assert [path.name for path in moved] == [f"result-00{n}.json" for n in (1, 2, 3)]
    assert earlier_results(tmp_path) == moved


def test_checkpoints_are_listed_oldest_first(tmp_path: Path) -> None:
    for name in ("step-0000020", "step-0000003", "best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    names = [path.name for path in checkpoints_in(tmp_path)]
    assert names == ["step-0000003", "step-0000020"]
