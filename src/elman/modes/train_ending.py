"""How a run that has begun ends: its status, and in one line why."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

from elman.base import run_files
from elman.base.crash import error_line, kept_traceback
from elman.base.errors import UserError, first_line
from elman.base.exit_status import RunStatus
from elman.distributed.team import Joined, Team
from elman.distributed.watch import is_connection
from elman.modes.train_setup import Findings, TrainingSetup
from elman.parity.gate import ParityError
from elman.training.checkpoints.store import CheckpointError
from elman.training.listeners.memory_guard import TooLittleMemoryError
from elman.training.memory.advice import memory_advice, shortage
from elman.training.memory.estimate import available_memory
from elman.training.trainer import Trainer

_log = logging.getLogger("elman.train")


class RunEnd(NamedTuple):
    """How a run ended.

    Args:
        status: Its status.
        error: Why, in one line; None if nothing went wrong.
        to_read: Where a person reads more, as the end of that line.
    """

    status: RunStatus
    error: str | None = None
    to_read: str = ""


def interrupted(team: Team) -> RunEnd:
    """Return how a run ends that a signal cut short, and tell the other ranks."""
    error = "before new weights were saved"
    if isinstance(team, Joined):
        team.end(RunStatus.INTERRUPTED.value, error)
    return RunEnd(RunStatus.INTERRUPTED, error)


def not_finite(trainer: Trainer) -> RunEnd:
    """Say what was not finite, at which step, what is saved, and what to try."""
    step, lr = trainer.state.step, trainer.config.optim.lr
    saved = f"the weights of step {step:,} are saved" if step else "no step was applied"
    if step and not trainer.config.train.checkpoints:
        saved = "no weights are saved (train.checkpoints=false)"
    return RunEnd(
        RunStatus.NAN,
        f"the {trainer.totals.non_finite} was not finite at step {step + 1:,}; {saved}; try a "
        f"smaller optim.lr ({lr / 3:.2g} is a third) or a longer optim.warmup_steps",
    )


def failed(error: Exception, setup: TrainingSetup, findings: Findings) -> RunEnd:
    """Return how a run ends after an error, for all ranks; its traceback goes to the log."""
    own = _failed_here(error, setup, findings)
    team = setup.team
    if not isinstance(team, Joined):
        return own
    if setup.config.parallel.shard != "none" and is_connection(error):
        team.watch.find_failed_rank()  # the library that cuts the model met a lost rank
    ending = team.end(own.status.value, f"rank {team.place.rank}: {own.error}{own.to_read}")
    return RunEnd(RunStatus(ending.status), ending.error)


def _failed_here(error: Exception, setup: TrainingSetup, findings: Findings) -> RunEnd:
    if isinstance(error, ParityError):  # nothing has been trained
        return RunEnd(RunStatus.REFUSED, first_line(error))
    traceback = ""
    if not isinstance(error, CheckpointError):  # whose message says it all
        _log.error("the run ended with this error")
        traceback = kept_traceback(error, setup.folder / run_files.LOG)
    if isinstance(error, TooLittleMemoryError):
        return RunEnd(RunStatus.OOM, str(error))
    if _is_out_of_memory(error):
        available = available_memory(setup.device)
        advice = memory_advice(setup.config, setup.one_pass, available, findings.estimate)
        return RunEnd(RunStatus.OOM, f"{shortage(error)}; {advice}")
    if isinstance(error, UserError | CheckpointError):
        return RunEnd(RunStatus.CRASH, first_line(error))
    return RunEnd(RunStatus.CRASH, error_line(error), f"; {traceback}")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
