"""The runs of a page of probes, and how their numbers read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from elman.base import run_files
from elman.base.typed_in import shortest
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
    return [
        View(row, name, result)
        for row, (name, result) in enumerate(zip(_names(results), results, strict=True))
    ]


def _names(results: Sequence[ProbeResult]) -> Iterator[str]:
    """Yield a name of each result that no other one has, as short as possible."""
    forms = [[form(result) for result in results] for form in _FORMS]
    forms.append([f"{name}, probe {row}" for row, name in enumerate(forms[-1], 1)])
    for row in range(len(results)):
        yield next(names[row] for names in forms if names.count(names[row]) == 1)


def _run(result: ProbeResult) -> Path:
    """Return the folder of the run, or that of a checkpoint that lies alone."""
    place = Path(result.checkpoint)
    return place.parents[1] if place.parent.name == run_files.CHECKPOINTS else place


def _in_full(result: ProbeResult) -> str:
    """Return the path of the run and the step, without the last bracket."""
    return f"{result.model} ({shortest(_run(result))}, step {result.step:,}"


_FORMS: tuple[Callable[[ProbeResult], str], ...] = (
    lambda one: one.model,
    lambda one: f"{one.model} ({_run(one).name}, step {one.step:,})",
    lambda one: f"{_in_full(one)})",
    lambda one: f"{_in_full(one)}; {one.length:,} bytes of {one.text})",
)
"""What a probe is called, from the shortest form to the longest."""


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
