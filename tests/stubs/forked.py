"""Stub commands as forks of one process that has imported the command line, a second for each."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

_STUBS = Path(__file__).with_name("stub_modes")
_SERVER = Path(__file__).with_name("stub_server.py")


class _Server:
    """The process whose forks the commands are."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": str(_STUBS), "STUB_FORKS": "yes"},
                stdin=subprocess.DEVNULL,
            )
        atexit.register(process.wait)
        atexit.register(self._socket.close)

    def ask(self, question: dict[str, Any], descriptors: tuple[int, ...] = ()) -> Any:
        """Return the answer to a question, which takes these descriptors along."""
        socket.send_fds(self._socket, [json.dumps(question).encode()], descriptors)
        return json.loads(self._socket.recv(1 << 16))


@cache
def _server() -> _Server:
    return _Server()


def _own_settings(environment: Any) -> dict[str, str]:
    """Return what Python itself reads as it starts; a fork cannot."""
    return {name: text for name, text in environment.items() if name.startswith("PYTHON")}


class Popen(subprocess.Popen[str]):
    """A process with the stub modes on its path, forked where no import of its own is at stake."""

    _forked = False

    def _execute_child(self, *given: Any) -> None:
        args, cwd, env, pipes = given[0], *given[5:7], given[10:16]
        wanted = _own_settings(os.environ) | {"PYTHONPATH": str(_STUBS)}
        if env is None or _own_settings(env) != wanted or "RANK" in env:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        streams = (pipes[0], pipes[3], pipes[5])
        taken = tuple(number if one < 0 else one for number, one in enumerate(streams))
        command = {"args": args, "folder": os.path.abspath(cwd or "."), "environment": dict(env)}
        self.pid = _server().ask(command, taken)
        self._forked = self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:
        if not self._forked:
            return super()._internal_poll(*given, **more)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self.returncode = _server().ask({"pid": self.pid})
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._forked:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._internal_poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.01)
        return code


def run_to_end(args: list[str], timeout: float = 120, **more: Any) -> tuple[int, str, str]:
    """Run a process to its end; return its exit status, output and errors."""
    with Popen(args, stdout=subprocess.PIPE, text=True, **more) as started:
        try:
            output, errors = started.communicate(timeout=timeout)
        except BaseException:
            started.kill()
            raise
    return started.returncode, output, errors
