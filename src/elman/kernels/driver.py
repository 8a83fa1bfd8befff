"""NVIDIA's driver: loads compiled kernels, launches them, and says what a GPU can do.

The driver is called through NVIDIA's ``cuda-bindings``. Imports no torch.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from elman.base.errors import UserError
from elman.kernels.nvrtc import INSTALL, OLDEST, SETTING, Unit, nvrtc_version

_Pointers = ctypes.c_void_p * 1


class Loaded:
    """A translation unit's kernels, ready to be launched on any device of its architecture."""

    def __init__(self, unit: Unit) -> None:
        self._driver = _driver()
        self._label = unit.label
        error, self._library = self._driver.cuLibraryLoadData(unit.cubin(), [], [], 0, [], [], 0)
        if error:
            raise UserError(
                f"{SETTING}: the driver refuses the {unit.label} kernel of NVRTC "
                f"{nvrtc_version()} ({error.name}); update the driver, or install an older NVRTC"
            )
        self._kernels: dict[tuple[str, int, int], Any] = {}

    def launch(
        self,
        name: str,
        *,
        blocks: int,
        threads: int,
        shared_bytes: int,
        arguments: ctypes.Structure,
        device: int,
        stream: int,
        early: bool = False,
        cluster: int = 0,
        together: bool = False,
    ) -> None:
        """Launch a kernel that takes one structure by value; returns at once.

        Args:
            name: Its name in the text.
            blocks: Blocks of the grid.
            threads: Threads of a block.
            shared_bytes: Dynamic shared memory of a block.
            arguments: The structure; it is copied.
            device: Index of the current device.
            stream: Handle of a stream of that device.
            early: Let it start while the previous kernel on the stream still runs. Only for
                kernels that wait for that one themselves, on sm_90 and later.
            cluster: Blocks of a cluster, on sm_90 and later; 0: the kernel asks nothing of them.
            together: Let all blocks run at the same time, or none: a cooperative launch.

        Raises:
            UserError: the driver refuses the launch.
        """
        _enter_context(device)
        kernel = self._kernels.get((name, shared_bytes, device))
        if kernel is None:
            kernel = self._prepare(name, shared_bytes, device, cluster)
        pointers = _Pointers(ctypes.addressof(arguments))
        place = ctypes.addressof(pointers)
        if early or cluster or together:
            config = self._config(blocks, threads, shared_bytes, stream, early, cluster, together)
            (error,) = self._driver.cuLaunchKernelEx(config, kernel, place, 0)
        else:
            (error,) = self._driver.cuLaunchKernel(
                kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, place, 0
            )
        if error:
            raise UserError(
                f"{SETTING}: the {self._label} kernel cannot be launched "
                f"({error.name}: {blocks} blocks of {threads} threads, {shared_bytes} bytes)"
            )

    def _config(
        self,
        blocks: int,
        threads: int,
        shared_bytes: int,
        stream: int,
        early: bool,
        cluster: int,
        together: bool,
    ) -> Any:
        """Return the launch settings that a plain launch lacks."""
        driver = self._driver
        kinds, attributes = driver.CUlaunchAttributeID, []
        if early:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value = driver.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attributes[-1].value = value
        if cluster:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = driver.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            attributes[-1].value = value
        if together:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            value = driver.CUlaunchAttributeValue()
            value.cooperative = 1
            attributes[-1].value = value
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, driver.CUstream(stream)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _prepare(self, name: str, shared_bytes: int, device: int, cluster: int) -> Any:
        """Let a kernel use ``shared_bytes`` of shared memory on a device; cache and return it."""
        if device is None:  # a CPU has no index, and a GPU cannot use its addresses
            raise UserError(f"{SETTING}: the tensors lie on the CPU; use kernels.backend=auto")
        driver = self._driver
        error, kernel = driver.cuLibraryGetKernel(self._library, name.encode())
        assert not error, (name, error)
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuKernelSetAttribute(limit, shared_bytes, kernel, device)
        if error:
            raise UserError(
                f"{SETTING}: the {self._label} kernel needs {shared_bytes} bytes "
                f"of shared memory ({error.name}); use kernels.backend=reference"
            )
        if cluster > 8:  # more than every GPU with clusters has
            wide = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            (error,) = driver.cuKernelSetAttribute(wide, 1, kernel, device)
            assert not error, (name, error)
        function = driver.CUfunction(int(kernel))
        self._kernels[name, shared_bytes, device] = function
        return function


class _Later(Loaded):
    """Kernels that compile elsewhere: the first launch behind :func:`only_asking` loads them."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._found: Loaded | None = None

    def launch(self, name: str, **how: Any) -> None:
        """Launch a kernel as :meth:`Loaded.launch`; nothing inside :func:`only_asking`."""
        if self._found is None:
            if _asked is not None:
                return
            self._found = load(self._unit)
        self._found.launch(name, **how)


@cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver

        (error,) = driver.cuInit(0)
    except ImportError:
        raise UserError(f"{SETTING}: cuda-bindings is missing; {INSTALL}") from None
    except RuntimeError:
        raise UserError(
            f"{SETTING}: NVIDIA's driver is missing; install it; nvidia-smi then shows the GPU"
        ) from None
    if error:
        raise UserError(
            f"{SETTING}: NVIDIA's driver does not start ({error.name}); nvidia-smi says more"
        )
    return driver


@cache
def cuda_problem(device: int = 0) -> str | None:
    """Return why kernels cannot be compiled for a GPU or run on it, and the fix; None if they can.

    Args:
        device: Its index among the GPUs that the process sees.
    """
    try:
        driver, compiler = _driver(), nvrtc_version()
    except UserError as error:
        return str(error).removeprefix(f"{SETTING}: ")
    unknown, newest = driver.cuDriverGetVersion()
    if not unknown and newest // 1000 < int(compiler.split(".")[0]):
        major = newest // 1000
        return (
            f"the driver supports CUDA {major}.{newest % 1000 // 10} and NVRTC is {compiler}; "
            "update the driver, or "
            f"pip install 'cuda-bindings=={major}.*' nvidia-cuda-nvrtc-cu{major}"
        )
    capability = _attributes(device, "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
    if capability < OLDEST:
        return (
            f"kernels need a GPU of sm_{OLDEST[0]}{OLDEST[1]} or later and this is "
            f"sm_{capability[0]}{capability[1]}; use another GPU"
        )
    return None


_entered = threading.local()


def _enter_context(device: int) -> None:
    """Make the device's primary context current in the calling thread if it has no context.

    PyTorch's threads for backward passes have no context before their first runtime call.
    """
    if getattr(_entered, "done", False):
        return
    driver = _driver()
    error, current = driver.cuCtxGetCurrent()
    if not error and not int(current):
        error, current = driver.cuDevicePrimaryCtxRetain(device)
        if not error:
            (error,) = driver.cuCtxSetCurrent(current)
    if error:
        raise UserError(f"{SETTING}: the GPU has no context ({error.name})")
    _entered.done = True


_loaded: dict[Unit, Loaded] = {}
# Threads that need the same unit wait for each other; different units compile in parallel.
_loading: defaultdict[Unit, threading.Lock] = defaultdict(threading.Lock)


_asked: Callable[[Unit], object] | None = None


@contextmanager
def only_asking(asked: Callable[[Unit], object]) -> Iterator[None]:
    """Compile nothing here, and launch nothing that is not loaded.

    What is computed here is nothing that anybody may read.

    Args:
        asked: Called with every unit that a call needs and this process has not loaded.
    """
    global _asked
    before, _asked = _asked, asked
    try:
        yield
    finally:
        _asked = before


def load(unit: Unit) -> Loaded:
    """Return a translation unit's kernels, compiled and loaded once per process.

    Raises:
        UserError: it cannot be compiled or loaded.
    """
    if _asked is not None and unit not in _loaded:
        _asked(unit)
        return _Later(unit)
    if unit not in _loaded:
        with _loading[unit]:
            if unit not in _loaded:
                _loaded[unit] = Loaded(unit)
    return _loaded[unit]


@dataclass(frozen=True)
class Limits:
    """The limits of a GPU.

    Args:
        multiprocessors: Number of multiprocessors.
        shared_bytes: Most shared memory of a block, in bytes.
        shared_total: Shared memory of a multiprocessor, in bytes.
        major: First number of the compute capability.
    """

    multiprocessors: int
    shared_bytes: int
    shared_total: int
    major: int


@cache
def device_limits(device: int) -> Limits:
    """Return the limits of a GPU.

    Raises:
        UserError: the driver or its bindings are missing.
    """
    return Limits(
        *_attributes(
            device,
            "MULTIPROCESSOR_COUNT",
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
            "COMPUTE_CAPABILITY_MAJOR",
        )
    )


def _attributes(device: int, *names: str) -> tuple[int, ...]:
    """Return attributes of a GPU, under the names of the driver's API."""
    driver, found = _driver(), []
    for name in names:
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        error, value = driver.cuDeviceGetAttribute(attribute, device)
        assert not error, error
        found.append(int(value))
    return tuple(found)
