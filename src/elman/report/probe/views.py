"""The runs of a page of probes, and how their numbers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from elman.probe.result import ProbeResult

NONE = "-"
_KIBI = 1024


@dataclass(frozen=True)
class View:
    """One probed run.

    Args:
        row: Its number on the page, from 0, which is also its line style.
        name: What it is called there.
        result: Its numbers.
    """

    row: int
    name: str
    result: ProbeResult


def views_of(trees: Sequence[Mapping[str, Any]]) -> list[View]:
    """Return the runs whose ``probe.json`` makes sense, each with a name of its own."""
    results = []
    for tree in trees:
        try:
            results.append(ProbeResult.model_validate(tree, strict=False))
        except ValidationError:
            continue
    names = [result.model for result in results]
    views = []
    for row, result in enumerate(results):
        alone = names.count(result.model) == 1
        name = result.model if alone else f"{result.model} ({_run_of(result)})"
        views.append(View(row, name, result))
    return views


def _run_of(result: ProbeResult) -> str:
    """Return the folder of the run and the step, which tell runs of one model apart."""
    return f"{Path(result.checkpoint).parents[1].name}, step {result.step:,}"


def number(value: float | None, form: str = ".4f") -> str:
    """Return a number as text; ``-`` if there is none."""
    return NONE if value is None else format(value, form)


def size(positions: float | None) -> str:
    """Return positions as text: 512, 1K, 128K; ``-`` if there are none."""
    if positions is None:
        return NONE
    if positions >= _KIBI and positions % _KIBI == 0:
        return f"{positions / _KIBI:g}K"
    return f"{positions:,.0f}"
