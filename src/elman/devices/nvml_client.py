"""Queries the driver from a separate process, because a call into a hung driver never returns.

    python -m elman.devices.nvml_client

That process reads a query per line on stdin, answers in a line on stdout, and ends at end of file.
A thread would not do: one that hangs in the kernel keeps its whole process from ending.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import Any

from elman.base.output import note
from elman.base.signals import leave_to_the_command
from elman.devices.nvml import (
    PRETENDED,
    Driver,
    DriverError,
    DriverHangsError,
    Gpu,
    GpuProcess,
    Nvml,
    Sample,
    driver,
)

GPUS_SECONDS, SAMPLE_SECONDS = 30.0, 10.0
"""Time for an answer; without persistence mode the first one takes seconds for each GPU."""
MUTE_SECONDS = 10.0
"""Pause after a missing answer, so that the launcher can look after its jobs meanwhile."""
_SAID_AFTER = 2.0


class AskedDriver:
    """The machine's driver; after a missing answer it is left alone for a while."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._hung: subprocess.Popen[bytes] | None = None
        self._mute_until = 0.0

    def gpus(self) -> list[Gpu]:
        """Return every GPU of the machine in PCI order; print a note if that takes long."""
        return [Gpu(**one) for one in self._ask(["gpus"], GPUS_SECONDS, aloud=True)]

    def sample(self, uuid: str) -> Sample:
        """Return the present use of a GPU."""
        found = self._ask(["sample", uuid], SAMPLE_SECONDS, aloud=False)
        processes = tuple(GpuProcess(**one) for one in found.pop("processes"))
        return Sample(**found, processes=processes)

    def _ask(self, question: list[str], seconds: float, aloud: bool) -> Any:
        if time.monotonic() < self._mute_until or (self._hung and self._hung.poll() is None):
            raise DriverHangsError(f"no answer within {seconds:g} s")
        self._hung = None
        if self._process is None or self._process.poll() is not None:
            self._process = _started()
        process = self._process
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: the missing answer will show that
            process.stdin.write(f"{json.dumps(question)}\n".encode())
        line = self._answer(process, seconds, aloud)
        if not line.endswith(b"\n"):
            self._process = None
            raise DriverError(f"the process that asks it ended with status {process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["answer"]

    def _answer(self, process: subprocess.Popen[bytes], seconds: float, aloud: bool) -> bytes:
        """Return the line that comes in time, or what the process wrote before it ended."""
        assert process.stdout is not None
        reading, line = process.stdout.fileno(), b""
        began = time.monotonic()
        say_at = began + _SAID_AFTER if aloud else None
        while not line.endswith(b"\n"):
            now = time.monotonic()
            if say_at is not None and now >= say_at:
                say_at = None
                note(
                    "waiting for the NVIDIA driver to say which GPUs there are "
                    f"(up to {seconds:g} s) ..."
                )
            if now >= began + seconds:
                self._give_up(process)
                raise DriverHangsError(f"no answer within {seconds:g} s")
            until = min(began + seconds, say_at or began + seconds)
            if select.select([reading], [], [], max(0.0, until - now))[0]:
                if not (more := os.read(reading, 65536)):
                    break
                line += more
        return line

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process that hangs; do not wait for one that the kernel cannot kill."""
        process.kill()
        self._hung, self._process = process, None
        self._mute_until = time.monotonic() + MUTE_SECONDS


@cache
def _asked() -> AskedDriver:
    return AskedDriver()


def asked_driver() -> Driver:
    """Return the machine's driver for a launcher, or a test's pretended one."""
    return driver() if os.environ.get(PRETENDED) else _asked()


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "elman.devices.nvml_client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C at the terminal is meant for the launcher
    )


def main() -> None:
    """Answer queries until end of file."""
    leave_to_the_command()
    library = Nvml()
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        answer: dict[str, Any]
        try:
            if question == "gpus":
                answer = {"answer": [asdict(gpu) for gpu in library.gpus()]}
            else:
                answer = {"answer": asdict(library.sample(*arguments))}
        except DriverError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
