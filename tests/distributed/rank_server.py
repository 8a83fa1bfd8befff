"""Starts the ranks of a run as forks of one process that has imported torch already.

Reads one JSON command a line: ``{"start": <ranks>, "argv": [...], "fault": {...}, "log": <file>}``
answers with the processes' ids; ``{"wait": <seconds>}`` answers with their exit statuses. A fault
is made in one rank after some passes: see ``_plant``.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from typing import Any

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import torch

import elman.modes.train
import elman.runs.prepare  # noqa: F401
from elman.base import process_exit
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.distributed import team, watch
from elman.models.language_model import LanguageModel
from elman.ops import cross_entropy
from elman.training.trainer import Trainer


def _plant(fault: dict[str, Any], rank: int) -> None:
    """Let something go wrong: ``nan``, ``oom`` or ``hang`` in one rank; ``slow`` in all.

    With ``most_logits`` nothing goes wrong: the loss of bytes then has chunks of so many logits.
    """
    if "most_logits" in fault:
        cross_entropy.MOST_LOGITS, cross_entropy._BYTES = fault["most_logits"], 0
        return
    team.HANG_SECONDS = fault.get("hang_seconds", team.HANG_SECONDS)
    if fault.get("spared"):
        team.Joined._kill_the_hung = lambda joined: None  # type: ignore[method-assign]
    loss, kind, left = LanguageModel.loss, fault["kind"], [fault.get("after", 0)]
    hit = fault.get("rank", rank) == rank

    def faulty(model: LanguageModel, *given: Any) -> Any:
        value, states = loss(model, *given)
        if kind == "slow":
            time.sleep(0.05)
        if not hit or not begun or not model.training or given[0].is_meta:
            return value, states
        left[0] -= 1
        if left[0] < 0 and kind == "nan":
            return value * torch.nan, states
        if left[0] < 0 and kind == "oom":
            raise torch.OutOfMemoryError("out of memory (planted)")
        if left[0] == -1 and kind == "hang":
            time.sleep(1000)
        return value, states

    begun: list[bool] = []
    run = Trainer.run

    def running(trainer: Trainer, *given: Any) -> Any:
        begun.append(True)
        if "silent_seconds" in fault:
            _lose_after(trainer.state.team.watch, fault["silent_seconds"])
        print(f"ranks here: {sorted(trainer.state.team.processes)}", flush=True)
        return run(trainer, *given)

    LanguageModel.loss = faulty  # type: ignore[method-assign]
    Trainer.run = running  # type: ignore[method-assign]


def _lose_after(of: watch.Watch, seconds: float) -> None:
    """Count a rank as lost after fewer seconds.

    Only once training has begun: ranks that still import are silent longer on a busy machine.
    """
    watch.SILENT_SECONDS = seconds
    for store in (of._store, of._of_thread):
        store._seconds = seconds


def _rank(rank: int, command: dict[str, Any], port: int) -> None:
    """Become one rank, with the environment that torchrun gives; never returns.

    Where the fault says ``whole``, Python's own end is part of it, as in a real process.
    """
    code, whole = 70, bool(command.get("fault", {}) and command["fault"].get("whole"))
    try:
        out = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        size = command["start"]
        if size > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.set_num_threads(1)
        if command.get("fault"):
            _plant(command["fault"], rank)
        code = main(command["argv"])
        sys.stdout.flush()
    finally:
        if not whole:
            os._exit(code)
    sys.exit(process_exit.exit_with(code))


def _start(command: dict[str, Any]) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(command["start"]):
        pid = os.fork()
        if pid == 0:
            _rank(rank, command, port)
        pids.append(pid)
    return pids


def _wait(pids: list[int], seconds: float) -> list[int | None]:
    """Return the exit status of each process, negative for a signal; None while it runs."""
    codes: dict[int, int] = {}
    until = time.monotonic() + seconds
    while len(codes) < len(pids) and time.monotonic() < until:
        for pid in set(pids) - codes.keys():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return [codes.get(pid) for pid in pids]


def _warm() -> None:
    """Do once what every rank would do: import, and compose a configuration."""
    for name in ("elman.modes.train", "elman.runs.prepare", "matplotlib.pyplot", "hydra.main"):
        importlib.import_module(name)
    compose_config(["train.device=cpu"])


def serve() -> None:
    """Answer commands until the input ends."""
    _warm()
    pids: list[int] = []
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            pids = _start(command)
            print(json.dumps(pids), flush=True)
        else:
            print(json.dumps(_wait(pids, command["wait"])), flush=True)


serve()
