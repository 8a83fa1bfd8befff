"""The CUDA kernels of a family: compiled when a call first needs them, and how they launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, TypeVar

import torch

from elman.kernels import driver
from elman.kernels.driver import Loaded
from elman.kernels.launching import Launch, architecture, launch
from elman.kernels.nvrtc import Unit

Config = TypeVar("Config")
Launching = Callable[[Config, Sequence[Launch], ctypes.Structure, torch.device], None]
"""Launches kernels of a config on a device, in order, each with the same argument."""


def exact(config: object) -> bool:
    """Return that divisions and tanh come from the CUDA library, whatever is compiled."""
    return False


def approximate(config: object) -> bool:
    """Return that tanh and divisions are the GPU's own."""
    return True


def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    return driver.device_limits(device.index).multiprocessors


class CudaKernels(Generic[Config]):
    """The kernels of one family: a translation unit for each config.

    Args:
        unit_text: Returns the text of a config's translation unit.
        label: Returns its name, for people; or one name for all of them.
        fast: Returns whether it uses the GPU's own tanh and approximate division.
    """

    def __init__(
        self,
        unit_text: Callable[[Config], str],
        label: str | Callable[[Config], str],
        *,
        fast: Callable[[Config], bool] = exact,
    ) -> None:
        self._unit_text, self._label, self._fast = unit_text, label, fast
        self.loaded = cache(self._load)
        """Returns the kernels of a config, for the GPU of an index."""

    def launch(
        self,
        config: Config,
        wanted: Sequence[Launch],
        args: ctypes.Structure,
        device: torch.device,
    ) -> None:
        """Launch kernels on the current stream of the tensors' device."""
        launch(self.loaded(config, device.index), wanted, args, device.index)

    def starter(
        self, config: Config, args: ctypes.Structure, device: torch.device
    ) -> Callable[[list[Launch]], None]:
        """Return what launches kernels on the device's current stream, without looking them up."""
        index = device.index
        kernels = self.loaded(config, index)
        return lambda wanted: launch(kernels, wanted, args, index)

    def _load(self, config: Config, index: int) -> Loaded:
        label = self._label if isinstance(self._label, str) else self._label(config)
        fast = self._fast(config)
        return driver.load(Unit(self._unit_text(config), label, architecture(index), fast))
