"""What Hydra's plugins and callbacks hand to the command line: Hydra itself passes nothing on.

Only this package and the plugins of Hydra read it; everybody else is handed what they need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elman.base.exit_status import ExitStatus
from elman.base.phases import Phases

if TYPE_CHECKING:
    from elman.launchers.command import Start
    from elman.runs.prepared import PreparedRun


class StopRun(SystemExit):
    """Carries an exception out of a Hydra callback, which would turn it into a warning."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(int(ExitStatus.USER_ERROR))
        self.cause = cause


@dataclass
class Session:
    """One invocation of the command line.

    Args:
        config_flags: Flags that every process of a sweep needs to find the same YAML files.
        argv: What was typed, without the program's name.
        before_run: Called after the job of this process is checked and imported; it returns when
            the job may run, at once where no launcher has to find a place for it.
        start: Runs a command line; the process of each job of a sweep calls it.
        run: Runs a prepared job in this process.
        job: The job of this process, once validated.
        ranks: Runs the job in processes of its own, one for each GPU; None runs it here.
        status: Exit status so far.
        phases: How the time of this invocation is spent.
    """

    config_flags: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    before_run: Callable[[], None] = lambda: None
    start: Start | None = None
    run: Callable[[PreparedRun], int] | None = None
    job: PreparedRun | None = None
    ranks: Callable[[], int] | None = None
    status: ExitStatus | int = ExitStatus.OK
    phases: Phases = field(default_factory=Phases)


_current = Session()


def begin(session: Session) -> Session:
    """Make a session the current one of this process, and return it."""
    global _current
    _current = session
    return session


def current() -> Session:
    """Return the session of this process."""
    return _current
