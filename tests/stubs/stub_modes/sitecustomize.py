"""Puts stubs in place of what imports torch, in every process started with this on its path.

A mode that trains takes seconds to import, and so does what counts a model's parameters; these
tests are about what happens around them.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_STUBS = {
    "elman.modes.train": "stub_mode.py",
    "elman.modes.eval": "stub_mode.py",
    "elman.modes.generate": "stub_mode.py",
    "elman.models.build": "stub_build.py",
    "elman.sweeps.live_report": "stub_live_report.py",
    "elman.training.flops": "stub_flops.py",
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _STUBS:
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name(_STUBS[name]))


sys.meta_path.insert(0, _Finder())
os.fsync = os.fstat  # as in tests/conftest.py
if "STUB_FORKS" in os.environ:
    from forked_jobs import fork_jobs

    fork_jobs()
