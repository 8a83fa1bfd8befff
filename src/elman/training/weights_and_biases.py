"""Reports a run to Weights & Biases; no failure there ends a run or costs its result.

A run has an id of its own there, kept in the run folder, with which a resume goes on. Imports no
torch.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elman.base import run_files
from elman.base.errors import UserError, first_line
from elman.config.run_config import RunConfig, flatten
from elman.evaluation.result import RunResult
from elman.sections.training import LogConfig
from elman.training.writer import Writer, done_in_time, remembered

INIT_SECONDS = 30.0
"""Longest wait for the server at the start of a run."""
_OFFLINE = ("offline", "dryrun", "disabled")
# Characters that Weights & Biases refuses in the name of a project.
_FORBIDDEN = "/\\#?%:"
_LONGEST_NAME = 128
_ELSE = "drop log.wandb, or set WANDB_MODE=offline and send the run later by `wandb sync`"


def check_access(log: LogConfig) -> None:
    """Find before the start what would make every report fail.

    Raises:
        UserError: the package or a key is missing, or the project cannot have this name.
    """
    if not log.wandb:
        return
    if find_spec("wandb") is None:
        raise UserError("log.wandb=true: wandb is not installed; type pip install 'elman[wandb]'")
    name = log.wandb_project
    signs = [sign for sign in _FORBIDDEN if sign in name]
    if not name.strip() or signs or len(name) > _LONGEST_NAME:
        raise UserError(
            f"log.wandb_project={name}: a project's name has 1 to {_LONGEST_NAME} characters, none "
            f"of them {' '.join(_FORBIDDEN)}; choose another"
        )
    if not _has_key():
        raise UserError(f"log.wandb=true: no API key is configured; type `wandb login`, {_ELSE}")


def _has_key() -> bool:
    """Whether a run can log in, as far as one can tell without the server."""
    import wandb

    settings = wandb.setup().settings
    if settings.mode in _OFFLINE or getattr(settings, "api_key", None):
        return True
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(str(settings.base_url)).hostname or ""
    named = os.environ.get("NETRC")
    for place in [named] if named else ["~/.netrc", "~/_netrc"]:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(os.path.expanduser(place)).authenticators(host) is not None:
                return True
    return False


class WeightsAndBiases(Writer):
    """One session of a run there.

    If the server does not answer, the session is recorded in the run folder, to be sent later.

    Args:
        folder: The run folder.
        config: The run's configuration.
        say: Shows a line to people.

    Raises:
        UserError: it refuses the key or a setting.
    """

    name = "Weights & Biases"

    def __init__(self, folder: Path, config: RunConfig, say: Callable[[str], None]) -> None:
        import wandb

        self._say = say
        self._problem: str | None = None
        self._given: dict[str, Any] = {
            "project": config.log.wandb_project,
            "name": folder.name,
            "dir": str(folder),
            "config": flatten(config),
            "resume": "allow",
            "id": own_id(folder),
        }
        refused = wandb.errors.UsageError, wandb.errors.AuthenticationError
        try:
            self._run = self._begun()
        except refused as error:
            raise UserError(f"log.wandb=true: {first_line(error).rstrip('.')}; {_ELSE}") from None
        except Exception as error:  # no network, no rights, or a fault of its own
            self._problem = first_line(error)
            self._run = self._offline()
            return
        where = f"offline, in {self._place}" if self._run.offline else self._run.url
        self._say(f"Weights & Biases: {where}")

    def fill(self, result: RunResult) -> None:
        """Set id, project, and what went wrong."""
        named = {key: self._given[key] for key in ("id", "project")}
        offline = self._run is not None and bool(self._run.offline)
        result.wandb = named | {"offline": offline, "problem": self._problem}

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Report numbers of one step."""
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def failed(self, error: Exception) -> None:
        """Note that a report has failed; nothing more is reported."""
        self._problem = first_line(error)

    def finish(self, *, failed: bool) -> None:
        """Send the rest, for a minute at most."""
        if (run := self._run) is None:
            return
        act = partial(run.finish, exit_code=int(failed))
        problem = done_in_time(act, "elman-wandb", _end_its_processes)
        if problem is not None:
            self._say(
                f"warning: Weights & Biases: {problem}; `wandb sync {self._place}` sends the rest"
            )

    @property
    def _place(self) -> str:
        """The folder that `wandb sync` sends."""
        return str(Path(str(self._run.dir)).parent)

    def _offline(self) -> Any:
        """Return a session that is recorded in the run folder; None if that is impossible, too."""
        import wandb

        try:
            wandb.teardown()  # what has failed still holds the id
            run = self._begun(mode="offline")
        except Exception as error:
            self._say(
                f"warning: Weights & Biases cannot be used ({self._problem}; offline: "
                f"{first_line(error)}); the run goes on without it"
            )
            return None
        place = Path(str(run.dir)).parent
        self._say(
            f"warning: Weights & Biases cannot be used ({self._problem}); this session is "
            f"recorded offline: `wandb sync {place}` sends it later"
        )
        return run

    def _begun(self, **more: Any) -> Any:
        import wandb

        # Silent: its own lines would stand between those of the live display.
        settings = wandb.Settings(init_timeout=INIT_SECONDS, silent=True)
        return wandb.init(**self._given, **more, settings=settings)


def own_id(folder: Path) -> str:
    """Return the id of a run, the same in each session."""
    older = (folder / "wandb").is_dir()  # the id of such a run was its folder's name
    return remembered(
        folder / run_files.WANDB,
        "id",
        lambda: folder.name.replace(":", "-") if older else secrets.token_hex(8),
    )


def _end_its_processes() -> None:
    """End the processes that it has started: at the exit it would wait for them for ever."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name().startswith("wandb"):
                child.kill()
