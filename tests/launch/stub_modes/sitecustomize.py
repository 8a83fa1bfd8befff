"""Puts ``stub_mode`` in place of every mode, in every process started with this on its path.

A mode that trains takes seconds to import; these tests are about what happens around it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in ("elman.modes.train", "elman.modes.eval", "elman.modes.generate"):
            return None
        return importlib.util.spec_from_file_location(
            name, Path(__file__).with_name("stub_mode.py")
        )


sys.meta_path.insert(0, _Finder())
