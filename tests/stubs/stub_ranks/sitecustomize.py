"""Puts a stub in place of the whole command line in every process that is one of several ranks.

It comes with the stubs of ``stub_modes``, which suit the process that starts the ranks.
"""

import importlib.abc
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

runpy.run_path(str(Path(__file__).parents[1] / "stub_modes" / "sitecustomize.py"))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        ranks = "RANK" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1
        if not ranks or name not in ("elman.__main__", "elman.cli.main"):
            return None
        place = Path(__file__).with_name("stub_rank.py")
        return importlib.util.spec_from_file_location(name, place)


sys.meta_path.insert(0, _Finder())
if "STUB_GRACE" in os.environ and "RANK" not in os.environ:
    from elman.launchers import ranks

    ranks.GRACE_SECONDS = float(os.environ["STUB_GRACE"])
