"""The command line with stubs in place of what trains."""

from __future__ import annotations

from tests.stubs.command_line import elman, elman_process, stub_environment

__all__ = ["elman", "elman_process", "stub_environment"]
