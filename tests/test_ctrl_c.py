"""The processes that tests start hear Ctrl-C, wherever the tests run."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.conftest import pytest_configure

INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"


def test_tests_in_the_background_start_processes_that_hear_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pytest_configure()
        ended = subprocess.run([sys.executable, "-c", INTERRUPTED], stderr=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.returncode == -signal.SIGINT
