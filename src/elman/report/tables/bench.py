"""The tables of ``mode=bench``: times and ratios, then kernels, products and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from elman.base import run_files
from elman.base.consoles import say, table_console
from elman.base.tables import TerminalTable, names, numbers
from elman.base.units import LAYER_MEMORY
from elman.config.run_config import RunConfig
from elman.report.tables.sweep import computed_by
from elman.sweeps.row import SweepRow

Row = Mapping[str, Any]
# Titles of the parts of an iteration, in their order.
_PARTS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "passes": "both passes",
    "optimiser": "optimizer",
}
_PASSES = ("forward", "backward", "passes")
_SPARE = ("data", "params", "range", "optimizer", "tok/s", "both passes", "backward", "forward")
_SAVED, _PEAK = (f"{what} {LAYER_MEMORY.name}" for what in ("saved", "peak"))
_SLOW_SHOWN = 3
_SPARE_INSIDE = ("times these", _SAVED, "products", _PEAK, "backend", "kernel forward")


def print_bench(console: Console, result: Mapping[str, Any], folder: Path) -> None:
    """Print the result of one benchmark."""
    for level in dict.fromkeys(_group(row) for row in result["rows"]):
        rows = [row for row in result["rows"] if _group(row) == level]
        shapes = dict.fromkeys(_shape(row) for row in rows)
        if len(shapes) > 1:
            _rates(level, rows, [*shapes]).print(console)
            continue
        _times(level, rows).print(console)
        _insides(level, rows).print(console)
    for line in _notes(result):
        say(console, line)
    say(console, f"all rounds of all parts: {folder / run_files.BENCH}")


def print_bench_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table at the end of a sweep: every job's rows, labeled with their overrides."""
    console = table_console()
    headings = [*names("overrides", "level", "name", "backend"), *numbers("ms", "range", "tok/s")]
    table = TerminalTable(headings, ("range", "level", "tok/s", "backend"), "benchmarks")
    for row in rows:
        label = " ".join(row.overrides)
        if row.result is None:
            table.add(label, "", "", row.status, "", "", "")
            continue
        for one in row.result["rows"]:
            cells = (_ms(one["total"]["median"]), _range(one["total"]), f"{one['tok_s']:,.0f}")
            backend = computed_by(one["backend"], None, one.get("slow_path", False))
            table.add(label, one["level"], one["name"], backend, *cells)
    table.print(console)
    for line in _packaged([one for row in rows if row.result for one in row.result["rows"]]):
        say(console, line)
    if folder is not None:
        say(console, f"sweep folder: {folder}")


def _group(row: Row) -> str:
    """Return the level whose tables contain a row: a recurrence alone is among the layers."""
    return "step" if row["level"] == "step" else "layer"


def _times(level: str, rows: Sequence[Row]) -> TerminalTable:
    rounds = len(rows[0]["rounds"])
    parts = [part for part in _PARTS if any(part in row["seconds"] for row in rows)]
    measured = numbers(*(_PARTS[part] for part in parts), "all", "range", "times the first")
    headings = [*names("name", "backend"), *numbers("params"), *measured, *numbers("tok/s")]
    title = f"one {level}: milliseconds, medians of {rounds} rounds"
    table = TerminalTable(headings, _SPARE, title)
    for row in rows:
        only = "" if row["level"] != "op" else " (recurrence alone)"
        table.add(
            row["name"] + only,
            computed_by(row["backend"], None, row.get("slow_path", False)),
            "" if row["level"] == "op" else f"{row['params']:,}",
            *(_median(row, part) for part in parts),
            _ms(row["total"]["median"]),
            _range(row["total"]),
            _ratio(row["ratio"]),
            f"{row['tok_s']:,.0f}",
        )
    return table


def _shape(row: Row) -> str:
    """Return rows times bytes; older results do not say it."""
    return f"{row['batch_size']}x{row['chunk_size']}" if "batch_size" in row else ""


def _rates(level: str, rows: Sequence[Row], shapes: Sequence[str]) -> TerminalTable:
    """Return the tok/s of everything at each shape; a dash is what did not fit into memory."""
    found = {(row["name"], row["backend"], _shape(row)): row for row in rows}
    title = f"one {level}: tok/s by rows x bytes, medians of {len(rows[0]['rounds'])} rounds"
    table = TerminalTable([*names("name", "backend"), *numbers(*shapes)], ("backend",), title)
    for name, backend in dict.fromkeys((row["name"], row["backend"]) for row in rows):
        timed = (found.get((name, backend, shape)) for shape in shapes)
        rates = ("-" if row is None else f"{row['tok_s']:,.0f}" for row in timed)
        table.add(name, computed_by(backend, None, False), *rates)
    return table


def _insides(level: str, rows: Sequence[Row]) -> TerminalTable:
    measured = numbers("kernel forward", "kernel backward", "products", "times these")
    headings = [*names("name", "backend"), *measured, *numbers(_SAVED, _PEAK)]
    title = f"inside one {level}: kernels (and floor), products, memory"
    table = TerminalTable(headings, _SPARE_INSIDE, title)
    for row in rows:
        table.add(
            row["name"],
            row["backend"],
            _kernel(row, "kernel forward"),
            _kernel(row, "kernel backward"),
            f"{_ms(row['products'])} ms" if row["products"] > 0 else "-",
            _over_products(row),
            f"{row['saved_bytes'] / LAYER_MEMORY.bytes:,.1f}",
            f"{row['peak_bytes'] / LAYER_MEMORY.bytes:,.1f}",
        )
    return table


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notes that a reader needs."""
    yield from result["notes"]
    yield from _packaged(result["rows"])
    yield "products: matrix products; times these: forward and backward time divided by theirs"
    yield from _slow_products(result["rows"])
    yield from _replays(result["rows"])
    if any(row["products"] <= 0 for row in result["rows"]):
        yield "products -: torch does not say which of its time they are"
    first = result["rows"][0]
    kernels = sum(kernel["seconds"] for kernel in first["kernels"].values())
    for row in result["rows"]:
        if row["level"] == "op" and kernels > 0:
            times = row["total"]["median"] / kernels
            yield f"{row['name']}: {times:.1f} times the kernels of {first['name']}"
    rates, environment = result["rates"], result["environment"]
    measured = [f"{environment['device_name']}, {environment['threads']} threads"]
    if rates["multiplies"]:
        measured.append(f"{rates['multiplies'] / 1e9:,.0f} G multiply-adds/s")
    if rates["tanhs"]:
        measured.append(f"{rates['tanhs'] / 1e9:,.2f} G tanh/s")
    if copies := rates["copies"].values():
        measured.append(f"copies {min(copies) / 1e9:,.0f} to {max(copies) / 1e9:,.0f} GB/s")
    yield f"floors from what was measured here: {', '.join(measured)}"


def _slow_products(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each product on a slow kernel, those that take longest first."""
    for row in rows:
        slow = row.get("slow_products", ())  # older results lack it
        for one in slow[:_SLOW_SHOWN]:
            yield (
                f"{row['name']} {row['backend']}: slow kernel for a product, "
                f"{_ms(one['seconds'])} ms: {one['factors']}; {one['size']:,} is no multiple of 8"
            )
        if (more := len(slow) - _SLOW_SHOWN) > 0:
            yield f"{row['name']} {row['backend']}: slow kernels for {more} more products"


def _replays(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what was replayed as CUDA graphs, if anything was; older results do not say it."""
    if not any(row.get("replayed") for row in rows):
        return
    yield "replayed as CUDA graphs, as in training, so no launch by Python counts; kernels, too"
    others = [f"{row['name']} {row['backend']}" for row in rows if not row.get("replayed")]
    if others:
        yield f"launched by Python one operation at a time: {', '.join(dict.fromkeys(others))}"


def _packaged(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each packaged baseline with the package that computed it."""
    sources = (
        f"{row['name']}, {computed_by(row['backend'], row['path'], row['slow_path'])}"
        for row in rows
        if row.get("path")  # None for other cells; older rows of a resumed sweep lack it
    )
    yield from dict.fromkeys(sources)


def _median(row: Row, part: str) -> str:
    seconds = row["seconds"].get(part)
    return "-" if seconds is None else _ms(seconds["median"])


def _kernel(row: Row, direction: str) -> str:
    kernel = row["kernels"].get(direction)
    if kernel is None:
        return "-"
    return f"{kernel['seconds'] * 1e3:,.3f} ms ({kernel['floor'] * 1e3:,.3f})"


def _over_products(row: Row) -> str:
    """Return the ratio of both passes to their matrix products; a dash if torch hides those."""
    both = sum(one["median"] for part, one in row["seconds"].items() if part in _PASSES)
    return f"{both / row['products']:.2f}" if row["products"] > 0 else "-"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _range(spread: Mapping[str, float]) -> str:
    return f"{_ms(spread['low'])} to {_ms(spread['high'])}"


def _ratio(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"
