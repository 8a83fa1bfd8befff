"""``vocabulary`` as far as a machine without a GPU can run it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_its_numbers_are_right_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from tools.gpu import job, run

    small = ["rows=2", "steps=64", "dim=32", "vocabulary=1000"]
    assert run.main(["vocabulary", "--device=cpu", f"--out={tmp_path}", *small]) == 0
    rows = job.read_rows(tmp_path / "vocabulary.jsonl")[1:]
    assert [row["part"] for row in rows] == ["numbers", "sizes", "sizes"]
    assert all("error" not in row for row in rows)
