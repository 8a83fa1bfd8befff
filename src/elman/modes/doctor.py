"""``mode=doctor``: what is installed, what works on this machine, and how to fix the rest.

Imports neither torch nor any package that it reports on: each is tried in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from elman.base.consoles import say, table_console
from elman.base.exit_status import ExitStatus
from elman.base.tables import TerminalTable, names, text
from elman.doctor.combinations import combinations
from elman.doctor.facts import gather
from elman.doctor.findings import Finding, Mark, installed, machine
from elman.doctor.packs import packed_data
from elman.doctor.usable import backends, baselines, forms
from elman.runs.prepared import PreparedRun

_STYLES = {Mark.OK: "green", Mark.ABSENT: "dim", Mark.NOTE: "yellow", Mark.BROKEN: "bold red"}


def run(job: PreparedRun) -> ExitStatus:
    """Print the diagnosis; the status is FAILED if something that is installed is broken."""
    assert job.folder is None
    console = table_console()
    with Console(stderr=True).status("looking at this machine") as live:
        facts = gather(lambda waiting: live.update(f"waiting for {', '.join(waiting)}"))
        packs = packed_data(lambda folder: live.update(f"reading {folder}"))
    judges = (installed, machine, backends, forms, baselines, combinations)
    findings = [*(finding for judge in judges for finding in judge(facts)), *packs]
    _table(findings).print(console)
    _print_commands(console, findings)
    broken = [finding for finding in findings if finding.mark == Mark.BROKEN]
    return ExitStatus.FAILED if broken else ExitStatus.OK


def _table(findings: Sequence[Finding]) -> TerminalTable:
    headings = [*names("", ""), text("", least=24)]
    table = TerminalTable(headings, bars=False)
    area = None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            table.add(Text(area, style="bold"), "", "")
        state = Text(finding.mark, style=_STYLES[finding.mark])
        table.add(f"  {finding.name}", state, finding.found)
    return table


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
