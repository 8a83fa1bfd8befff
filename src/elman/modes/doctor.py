"""``mode=doctor``: what is installed, what works on this machine, and how to fix the rest.

Imports neither torch nor any package that it reports on: each is tried in a process of its own, all
at the same time. An area is printed as soon as it and those above it are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from elman.base.beside import beside
from elman.base.consoles import LiveArea, say, table_console
from elman.base.exit_status import ExitStatus
from elman.base.tables import TerminalTable, names, text
from elman.doctor.combinations import combinations
from elman.doctor.facts import Facts, gather
from elman.doctor.findings import Finding, Mark, installed, machine
from elman.doctor.packs import packed_data
from elman.doctor.usable import backends, baselines, forms
from elman.kernels.packages import PACKAGES
from elman.runs.prepared import PreparedRun

_STYLES = {Mark.OK: "green", Mark.ABSENT: "dim", Mark.NOTE: "yellow", Mark.BROKEN: "bold red"}
# Every area has a table of its own, with columns below those of the others.
_NAME_WIDTH = len("several GPUs for one model")
_MARK_WIDTH = max(map(len, Mark))
# A process that takes longer than this is named below the table.
_SLOW_SECONDS = 1.0
_MACHINE = frozenset({"torch", "nvml", "nvrtc", "compiler"})


def run(job: PreparedRun) -> ExitStatus:
    """Print the diagnosis; the status is FAILED if something that is installed is broken."""
    assert job.folder is None
    console, findings = table_console(), []
    for area in _areas(console):
        if area:
            _table(area).print(console)
        findings += area
    _print_commands(console, findings)
    broken = [finding for finding in findings if finding.mark == Mark.BROKEN]
    return ExitStatus.FAILED if broken else ExitStatus.OK


def _areas(console: Console) -> Iterator[list[Finding]]:
    """Yield the findings of each area as soon as its questions are answered."""
    # The slowest areas come last: they read packages, and all of the packed data.
    waiting: list[tuple[Callable[[Facts], list[Finding]], frozenset[str]]] = [
        (installed, frozenset({"torch", "triton", "causal-conv1d"})),
        (machine, _MACHINE),
        (combinations, _MACHINE),
        (forms, _MACHINE),
        (backends, _MACHINE | {"triton", *PACKAGES}),
        (baselines, _MACHINE | {*PACKAGES}),
    ]
    live = LiveArea(console)
    live.start()
    try:
        packs = beside(lambda: packed_data(lambda folder: None), "elman-packs")
        for facts in gather(lambda names: live.draw(f"waiting for {', '.join(names)}")):
            while waiting and not waiting[0][1] & facts.open:
                yield waiting.pop(0)[0](facts)
        live.draw("reading packed data")
        yield packs.result()
    finally:
        live.stop()
    _print_slow(console, facts)


def _table(findings: Sequence[Finding]) -> TerminalTable:
    headings = [*names("", ""), text("", least=24)]
    table = TerminalTable(headings, bars=False)
    area = None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            table.add(Text(area, style="bold"), "", "")
        state = Text(f"{finding.mark:<{_MARK_WIDTH}}", style=_STYLES[finding.mark])
        table.add(f"  {finding.name:<{_NAME_WIDTH}}", state, finding.found)
    return table


def _print_slow(console: Console, facts: Facts) -> None:
    """Name what took long; everything was asked at the same time."""
    seconds = [(answer.seconds, name) for name, answer in facts.answers.items()]
    slow = [one for one in sorted(seconds, reverse=True) if one[0] >= _SLOW_SECONDS]
    if slow:
        named = ", ".join(f"{name} {took:.1f} s" for took, name in slow)
        say(console, f"took longest, all at the same time: {named}")


def _print_commands(console: Console, findings: Sequence[Finding]) -> None:
    """Print the commands below the table, where they can be copied whole."""
    by_command: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.mend and finding.mark != Mark.OK:
            by_command.setdefault(finding.mend, []).append(finding)
    for command, meant in by_command.items():
        broken = any(finding.mark == Mark.BROKEN for finding in meant)
        which = " and ".join(dict.fromkeys(finding.name for finding in meant))
        say(console, f"{'To fix' if broken else 'To add or change'} {which}:")
        say(console, f"    {command}")
