"""The command line with stubs in place of what trains, and a machine with pretend GPUs."""

from __future__ import annotations

from tests.launchers.machine import machine
from tests.stubs.command_line import elman, elman_process, stub_environment

__all__ = ["elman", "elman_process", "machine", "stub_environment"]
