"""The front page's tables agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

from elman.base.exit_status import MEANINGS
from elman.models.cells import registry
from elman.models.cells.declaration import Cell

PAGE = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ENGINES = {"channel", "dense", "tape", "matrix_state"}


def row(backend: str, who: str) -> str:
    """Return the last cell of a backend's row in the table."""
    [found] = re.findall(rf"^\| `{backend}` \| {who}[^|]*\| ([^|]+) \|$", PAGE, re.M)
    return str(found)


def test_the_cells_without_our_kernels_are_those_that_the_front_page_names() -> None:
    ours = [cell for cell in registry.cells().values() if cell.engine in ENGINES]
    assert {cell.engine for cell in ours} == ENGINES
    for backend in ("cpu", "cuda"):
        without = {cell.name for cell in ours if backend not in cell.backends}
        assert without == {"m2rnn"}
    said = row("cpu", "our kernels in C")
    assert "not M2RNN" in said
    assert row("cuda", "our kernels for NVIDIA").startswith("the same cells")
    limited = {name for cell in ours for name in options_without_kernels(cell)}
    assert limited == set(re.findall(r"`(\w+)`", said)) - ENGINES
    assert {cell.name for cell in ours if options_without_kernels(cell)} == {"e74"}


def test_the_cells_of_our_triton_kernels_are_those_that_the_front_page_names() -> None:
    said = set(re.findall(r"`(\w+)`", row("triton", "our kernels in Triton")))
    declared = {
        cell.name
        for cell in registry.cells().values()
        if cell.engine in ENGINES and "triton" in cell.backends
    }
    assert said == declared


def options_without_kernels(cell: Cell) -> set[str]:
    """Return the values, and the names of switches, with which only the reference runs."""
    usual = {name: option.default for name, option in cell.options.items()}
    found = set()
    for name, option in cell.options.items():
        values = [not option.default] if isinstance(option.default, bool) else option.choices or ()
        for value in values:
            if cell.limit({**usual, name: value}):
                found.add(name if isinstance(value, bool) else str(value))
    return found


def test_the_front_page_says_what_every_exit_status_means() -> None:
    rows = [f"| {int(status)} | {words} |" for status, words in MEANINGS.items()]
    assert "\n".join(["| exit status | meaning |", "|---|---|", *rows, ""]) in PAGE
