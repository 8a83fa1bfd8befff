"""How a process ends after its work."""

from __future__ import annotations

import subprocess
import sys

ENDING = """
import atexit, os, signal, sys
from elman.base import process_exit
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.exit(process_exit.exit_with(7))
"""


def test_ctrl_c_while_a_process_exits_keeps_its_status_and_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
