"""A rank of a job on SLURM: a task for each GPU; they find each other by the job's environment."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from submitit import JobEnvironment
from submitit.core.utils import JobPaths

from elman.base import process_exit
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, interrupted_status, is_failure
from elman.base.rank_place import rank_environment, rank_place
from elman.base.whole_file import put_json
from elman.launchers.command import JobCommand, visible_devices
from elman.launchers.outcome import result_status
from elman.launchers.ranks import GRACE_SECONDS, REFUSED_SECONDS

ORDER_SECONDS = 300.0
"""Time that ranks wait for the order of rank 0; a shared file system may show it late."""
_POLL_SECONDS = 0.2
# Ports that no system hands out by itself.
_FIRST_PORT, _PORTS = 10_000, 20_000
# What srun says of a task that died of a signal.
_DIED = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
}


@dataclass(frozen=True)
class SlurmRankCommand(JobCommand):
    """A job of several ranks; every task of the job runs this, and is the rank of its number.

    Args:
        ranks: Number of ranks, over all nodes.
        nodes: Number of nodes.
        on_gpus: Whether each rank has a GPU.
    """

    ranks: int = 2
    nodes: int = 1
    on_gpus: bool = True

    def __call__(self) -> int:
        """Run this rank and return its exit status."""
        os.environ.update(slurm_environment(self.ranks, self.nodes))
        status = super().__call__()
        process_exit.exit_with(0)  # what submitit's process ends with
        if is_failure(status):
            # srun ends the other ranks when one exits with an error; submitit would exit with 0.
            atexit.register(_leave, status, self._other_results())
        return status

    def command_line(self) -> list[str]:
        """Return what rank 0 finds in the folder: the others would see what it has just made."""
        order = self._order()
        if not rank_place().leads:
            return _read(order)
        try:
            line = super().command_line()
        except UserError as error:
            put_json(order, {"error": str(error)})
            raise
        put_json(order, {"arguments": line})
        return line

    def _requeues(self) -> bool:
        return rank_place().leads

    def _check_devices(self) -> None:
        """Check that this rank sees every GPU of its node, of which it takes one.

        Raises:
            UserError: it sees others.
        """
        count, seen = self.ranks // self.nodes, visible_devices()
        if self.on_gpus and len(seen) != count:
            raise UserError(
                f"a rank of this job sees {len(seen)} of the {count} GPUs on its node; every rank "
                "must see all of them, so drop hydra.launcher settings that bind GPUs to tasks"
            )

    def _order(self) -> Path:
        """Return the file in which rank 0 says what to run in this start of the job."""
        start = os.environ.get("SLURM_RESTART_COUNT", "0")
        return Path(JobEnvironment().paths.folder) / f"start{start}.json"

    def _other_results(self) -> list[Path]:
        """Return the files that the other ranks leave when they have ended."""
        own, environment = rank_place().rank, JobEnvironment()
        folder, job = os.environ["SUBMITIT_FOLDER"], environment.job_id
        others = (rank for rank in range(self.ranks) if rank != own)
        return [JobPaths(folder, job, rank).result_pickle for rank in others]


def slurm_environment(ranks: int, nodes: int) -> dict[str, str]:
    """Return torchrun's variables for this task of a job, from SLURM's.

    Args:
        ranks: Number of ranks that the job asked for.
        nodes: Number of its nodes.

    Raises:
        UserError: SLURM has started another number of tasks.
    """
    tasks = int(os.environ["SLURM_NTASKS"])
    if tasks != ranks:
        raise UserError(
            f"SLURM started {tasks} tasks for {ranks} ranks; drop hydra.launcher.tasks_per_node "
            "and hydra.launcher.nodes: launcher.gpus_per_job and launcher.nodes set both"
        )
    port = _FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % _PORTS
    address = first_host(os.environ["SLURM_JOB_NODELIST"])
    rank = int(os.environ["SLURM_PROCID"])
    local = {"LOCAL_RANK": os.environ["SLURM_LOCALID"], "GROUP_RANK": os.environ["SLURM_NODEID"]}
    return rank_environment(rank, ranks, ranks // nodes, address, port) | local


def first_host(nodes: str) -> str:
    """Return the first host of a list in SLURM's short form, as ``gpu[03-05,9],login``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    assert first is not None
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def rank_statuses(paths: Sequence[JobPaths], gone: bool) -> list[int] | None:
    """Return how each rank of a job ended, or None while that is not known.

    Args:
        paths: The files of each rank.
        gone: Whether the job has left SLURM's queue: what is not there by now will not come.
    """
    statuses = [result_status(one) for one in paths]
    if None in statuses and not gone:
        return None
    if all(status is None for status in statuses):
        return None
    died = _died(paths[0]) if None in statuses else {}
    lost = int(interrupted_status())  # SLURM ended it for another one
    return [died.get(rank, lost) if one is None else one for rank, one in enumerate(statuses)]


def _died(paths: JobPaths) -> dict[int, int]:
    """Return -signal of the rank that srun reports first as dead; empty if it reports none."""
    try:
        lines = paths.stderr.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        said = re.fullmatch(
            r"srun: error: .*: tasks? (\d+)[^:]*: ([A-Z][a-z ]+?)(?: \(.*\))?", line
        )
        if said is not None and said[2] in _DIED:
            return {int(said[1]): -int(_DIED[said[2]])}
    return {}


def _read(path: Path) -> list[str]:
    deadline = time.monotonic() + ORDER_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"{path}: rank 0 has not written it in {ORDER_SECONDS:.0f} s; the sweep's folder "
                "must be on a file system that all nodes share"
            )
        time.sleep(_POLL_SECONDS)
    order = json.loads(path.read_text(encoding="utf-8"))
    if "error" in order:
        raise UserError(order["error"])
    return [str(text) for text in order["arguments"]]


def _leave(status: int, others: Sequence[Path]) -> None:
    """End this process with the status of its rank, once the other ranks had time to end."""
    grace = REFUSED_SECONDS if status == ExitStatus.USER_ERROR else GRACE_SECONDS
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and not all(path.exists() for path in others):
        time.sleep(_POLL_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
