"""``mode=verdict``: whether one run or row is better than another, for scripts. No torch."""

from __future__ import annotations

import json

from elman.base.consoles import say, table_console
from elman.base.exit_status import ExitStatus
from elman.report.comparison.blocks import one_line
from elman.report.comparison.two_rows import Outcome, answer
from elman.runs.prepared import PreparedRun

STATUSES: dict[Outcome, ExitStatus] = {
    "better": ExitStatus.OK,
    "worse": ExitStatus.WORSE,
    "undecided": ExitStatus.UNDECIDED,
}


def run(job: PreparedRun) -> ExitStatus:
    """Print whether ``verdict.a`` is better than ``verdict.b``.

    Returns:
        ``OK`` if it is, ``WORSE``, or ``UNDECIDED``.

    Raises:
        UserError: there is no such row, or the rows are not comparable.
    """
    config = job.config.verdict
    assert job.folder is None
    assert config is not None
    verdict = answer(config, job.places)
    if config.json:
        print(json.dumps(verdict.record(), indent=2))
    else:
        console = table_console()
        for line in verdict.sentences():
            say(console, one_line(line))
    return STATUSES[verdict.outcome]
