"""elman: sequential nonlinear recurrent language models, trained, checked and compared fairly.

>>> import elman
>>> model = elman.build("e75h4n16", dim=256, depth=4)
>>> model = elman.load("outputs/2026-01-31/12-00-00-000000_e88_tiny_0123abcd")
>>> text = bytes(elman.generate(model, b"def ", 200))
>>> sweep = elman.read_sweep("outputs/2026-01-31/12-00-00-000000_sweep")  # for pandas

Layers are ordinary modules under :mod:`elman.layers`. Importing ``elman`` does not import torch.
"""

from __future__ import annotations

from elman.base.version import __version__

TYPE_CHECKING = False  # typing takes longer to import than all that a command needs at first
if TYPE_CHECKING:
    from typing import Any

    from elman.config.named_model import build
    from elman.evaluation.generation import generate
    from elman.report.frames import read_run, read_sweep
    from elman.training.checkpoints.loading import load

__all__ = ["__version__", "build", "generate", "load", "read_run", "read_sweep"]

_HOMES = {
    "build": "elman.config.named_model",
    "generate": "elman.evaluation.generation",
    "load": "elman.training.checkpoints.loading",
    "read_run": "elman.report.frames",
    "read_sweep": "elman.report.frames",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'elman' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
