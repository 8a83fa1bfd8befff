"""What ``mode=solve`` prints: one answer with its neighbors, or the answers of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from elman.base.consoles import say, table_console
from elman.base.tables import TerminalTable, names, numbers
from elman.base.units import GPU_MEMORY
from elman.config.run_config import RunConfig
from elman.models.state_sizes import DEFINITION, STATE_HEADS, StateSize
from elman.sections.solve import PARAMS, TARGETS, Target
from elman.sweeps.row import SweepRow

Result = Mapping[str, Any]
"""The result of one job of ``mode=solve`` (:func:`elman.modes.solve.run`)."""

_HEADS = (
    "wanted",
    "found",
    "depth",
    PARAMS.unit,
    "off",
    *STATE_HEADS,
    "smaller",
    "larger",
    "memory",
    "batch",
)
# The answer, its count and how it ended stay.
_SPARE = (
    *("per byte", "batch", "larger", "smaller", "depth"),
    *("state bytes", "memory", "wanted", "off"),
)


def print_solution(result: Result, console: Console) -> None:
    """Print one answer: sizes and counts, memory, and the command that trains it."""
    over, searched, target = result["over"], result["searched"], _target(result)
    request = f"{over} nearest to {target.text(result['target'])}"
    if result["largest"]:
        end = result["nearest"]["size"] == searched[1]
        request = f"largest {over} that fits" + (", the end of the search" if end else "")
    say(console, f"{result['model']}: {request}")
    if result["status"] != "ok":
        say(console, f"not reached with {over} of {searched[0]} to {searched[1]}: the nearest is")
    table = TerminalTable(numbers("", over, *_units(target), "off", *STATE_HEADS))
    for name, mark in (("below", ""), ("nearest", ">"), ("above", "")):
        if sized := result[name]:
            style = "bold" if mark else ""
            table.add(mark, str(sized["size"]), *_numbers(target, sized), style=style)
    table.print(console)
    if result["rule_of_cell"]:
        say(console, f"{over} 0 is the model's own: {result['rule_of_cell']}")
    _print_training(result, console)


def print_shapes(result: Result, console: Console) -> None:
    """Print the best configurations of several sizes, and the memory and command of the first."""
    over, target = result["over"], _target(result)
    words = ", ".join(over)
    say(console, f"{result['model']}: {words} for {target.text(result['target'])}")
    if result["status"] != "ok":
        say(console, f"not reached with these values of {words}: the nearest are")
    table = TerminalTable(numbers("", *over, *_units(target), "off", *STATE_HEADS))
    for place, one in enumerate(result["best"]):
        style, mark = ("", "") if place else ("bold", ">")
        sizes = [str(one["sizes"][size]) for size in over]
        table.add(mark, *sizes, *_numbers(target, one), style=style)
    table.print(console)
    say(console, result["rule"])
    _print_training(result, console)


def _print_training(result: Result, console: Console) -> None:
    """Print what the state counts, the memory of a training step of the answer, and the command."""
    say(console, DEFINITION)
    batch = f"{result['batch_size']} rows of {result['chunk_size']} bytes"
    say(console, f"memory of a training step: {_memory(result)} at {batch}{_each(result)}")
    if result["gpu_gb"] is not None:
        say(console, _fit(result))
    say(console, f"train it: {result['command']}")


def _each(result: Result) -> str:
    """Return what several GPUs have each, sharded and not."""
    if result["gpus"] == 1:
        return ""
    sharded = f"{GPU_MEMORY.text(result['sharded_bytes'], 1)} with parallel.shard=full"
    return f", on each of {result['gpus']} GPUs with {result['rows']} rows; {sharded}"


def _fit(result: Result) -> str:
    where = f"{result['gpus']} x {result['gpu_gb']:g} {GPU_MEMORY.name}"
    how = {"none": "fits", "full": "fits only with parallel.shard=full", None: "does not fit"}
    return f"{how[result['fits']]}: {where}, less 5 % for the driver"


def print_solutions(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the answers of a sweep in one table, and the command that trains each."""
    assert folder is None
    console = table_console()
    solutions_table(rows).print(console)
    for row in rows:
        if row.result:
            say(console, row.result["command"])


def solutions_table(rows: Sequence[SweepRow]) -> TerminalTable:
    """Return one line for each job of a sweep."""
    headings = [*numbers("job"), *names("overrides"), *numbers(*_HEADS), *names("status")]
    table = TerminalTable(headings, _SPARE)
    for row in rows:
        cells = _cells(row.result) if row.result else ["-"] * len(_HEADS)
        table.add(str(row.number), " ".join(row.overrides), *cells, row.status)
    return table


def _cells(result: Result) -> list[str]:
    nearest = result["nearest"]
    return [
        _wanted(result),
        _found(result),
        str(nearest["depth"]),
        *_numbers(PARAMS, nearest),
        *(_neighbor(result[name]) for name in ("below", "above")),
        _memory(result),
        f"{result['batch_size']} x {result['chunk_size']}",
    ]


def _found(result: Result) -> str:
    """Return the answer's sizes as a user types them, without ``model.``."""
    nearest = result["nearest"]
    sizes = nearest.get("sizes") or {result["over"]: nearest["size"]}
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def _target(result: Result) -> Target:
    return next(target for target in TARGETS if target.key == result["target_key"])


def _columns(target: Target) -> list[Target]:
    """Return what is shown of a model: its parameters always, and what has the target."""
    return list(dict.fromkeys((PARAMS, target)))


def _units(target: Target) -> list[str]:
    return [column.unit for column in _columns(target)]


def _numbers(target: Target, sized: Result) -> list[str]:
    """Return the cells of one model: its numbers, how far it is from the target, its state."""
    counts = [f"{sized[column.result]:,.0f}" for column in _columns(target)]
    fixed, per_byte = sized["state_bytes"], sized["state_bytes_per_byte"]
    state = ("-", "-") if fixed is None else StateSize(fixed, per_byte).cells()
    return [*counts, f"{sized['error']:+.2%}", *state]


def _wanted(result: Result) -> str:
    """Return the target; its unit only if no column of the sweep's table has it."""
    text = _target(result).text(result["target"])
    return text.removesuffix(f" {PARAMS.unit}")


def _neighbor(sized: Result | None) -> str:
    return f"{sized['size']}: {sized['error']:+.2%}" if sized else "-"


def _memory(result: Result) -> str:
    return GPU_MEMORY.text(result["memory_bytes"], 1)
