"""The tables of ``mode=parity``: one line for each check, and one for each model of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from elman.base import run_files
from elman.base.consoles import say, table_console
from elman.base.tables import TerminalTable, names, numbers
from elman.config.run_config import RunConfig
from elman.report.tables.sweep import computed_by
from elman.sweeps.row import SweepRow

_NUMBERS = ("relative L2", "reference", "cosine", "max abs", "tolerance")
_SPARE = (
    *("max abs", "cosine", "reference", "sizes", "shape", "checks", "tolerance"),
    *("worst tensor", "relative L2"),
)
_LEGEND = (
    "relative L2: |found - right| / |right|, where right is the reference in fp64; reference: the "
    "same for the reference in the precision of the row; max abs: the largest |found - right|, "
    "which has no tolerance"
)
# At most this many wrong tensors are listed; a wrong kernel easily has hundreds.
_LISTED = 20


def print_parity(console: Console, result: Mapping[str, Any], folder: Path) -> None:
    """Print one model's checks, tensors that failed or need a note, and what was not checked."""
    checks = result["checks"]
    table = _table("part", "backend", "precision", "shape", "sizes", "worst tensor")
    for check in checks:
        of = (check["part"], *_run(check), check["shape"], check["sizes"])
        table.add(*of, check["worst"]["tensor"], *_cells(check["worst"]))
    table.print(console)
    packaged = _packaged(result["model"], result["summary"])
    for line in (_LEGEND, *_failures(checks), *_excused(checks), *packaged, *result["notes"]):
        say(console, line)
    tensors = sum(len(check["tensors"]) for check in checks)
    failed = sum(not check["passed"] for check in checks)
    verdict = f"{failed} of {len(checks)} checks failed"
    if not failed:
        verdict = f"{len(checks)} checks passed"
    where = f"{tensors} tensors, all in {folder / run_files.PARITY}"
    say(console, f"{result['model']}: {verdict}; {where}")


def print_parity_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table at the end of a sweep: each model's worst tensor by backend and precision."""
    console = table_console()
    table = _table("model", "part", "backend", "precision", "checks", "worst tensor")
    for row, config in zip(rows, configs, strict=True):
        if row.result is None:
            empty = [""] * (4 + len(_NUMBERS))
            table.add(config.model.name, config.model.cell, *empty, row.status)
        else:
            for one in _summary(row):
                counted = f"{one['passed']}/{one['checks']}"
                worst = one["worst"]
                # Older results of a resumed sweep name only the cell.
                part = one.get("part", config.model.cell)
                of = (config.model.name, part, *_run(one))
                table.add(*of, counted, worst["tensor"], *_cells(worst))
    table.print(console)
    say(console, _LEGEND)
    if any(one["worst"].get("excused") for row in rows if row.result for one in _summary(row)):
        say(
            console,
            f"* the reference itself is as far off; the job's {run_files.PARITY} has it all",
        )
    for row, config in zip(rows, configs, strict=True):
        for line in _packaged(config.model.name, _summary(row)):
            say(console, line)
    if folder is not None:
        say(console, f"sweep folder: {folder}")


def _summary(row: SweepRow) -> Sequence[Mapping[str, Any]]:
    """Return the results of a job of a sweep, by part, backend and precision."""
    summary: Sequence[Mapping[str, Any]] = row.result["summary"] if row.result else ()
    return summary


def _packaged(model: str, summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each backend that computed a packaged baseline; none for other cells."""
    sources = (
        f"{model}, {computed_by(one['backend'], one['path'], one['slow_path'])}"
        for one in summary
        if one.get("path")  # None for other cells; older results of a resumed sweep lack it
    )
    return list(dict.fromkeys(sources))


def _table(*heads: str) -> TerminalTable:
    return TerminalTable([*names(*heads), *numbers(*_NUMBERS), *names("pass")], _SPARE)


def _run(check: Mapping[str, Any]) -> tuple[str, str]:
    """Return backend and precision; add the device if the backend does not imply it."""
    backend, device = check["backend"], check["device"]
    ran = device in ("cpu", backend)
    return (backend if ran else f"{backend} ({device})"), check["precision"]


def _cells(tensor: Mapping[str, Any]) -> list[str | Text]:
    own = tensor.get("reference_relative_l2")
    passed = "yes*" if tensor.get("excused") else "yes"
    return [
        _shown(tensor["relative_l2"], ".1e"),
        "-" if own is None else f"{own:.1e}",
        _shown(tensor["cosine"], ".6f"),
        _shown(tensor["max_abs"], ".1e"),
        _shown(tensor["tolerance"], ".1e"),
        Text(passed, style="green") if tensor["passed"] else Text("NO", style="red"),
    ]


def _failures(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each of the first wrong tensors."""
    lines = [
        f"wrong: {_failure(check, tensor)}"
        for check in checks
        for tensor in check["tensors"]
        if not tensor["passed"]
    ]
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], f"and {more} more"] if more > 0 else lines


def _excused(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each tensor that passes only because the reference is as far off."""
    return [
        f"* {tensor['tensor']} of {' '.join(_run(check))} at {check['shape']}: relative L2 "
        f"{tensor['relative_l2']:.1e}, and {tensor['reference_relative_l2']:.1e} of the reference "
        f"itself in {check['precision']}: rounded numbers whose sum nearly cancels; the kernel "
        f"differs from that reference by {tensor['from_reference']:.1e}"
        for check in checks
        for tensor in check["tensors"]
        if tensor["excused"]
    ]


def _failure(check: Mapping[str, Any], tensor: Mapping[str, Any]) -> str:
    backend, precision = _run(check)
    line = (
        f"{tensor['tensor']} of {backend} {precision} at {check['shape']} ({check['sizes']}): "
        f"relative L2 {_shown(tensor['relative_l2'], '.2e')}, cosine "
        f"{_shown(tensor['cosine'], '.5f')}, tolerance {tensor['tolerance']:.1e}"
    )
    apart, most = tensor["from_reference"], tensor["most_from_reference"]
    if apart is not None and most is not None and apart > most:
        line += f"; {apart:.1e} from the reference in {precision}, tolerance {most:.1e}"
    return line


def _shown(value: float | None, form: str) -> str:
    return "nan" if value is None else format(value, form)
