"""``mode=bench``: layers and training steps timed in interleaved rounds, on this machine."""

from __future__ import annotations

import math

from rich.console import Console

from elman.base import run_files
from elman.base.consoles import table_console
from elman.base.disk import say_unwritten
from elman.base.exit_status import ExitStatus
from elman.base.live_line import ProgressBar
from elman.base.whole_file import put_json
from elman.bench.benchmark import run_benchmark
from elman.config.catalog import search_overrides
from elman.report.tables.bench import print_bench
from elman.runs.folder import RunLock, config_hash, write_config
from elman.runs.prepared import PreparedRun


def run(job: PreparedRun) -> ExitStatus:
    """Time what ``config.bench`` names, write ``bench.json`` and print the tables.

    Raises:
        UserError: none of it can be timed here.
    """
    config, folder = job.config, job.folder
    assert folder is not None
    with RunLock(folder):
        write_config(folder, config)
        with ProgressBar("starting", Console(stderr=True), quiet=math.inf) as bar:
            result = run_benchmark(config, search_overrides(job.places), bar.begin, bar.show)
        result["config_hash"] = config_hash(config)
        failure: OSError | None = None
        try:
            put_json(folder / run_files.BENCH, result)
        except OSError as error:
            failure = error
    print_bench(table_console(), result, folder)
    if failure is not None:
        say_unwritten(folder / run_files.BENCH, failure)
        return ExitStatus.FAILED
    return ExitStatus.OK
