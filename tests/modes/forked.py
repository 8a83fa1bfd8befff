"""Commands as processes that need not import torch, which takes each of them two seconds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

_SERVER = Path(__file__).with_name("command_server.py")


class Commands:
    """Starts ``elman`` in forks of one process that has imported it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, str(_SERVER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )

    def start(self, folder: Path, *arguments: str) -> ForkedCommand:
        """Start a command in a folder."""
        streams = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        command = {"argv": arguments, "folder": str(folder)}
        return ForkedCommand(self, self.ask(command, streams), streams)

    def ask(self, command: dict[str, Any], streams: list[IO[str]]) -> Any:
        """Return the answer to a command for the server."""
        given = [stream.fileno() for stream in streams]
        socket.send_fds(self._socket, [json.dumps(command).encode()], given)
        return json.loads(self._socket.recv(1 << 16))

    def close(self) -> None:
        """End the process whose forks the commands are."""
        self._socket.close()
        self._server.wait(timeout=180)


class ForkedCommand:
    """A running command, with the methods of :class:`subprocess.Popen` that tests need.

    Attributes:
        pid: Its process.
        returncode: Its exit status, negative for a signal; None while it runs.
    """

    def __init__(self, commands: Commands, pid: int, streams: list[IO[str]]) -> None:
        self._commands, self.pid, self._streams = commands, pid, streams
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self.returncode is None:
            self.returncode = self._commands.ask({"pid": self.pid}, [])
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit status."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, "it did not end"
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float = 180) -> tuple[str, str]:
        """Wait for the end and return output and errors."""
        self.wait(timeout)
        for stream in self._streams:
            stream.seek(0)
        out, errors = (stream.read() for stream in self._streams)
        return out, errors

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)
