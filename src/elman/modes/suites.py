"""``mode=suites``: every suite there is, or one of them explained. Imports no torch."""

from __future__ import annotations

from elman.base.consoles import say, table_console
from elman.base.exit_status import ExitStatus
from elman.config.catalog import listed_models
from elman.config.suite_rates import tuning_of
from elman.config.suites import GROUP, load_suite, suite_names
from elman.report.tables.suites import print_suite, suites_table
from elman.runs.prepared import PreparedRun


def run(job: PreparedRun) -> ExitStatus:
    """Print the list of suites; with ``benchmark=<name>``, what is known of that one.

    Raises:
        UserError: a suite's file is wrong.
    """
    assert job.folder is None
    places = job.places
    if job.suite is not None:
        suite = load_suite(job.suite, places)
        listed = listed_models(suite.models, places)
        print_suite(table_console(), suite, listed, tuning_of(suite, places))
        return ExitStatus.OK
    console = table_console()
    names = suite_names(places)
    suites_table([load_suite(name, places) for name in names]).print(console)
    say(
        console,
        f"{len(names)} suites; elman mode=suites {GROUP}=<name> explains one, "
        f"elman {GROUP}=<name> runs it",
    )
    return ExitStatus.OK
