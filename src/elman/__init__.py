"""elman: sequential nonlinear recurrent language models, trained, checked and compared fairly.

>>> import elman
>>> model = elman.load("outputs/2026-01-31/12-00-00-000000_e88_tiny_0123abcd")

Layers are ordinary modules under :mod:`elman.layers`. Importing ``elman`` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elman.base.version import __version__

if TYPE_CHECKING:
    from elman.training.checkpoints.loading import load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from elman.training.checkpoints.loading import load

        return load
    raise AttributeError(f"module 'elman' has no attribute '{name}'")
