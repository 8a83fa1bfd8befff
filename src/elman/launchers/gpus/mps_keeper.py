"""The process that starts the MPS control daemon of one GPU, and ends it when its launcher ends.

    python -m elman.launchers.gpus.mps_keeper <nvidia-cuda-mps-control> <UUID> <seconds>

It answers with one line of JSON and waits for the end of its input, which comes however the
launcher dies. Jobs of a dead launcher get ``seconds`` to save before the daemon ends without them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from elman.base.signals import leave_to_the_command

_START_SECONDS = 20.0
_ASK_SECONDS = 20.0
_PROBE_SECONDS = 60.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.1
# A socket's path may have 107 characters, and MPS adds some twenty to the folder.
_LONGEST_FOLDER = 60


class MpsError(Exception):
    """MPS cannot be used here, and why."""


def main(control: str, uuid: str, seconds: int) -> None:
    """Start the daemon, say so, and end it at the end of the input."""
    leave_to_the_command()
    signal.signal(signal.SIGTERM, _end)
    folder = _folder()
    places = {
        "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
    }
    daemon = None
    try:
        for place in places.values():
            Path(place).mkdir()
        environment = os.environ | places | {"CUDA_VISIBLE_DEVICES": uuid}
        try:
            daemon = _started(control, environment, folder)
            _wait_for(daemon, control, environment, folder)
            _probe(control, environment)
        except MpsError as error:
            _answer({"error": str(error)})
            seconds = 0
        else:
            _answer({"environment": places})
            sys.stdin.buffer.read()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if daemon is not None:
            _end_daemon(daemon, control, environment, seconds)
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    short = len(tempfile.gettempdir()) <= _LONGEST_FOLDER
    return Path(tempfile.mkdtemp(prefix="elman-mps-", dir=None if short else "/tmp"))


def _started(control: str, environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Start the daemon as our child, in a process group with its server."""
    try:
        with (folder / "said").open("wb") as said:
            return subprocess.Popen(
                [control, "-f"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
    except OSError as error:
        raise MpsError(f"{control}: {error.strerror}") from None


def _wait_for(
    daemon: subprocess.Popen[bytes], control: str, environment: Mapping[str, str], folder: Path
) -> None:
    """Wait until the daemon answers.

    Raises:
        MpsError: it has ended, or it does not answer.
    """
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            words = (folder / "said").read_text(errors="replace").split("\n")
            last = next((line for line in reversed(words) if line.strip()), "")
            raise MpsError(f"its daemon ended with status {daemon.returncode}: {last}".rstrip(": "))
        if _asked(control, environment, "get_server_list") is not None:
            return
        time.sleep(_POLL_SECONDS)
    raise MpsError("its daemon does not answer")


def _probe(control: str, environment: Mapping[str, str]) -> None:
    """Have another process use the GPU, and see that the daemon has started a server for it.

    Raises:
        MpsError: it cannot, or it did so without MPS.
    """
    probe = [sys.executable, "-m", "elman.launchers.gpus.mps_probe"]
    try:
        done = subprocess.run(
            probe, env=environment, capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise MpsError("a process that used it for a trial did not end") from None
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["no reason given"]
        raise MpsError(f"a process cannot use it: {words[-1]}")
    if not _asked(control, environment, "get_server_list"):
        raise MpsError("its daemon starts no server for a process on the GPU")


def _asked(
    control: str, environment: Mapping[str, str], order: str, seconds: float = _ASK_SECONDS
) -> str | None:
    """Return what the daemon answers to an order, or None if it does not answer."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [control],
            input=f"{order}\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def _end_daemon(
    daemon: subprocess.Popen[bytes], control: str, environment: Mapping[str, str], seconds: int
) -> None:
    """Tell the daemon to end; kill it and its server if it does not."""
    _asked(control, environment, f"quit -t {seconds}", seconds + _END_SECONDS)
    if daemon.returncode is not None:
        return
    deadline = time.monotonic() + _END_SECONDS
    ending = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, daemon.pid, ending) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    # Before the process is reaped: afterwards its group's number may be another's.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _answer(answer: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
