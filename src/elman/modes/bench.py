"""``mode=bench``: layers and training steps timed in interleaved rounds, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from elman.base import run_files
from elman.base.consoles import table_console
from elman.base.disk import say_unwritten
from elman.base.errors import ExitStatus
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
        with _progress() as (say, progress):
            result = run_benchmark(config, search_overrides(job.places), say, progress)
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


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Show a bar on a terminal, lines elsewhere; yield two functions: name a stage, advance."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=None)

        def say(stage: str) -> None:
            bar.update(task, description=stage, completed=0, total=None)
            if hidden:
                print(f"{stage} ...", file=sys.stderr, flush=True)

        yield say, lambda done, total: bar.update(task, completed=done, total=total)
