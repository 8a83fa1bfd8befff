"""Starts stub commands as forks of one process that has imported the command line already.

A socket, whose descriptor is the argument, brings ``{"args": [...], "folder": ...,
"environment": {...}}`` with descriptors for input, output and errors, and gets the id of the
process that runs this; or ``{"pid": ...}``, and gets its exit status, null while it runs.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys

import forked_jobs

from elman.config.compose import compose_config

# What a sweep has imported when it ends, and those that are tuned.
IMPORTED = (
    "elman.cli.main",
    "elman.cli.callback",
    "elman.cli.sweep_command",
    "elman.launchers.gpus.launcher",
    "elman.launchers.local",
    "elman.launchers.slurm",
    "elman.modes.sweep_table",
    "elman.report.comparison.terminal",
    "elman.report.comparison.write",
    "elman.sweeps.sweep",
    "hydra.main",
    "hydra_plugins.elman_launcher",
    "hydra_plugins.elman_sweeper",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher",
    "scipy.stats",
)


def _ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def serve(given: socket.socket) -> None:
    """Answer until the socket is closed."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(given, 1 << 17, 3)
        if not text:
            return
        question = json.loads(text)
        if "pid" in question:
            answer = _ended(question["pid"])
        else:
            where = question["folder"], question["environment"]
            answer = forked_jobs.fork(question["args"], (), *where, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        given.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    compose_config([])  # reads the shipped files, which are kept until they change
    serve(socket.socket(fileno=int(sys.argv[1])))
