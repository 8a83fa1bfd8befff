"""The pictures of the first run show what a run of today prints, and the pages its numbers."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from elman.config.compose import compose_config
from elman.models.backends import best_backend
from elman.models.cells import registry

ROOT = Path(__file__).parents[2]
AGAIN = "run python tools/docs/make_pictures.py on an idle machine"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """Return the script that makes the pictures."""
    path = ROOT / "tools" / "docs" / "make_pictures.py"
    spec = importlib.util.spec_from_file_location("make_pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shape(line: str) -> str:
    """Return a line without its numbers, times, folders and the widths of its columns."""
    line = re.sub(r"(?<=[ =:])\S*/\S+", "PLACE", line)
    line = re.sub(r"\d[\d.,]*(?:e[-+]\d+)?", "0", line)
    line = re.sub(r"0h0m|0m0s|0s", "TIME", line)
    return re.sub(r"([━─])+", r"\1", re.sub(r" +", " ", line)).strip()


@pytest.mark.compiler
def test_the_picture_of_the_first_run_has_todays_backend_and_layout(
    make: ModuleType, train: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Of today is a small run of the default model, which prints the same lines."""
    shown = make.picture_lines(make.SCREEN.read_text(encoding="utf-8"))
    assert shown[0] == "$ elman"
    train("train.steps=12", "train.val_every=6", "log.every=1")
    # Kernels are compiled and checked once on a machine; the picture is of a later run.
    output = capfd.readouterr().out.splitlines()
    printed = {shape(line) for line in output if ", once" not in line}
    for line in filter(None, shown[1:]):
        assert shape(line) in printed, f"{line!r} is of an older run; {AGAIN}"
    lines = {shape(line) for line in shown}
    of_losses = {line for line in printed if line.startswith("step ")}
    assert printed - of_losses <= lines, f"a run prints more today; {AGAIN}"


def test_the_picture_is_of_the_run_whose_numbers_stand_beside_it(make: ModuleType) -> None:
    numbers = json.loads(make.NUMBERS.read_text())
    cell = registry.cell(compose_config([]).model.cell)
    assert numbers["backend"] == best_backend(cell, "cpu"), AGAIN
    shown = "\n".join(make.picture_lines(make.SCREEN.read_text(encoding="utf-8")))
    assert re.search(rf"steps +│ +{numbers['steps']:,} │", shown)
    assert re.search(rf"val_bpb +│ +{numbers['val_bpb']:.4f} │", shown)
    assert f"backend {numbers['backend']} on cpu" in shown
    assert "/tmp" not in shown


def test_the_pages_have_the_numbers_of_that_run(make: ModuleType) -> None:
    numbers = json.loads(make.NUMBERS.read_text())
    for page, pattern, line in make.PAGES:
        assert pattern.findall(page.read_text(encoding="utf-8")) == [line(numbers)], AGAIN
