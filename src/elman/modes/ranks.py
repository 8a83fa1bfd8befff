"""Runs a training as one of several ranks: they agree on the command and the folder, and end alike.

Rank 0 makes the folder, writes and shows. Whatever ends one rank ends all of them with one status.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from elman.base.crash import error_line
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, RunStatus, interrupted_status
from elman.base.rank_place import RankPlace
from elman.distributed.team import Joined, joined, same_everywhere
from elman.distributed.watch import USER, TeamError
from elman.runs.folder import config_text
from elman.runs.prepared import PreparedRun
from elman.training.display import Display

Body = Callable[[Path, Joined], ExitStatus]
"""What a rank does in the run folder; a UserError or KeyboardInterrupt leaves nothing behind."""


def display_of(place: RankPlace) -> Display:
    """Return the display of a rank; only that of rank 0 shows anything."""
    return Display() if place.leads else Display(Console(file=io.StringIO(), quiet=True))


def in_team(job: PreparedRun, device: torch.device, body: Body) -> ExitStatus:
    """Meet the other ranks, run ``body``, and return the exit status that all ranks have.

    Args:
        job: This rank's job; rank 0's has the run folder.
        device: This rank's device.
        body: What to do.

    Raises:
        UserError: the run cannot start; only rank 0 raises it, to say it once.
        KeyboardInterrupt: a signal came before the run began; likewise.
    """
    team = joined(job.place, device)
    try:
        return _all_ending_alike(job, team, body)
    finally:
        team.leave()


def _all_ending_alike(job: PreparedRun, team: Joined, body: Body) -> ExitStatus:
    leads = team.place.leads
    try:
        same_everywhere(team, "settings", config_text(job.config))
        folder = Path(team.from_leader("folder", lambda: str(job.folder)))
        code: ExitStatus | None = body(folder, team)
    except UserError as error:
        team.end(USER, str(error))
        if leads:
            team.close(ExitStatus.USER_ERROR)
            raise
        code = ExitStatus.USER_ERROR
    except KeyboardInterrupt:
        team.end(RunStatus.INTERRUPTED.value, "interrupted")
        if leads:
            team.close(interrupted_status())
            raise
        code = interrupted_status()
    except TeamError as error:
        code = error.status.exit_status
        if leads:
            raise_elsewhere(error)
    except BaseException as error:  # whatever it is, the others must not wait for this rank
        team.end(RunStatus.CRASH.value, f"rank {team.place.rank}: {error_line(error)}")
        raise
    agreed = team.close(code if leads else None)
    return agreed if agreed is not None else (code or ExitStatus.FAILED)


def raise_elsewhere(error: TeamError) -> None:
    """Raise what another rank raised before the run began, if it was no failure of a run."""
    ending = error.ending
    if ending.status == USER:
        # If every rank refuses the command, the line names no rank.
        said = ending.error if ending.error.startswith("rank ") else _of_rank(error)
        raise UserError(said) from None
    if ending.status == RunStatus.INTERRUPTED:
        raise KeyboardInterrupt


def _of_rank(error: TeamError) -> str:
    return f"rank {error.ending.rank}: {error.ending.error}"
