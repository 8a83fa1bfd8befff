"""How a command begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Sends Ctrl-C when the module of a name is imported, on the way to the command or into it.
_CUSTOM = """
import os, signal, sys

class Presser:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["PRESSED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presser())
"""


@pytest.mark.parametrize(
    "module", ["elman.cli.main", "logging", "elman.cli.flags", "elman.base.crash", "elman.cli.help"]
)
def test_ctrl_c_while_a_command_begins_is_one_line(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_CUSTOM)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PRESSED_AT": module}
    ended = subprocess.run(
        [sys.executable, "-m", "elman", "--help"], capture_output=True, text=True, env=environment
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "elman: interrupted\n")
