"""Starts commands as forks of one process that has imported torch already.

A socket, whose descriptor is the argument, brings ``{"argv": [...], "folder": ...}`` with two
descriptors for output and errors, and gets the id of the process that runs this command; or
``{"pid": ...}``, and gets its exit status, null while it runs.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from typing import Any

import torch

from elman.cli.main import main


def _begin(command: dict[str, Any], out: int, errors: int) -> None:
    """Take the place of a process that was started in a folder with arguments."""
    os.chdir(command["folder"])
    os.dup2(out, 1)
    os.dup2(errors, 2)
    sys.argv = ["elman", *command["argv"]]


def _ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def serve(given: socket.socket) -> None:
    """Answer until the socket is closed; return in each process that this starts."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(given, 1 << 16, 2)
        if not text:
            os._exit(0)
        command = json.loads(text)
        if "pid" in command:
            answer = _ended(command["pid"])
        elif (answer := os.fork()) == 0:
            given.close()
            _begin(command, *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        given.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    for name in ("elman.modes.train", "elman.modes.eval", "elman.runs.prepare", "hydra.main"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(main())  # as in elman/__main__.py
