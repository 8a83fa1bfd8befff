"""Runs a training as one of several ranks: they agree on the command and the folder, and end alike.

Rank 0 makes the folder, writes and shows. Whatever ends one rank ends all of them with one status.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from elman.base.crash import told
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, RunStatus, interrupted_status
from elman.base.rank_place import RankPlace
from elman.config.run_config import RunConfig
from elman.data.batches import AnyRunData
from elman.distributed.division import Division
from elman.distributed.team import Joined, Team, joined, same_everywhere
from elman.distributed.watch import USER, TeamError
from elman.evaluation.result import SharedWork
from elman.models.language_model import LanguageModel
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
        team.end(RunStatus.CRASH.value, f"rank {team.place.rank}: {told(error)}")
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


def compare_starts(
    team: Team, config: RunConfig, data: AnyRunData, model: LanguageModel, precision: str | None
) -> None:
    """Raise UserError unless every rank has the data and the first weights of rank 0.

    So it has with Muon the precision of its products, which depends on the machine.
    """
    same_everywhere(team, "data", json.dumps(data.identity()))
    try:
        same_everywhere(team, "products of Muon", str(precision))
    except UserError as error:
        raise UserError(f"{error}, or say optim.matrix_precision=fp32") from None
    if config.parallel.shard == "none":
        total = sum(float(p.detach().double().sum()) for p in model.parameters())
        same_everywhere(team, "first weights", repr(total))


def cut_model(model: LanguageModel, config: RunConfig, team: Team) -> None:
    """Leave a part of the model on this rank, if ``parallel.shard`` says so."""
    if config.parallel.shard == "none":
        return
    from elman.distributed.sharding import shard_mesh, shard_model  # the import takes time

    assert isinstance(team, Joined), "divide refuses it for one process"
    device = next(model.parameters()).device
    shard_model(model, shard_mesh(config.parallel.shard, team.hosts, device.type))


def sharing(team: Team, division: Division, config: RunConfig) -> str:
    """Return how a run shares its work as the end of a line for people; empty without ranks."""
    if team.place.alone and not division.exact:
        return ""
    how = [f"{team.place.size} ranks"] if not team.place.alone else []
    if division.exact:
        how.append(f"exact in {division.parts} virtual shards")
    if config.parallel.shard != "none":
        how.append(f"sharded ({config.parallel.shard}), launch by launch")
    if config.parallel.average_every:
        how.append(f"weights averaged every {config.parallel.average_every} steps")
    return f"; {', '.join(how)}"


def shared_work(team: Team, division: Division, config: RunConfig) -> SharedWork:
    """Return how a run shared its work, for its result."""
    return SharedWork(
        ranks=team.place.size,
        hosts=len(set(team.hosts)) if isinstance(team, Joined) else 1,
        shard=config.parallel.shard,
        exact=division.exact,
        virtual_shards=division.parts if division.exact else None,
        average_every=config.parallel.average_every,
    )
