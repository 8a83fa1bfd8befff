"""The page of suites is what the files say, and its example of an own suite works."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from elman.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
TOOLS = Path(__file__).parents[2] / "tools" / "docs"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_suites", TOOLS / "make_suites.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_suites = _load()


def test_the_committed_page_is_the_generated_one() -> None:
    committed = (DOCS / "suites.md").read_text(encoding="utf-8")
    if committed != make_suites.page():
        pytest.fail(
            "docs/suites.md is not what the suites are: run python tools/docs/make_suites.py"
        )


def test_the_example_of_an_own_suite_plans_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "suites.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n([\s\S]+?)```", page)
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "mine.yaml").write_text(example)
    monkeypatch.chdir(tmp_path)
    assert main(["--config-dir", ".", "benchmark=mine", "sweep.dry_run=true"]) == 0
    jobs = [line for line in capsys.readouterr().out.splitlines() if line.startswith("elman ")]
    assert len(jobs) == len(re.findall(r"^    - \[model=", example, re.M)) == 3
    assert "optim.lr=6e-4 hydra.mode=RUN" in jobs[2]
