"""``mode=report``: one table of training runs, with plots, from their result files alone.

Imports no torch.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from elman.base.consoles import table_console
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.evaluation.result import RunResult
from elman.report.comparison.audit.audit import check_allowed
from elman.report.comparison.blocks import say
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.terminal import print_report, say_where
from elman.report.comparison.write import write_report
from elman.runs.prepared import PreparedRun


def run(job: PreparedRun) -> ExitStatus:
    """Print the table and write the report, or print the schema of ``result.json``.

    A failed run is a row, not a failure of this command.

    Returns:
        ``OK``; with ``report.strict`` ``FAILED`` if the audit finds something unequal.

    Raises:
        UserError: ``report.allow`` names no row of the audit, a folder holds no runs, or the
            report cannot be written.
    """
    config = job.config
    assert job.folder is None
    assert config.report is not None
    if config.report.result_schema:
        print(json.dumps(RunResult.model_json_schema(), indent=2))
        return ExitStatus.OK
    folders = [Path(name) for name in config.report.folders]
    check_allowed(config.report.allow)
    report = make_report(folders, job.places, config.report.against, config.report.allow)
    place = _place(report, config.report.out)
    paper: dict[str, bytes] = {}
    if config.report.paper:
        from elman.report.comparison.paper import paper_files, refuse_foreign, write_paper

        paper = paper_files(report)
        refuse_foreign(paper, place)
    console = table_console()
    print_report(console, report)
    say_where(console, write_report(report, place))
    if paper:
        say(console, f"paper: {write_paper(paper, place)} (figures, and a document of all)")
    if config.report.strict and (unequal := report.audit.unequal):
        say(console, _refusal([row.check.key for row in unequal]))
        return ExitStatus.FAILED
    return ExitStatus.OK


def _refusal(keys: Sequence[str]) -> str:
    allow = f"report.allow=[{','.join(keys)}]"
    return f"report.strict=true: not equal: {', '.join(keys)}; to declare it: {shlex.quote(allow)}"


def _place(report: Report, out: str | None) -> Path:
    if out is not None:
        return Path(out).expanduser().absolute()
    if len(report.sources) == 1 and report.sources[0].is_sweep:
        return report.sources[0].folder
    raise UserError(
        "report.out: missing; report.dir is not the folder of one sweep, so say where the report "
        "is written, as in report.out=my-report"
    )
