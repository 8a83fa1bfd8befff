"""Reports a run to Trackio, which keeps it on this machine or in a Space of Hugging Face.

A run has a name of its own there, kept in the run folder, with which a resume goes on. Imports no
torch.
"""

from __future__ import annotations

import contextlib
import io
import secrets
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError, first_line
from elman.config.run_config import RunConfig, flatten
from elman.evaluation.result import RunResult
from elman.sections.training import LogConfig
from elman.training.writer import Writer, done_in_time, remembered


def check_installed(log: LogConfig) -> None:
    """Find before the start that the package is missing.

    Raises:
        UserError: it is.
    """
    if not log.trackio:
        return
    if find_spec("trackio") is None:
        raise UserError(
            "log.trackio=true: trackio is not installed; type pip install 'elman[trackio]'"
        )
    if not log.trackio_project.strip():
        raise UserError("log.trackio_project: names nothing; type log.trackio_project=<name>")


class Trackio(Writer):
    """One session of a run there.

    Args:
        folder: The run folder.
        config: The run's configuration.
        say: Shows a line to people.
    """

    name = "Trackio"

    def __init__(self, folder: Path, config: RunConfig, say: Callable[[str], None]) -> None:
        self._say = say
        self._problem: str | None = None
        self._named = {"project": config.log.trackio_project, "name": own_name(folder)}
        self._run: Any = None
        self._heard: list[str] = []
        self._show = warnings.showwarning
        warnings.showwarning = self._hear
        try:
            import trackio

            # Its own lines would stand between those of the live display.
            with contextlib.redirect_stdout(io.StringIO()):
                self._run = trackio.init(
                    **self._named,
                    config=flatten(config),
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                )
        except Exception as error:  # no network, no rights, or a fault of its own
            self._problem = first_line(error)
            say(f"warning: Trackio cannot be used ({self._problem}); the run goes on without it")
            return
        say(f"Trackio: run {self._named['name']} of project {self._named['project']}")

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Report numbers of one step."""
        self._pass_on()
        if self._run is not None:
            known = {name: value for name, value in values.items() if value is not None}
            self._run.log(known, step=step)

    def failed(self, error: Exception) -> None:
        """Note that a report has failed; nothing more is reported."""
        self._problem = first_line(error)

    def fill(self, result: RunResult) -> None:
        """Set project, name, and what went wrong."""
        self._pass_on()
        result.trackio = {**self._named, "problem": self._problem}

    def finish(self, *, failed: bool) -> None:
        """Write or send the rest, for a minute at most."""
        if self._run is not None:
            with contextlib.redirect_stdout(io.StringIO()):
                problem = done_in_time(self._run.finish, "elman-trackio", lambda: None)
            self._pass_on()
            _forget_run()
            if problem is not None:
                self._say(f"warning: Trackio: {problem}")
        warnings.showwarning = self._show

    def _hear(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        """Keep a warning of Trackio, which often comes from its own threads; show any other."""
        if "trackio" in Path(filename).parts:
            self._heard.append(first_line(Exception(message)))
        else:
            self._show(message, category, filename, lineno, file, line)

    def _pass_on(self) -> None:
        """Say what Trackio has warned of."""
        while self._heard:
            self._problem = self._heard.pop(0)
            self._say(f"warning: Trackio: {self._problem}")


def _forget_run() -> None:
    """Keep Trackio from finishing its run once more, with a line, when the process ends."""
    with contextlib.suppress(Exception):
        from trackio import context_vars

        context_vars.current_run.set(None)


def own_name(folder: Path) -> str:
    """Return the name of a run, the same in each session, and of no other run in its project."""
    return remembered(
        folder / run_files.TRACKIO, "name", lambda: f"{folder.name}_{secrets.token_hex(3)}"
    )
