"""``mode=tasks``: every task there is, or one of them with examples. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from elman.base.consoles import say, table_console
from elman.base.exit_status import ExitStatus
from elman.config.task_files import listed_tasks
from elman.report.tables.tasks import print_task, tasks_table
from elman.runs.prepared import PreparedRun
from elman.sections.tasks import TaskConfig


def run(job: PreparedRun) -> ExitStatus:
    """Print the list of tasks; with ``data=<name>``, that one with examples of its rows.

    Raises:
        UserError: a task's file is wrong.
    """
    assert job.folder is None
    tasks = listed_tasks(job.places)
    config = job.config.data
    if isinstance(config, TaskConfig):
        named = next(task for task in tasks if task.config.task == config.task)
        length = job.config.train.chunk_size
        print_task(table_console(), replace(named, config=config, length=length))
        return ExitStatus.OK
    console = table_console()
    tasks_table(tasks).print(console)
    say(
        console,
        f"{len(tasks)} tasks; rows: trained to longest tested; elman mode=tasks data=<name> shows "
        "some of one, and its settings",
    )
    return ExitStatus.OK
